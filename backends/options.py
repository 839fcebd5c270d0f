"""How a device is to be used: choices that change neither the model nor the engine's limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Raises ValueError naming the option, its value and what it may be."""

    cpu_precision: str = "fast"  # "fast": int8 linear layers and fused kernels; "exact": float32, the reference
    threads: int | None = None  # CPU threads; None: one per physical core this process may use

    def __post_init__(self) -> None:
        if self.cpu_precision not in ("fast", "exact"):
            raise ValueError(f"cpu_precision is {self.cpu_precision!r}; it must be 'fast' or 'exact'")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}; it must be at least 1")
