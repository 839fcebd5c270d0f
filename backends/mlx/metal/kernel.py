"""A Metal kernel as a value: its source, every constant it is compiled with, and how it is launched.

A ``.metal`` file holds helpers, then the line ``BODY``, then the body of one function whose signature MLX writes from
the names and types of its arguments. Constants become ``#define`` lines before the helpers. A kernel's name spells out
all of them: MLX keeps compiled kernels by name, and two that differ must never share one.
"""

from __future__ import annotations

import functools
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BODY = "// The kernel's body\n"
#: Loops over arrays in registers: one that stays a loop would put its array into memory. Other compilers pass over it.
UNROLLED = '#define UNROLLED _Pragma("clang loop unroll(full)")\n'
#: NumPy's and MLX's names of types, and Metal's.
METAL_TYPES = {"float32": "float", "float16": "half", "bfloat16": "bfloat16_t", "int8": "int8_t"}

#: MLX passes smaller arrays in another address space. That changes a kernel's source under its name, and MLX compiles
#: it anew each time it changes: an input must be always as small, or never.
DEVICE_ELEMENTS = 8

Constant = int | float | str


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel with its constants fixed: integers, floats (float32), or the name of a type (``METAL_TYPES``)."""

    files: tuple[str, ...]  # helpers' files, then the kernel's own, without ".metal"
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]

    @property
    def name(self) -> str:
        """An identifier that no other kernel has."""
        parts = [*self.files, *(f"{name}_{_spelt(value)}" for name, value in self.constants)]
        return re.sub(r"\W", "_", "__".join(parts))

    @property
    def header(self) -> str:
        """What stands before the function: constants, then helpers."""
        lines = [f"#define {name} {_literal(value)}\n" for name, value in self.constants]
        return "".join((UNROLLED, *lines, *(source(file)[0] for file in self.files)))

    @property
    def body(self) -> str:
        return source(self.files[-1])[1]

    def function(self) -> Any:
        """MLX's callable; made once for each name."""
        return _function(self)


@dataclass(frozen=True, slots=True)
class Launch:
    """A kernel and the size of one launch of it."""

    kernel: Kernel
    grid: tuple[int, int, int]  # in threads, whole threadgroups
    threadgroup: tuple[int, int, int]
    outputs: tuple[tuple[tuple[int, ...], str], ...]  # shape and dtype of each

    def run(self, *inputs: Any) -> list[Any]:
        """Queue it on MLX's default stream with ``inputs`` in the kernel's order; returns the outputs."""
        from ..library import mx

        done: list[Any] = self.kernel.function()(
            inputs=list(inputs),
            grid=self.grid,
            threadgroup=self.threadgroup,
            output_shapes=[shape for shape, _ in self.outputs],
            output_dtypes=[getattr(mx, dtype) for _, dtype in self.outputs],
        )
        return done


@functools.cache
def source(file: str) -> tuple[str, str]:
    """Helpers and body of a ``.metal`` file; a file of helpers has no body."""
    text = (Path(__file__).parent / f"{file}.metal").read_text(encoding="utf-8")
    helpers, _, body = text.partition(BODY)
    return helpers, body


@functools.cache
def available() -> bool:
    """Whether these kernels can run here: MLX is installed, and it uses an Apple GPU."""
    try:
        from ..library import on_metal
    except ImportError:
        return False
    return on_metal()


def dtype_name(dtype: Any) -> str:
    """An MLX type's name, as NumPy spells it."""
    return str(dtype).rpartition(".")[2]


@functools.cache
def _function(kernel: Kernel) -> Any:
    from ..library import mx

    return mx.fast.metal_kernel(
        name=kernel.name,
        input_names=list(kernel.inputs),
        output_names=list(kernel.outputs),
        source=kernel.body,
        header=kernel.header,
    )


def _literal(value: Constant) -> str:
    if isinstance(value, float):
        return f"{value:.9e}f"
    return METAL_TYPES[value] if isinstance(value, str) else str(value)


def _spelt(value: Constant) -> str:
    """A float by its bits, so that close values stay apart."""
    return struct.pack(">f", value).hex() if isinstance(value, float) else str(value)
