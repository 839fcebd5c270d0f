"""Shapes of attention that are compiled ahead: what a model may be, beside what a kernel makes of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of attention, with 8 KV heads of ``dim``."""

    dim: int
    group: int = 4  # query heads to a KV head
    half: str = "bf16"  # of queries, results and what is not quantised
    kept: str = ""  # what the pool keeps: "int8", "e4m3", "e4m3 by bits" (see ``e4m3.py``); "": as ``half``
    window: int = 0
    softcap: float = 0.0
    sinks: bool = False
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        named = (self.group != 4, f"group {self.group}"), (self.half != "bf16", self.half), (self.kept, self.kept)
        flags = (self.window, "window"), (self.softcap, "soft cap"), (self.sinks, "sinks")
        return ", ".join([str(self.dim), *(word for asked, word in (*named, *flags) if asked), *self.notes])

    def types(self) -> dict[str, str]:
        """Types of the arrays that differ between cases."""
        pools = {"int8": "*i8", "e4m3": "*fp8e4nv", "e4m3 by bits": "*u8"}.get(self.kept, f"*{self.half}")
        return {"q": f"*{self.half}", "out": f"*{self.half}", "keys": pools, "values": pools}

    def constants(self) -> dict[str, int | float]:
        """Compile-time arguments that every attention kernel has."""
        return {
            "HEADS": 8 * self.group, "KV_HEADS": 8, "DIM": self.dim, "PAGE": 16, "WINDOW": self.window,
            "SOFTCAP": self.softcap, "SCALED": bool(self.kept), "SINKS": self.sinks,
        }  # fmt: skip

    def architectures(self) -> tuple[int, ...]:
        """Those that it is launched on: e4m3 is converted by bits where no instruction does it, and only there."""
        return {"e4m3": (90, 100, 120), "e4m3 by bits": (80,)}.get(self.kept, (80, 90, 100, 120))
