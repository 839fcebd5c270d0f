"""How a device is to be used: choices that change neither the model nor the engine's limits."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackendOptions:
    """Raises ValueError naming the option, its value and what it may be."""

    cpu_precision: str = "fast"  # "fast": int8 linear layers and fused kernels; "exact": float32, the reference
    threads: int | None = None  # CPU threads; None: one per physical core this process may use
    mlx_weights: str = "auto"  # "quantized" keeps quantised matrices so, "dense" decodes them; auto: quantized on Metal
    mlx_dtype: str = "auto"  # of MLX's arithmetic; auto: the model's half precision on Metal, float32 elsewhere
    tensor_parallel: int = 1  # devices that share every matrix of the model, each in a process of its own

    def __post_init__(self) -> None:
        if self.cpu_precision not in ("fast", "exact"):
            raise ValueError(f"cpu_precision is {self.cpu_precision!r}; it must be 'fast' or 'exact'")
        if self.mlx_weights not in ("auto", "quantized", "dense"):
            raise ValueError(f"mlx_weights is {self.mlx_weights!r}; it must be 'auto', 'quantized' or 'dense'")
        if self.mlx_dtype not in ("auto", "float32", "float16", "bfloat16"):
            raise ValueError(f"mlx_dtype is {self.mlx_dtype!r}; it must be 'auto', 'float32', 'float16' or 'bfloat16'")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads is {self.threads}; it must be at least 1")
        if self.tensor_parallel < 1:
            raise ValueError(f"tensor_parallel is {self.tensor_parallel}; it must be at least 1")
