"""What is compiled ahead to know a kernel's registers, spills and shared memory without a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Variant:
    """One specialisation of a kernel, as a launch on a GPU would make it."""

    name: str
    kernel: Any  # the ``triton.jit`` function
    types: Mapping[str, str]  # of the run-time arguments, in Triton's notation: "*bf16", "i32", "fp32"
    constants: Mapping[str, Any]  # of the compile-time arguments
    warps: int = 4
    stages: int = 3
    hot: bool = True  # no spill is allowed
    tensor_cores: bool = False  # must use them
    vector_loads: bool = True  # must load 16 bytes at a time
    unaligned: frozenset[str] = field(default_factory=frozenset)  # integers that need not be multiples of 16
    architectures: tuple[int, ...] = (80, 90, 100, 120)  # compute capabilities that it is launched on
