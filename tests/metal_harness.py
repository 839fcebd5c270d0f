"""Runs Metal kernels on a CPU: the source as MLX would hand it to Metal, compiled as C++ against ``metal/shim.h``."""

from __future__ import annotations

import ctypes
import hashlib
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from bireme.backends.mlx.metal.kernel import DEVICE_ELEMENTS, Launch

COMPILER = shutil.which("g++")
NEEDS_COMPILER = pytest.mark.skipif(COMPILER is None, reason="the Metal harness compiles kernels with g++")
SHIM = Path(__file__).parent / "metal" / "shim.h"
FAILURES = {
    1: "access outside a buffer",
    2: "lanes of a simdgroup part at a simd operation",
    3: "threads part at a barrier",
    4: "more than 32 KiB of threadgroup memory",
}
ATTRIBUTES = (  # every one that MLX looks for in a body, in its order
    ("dispatch_quadgroups_per_threadgroup", "uint"),
    ("dispatch_simdgroups_per_threadgroup", "uint"),
    ("dispatch_threads_per_threadgroup", "uint3"),
    ("grid_origin", "uint3"),
    ("grid_size", "uint3"),
    ("quadgroup_index_in_threadgroup", "uint"),
    ("quadgroups_per_threadgroup", "uint"),
    ("simdgroup_index_in_threadgroup", "uint"),
    ("simdgroups_per_threadgroup", "uint"),
    ("thread_execution_width", "uint"),
    ("thread_index_in_quadgroup", "uint"),
    ("thread_index_in_simdgroup", "uint"),
    ("thread_index_in_threadgroup", "uint"),
    ("thread_position_in_grid", "uint3"),
    ("thread_position_in_threadgroup", "uint3"),
    ("threadgroup_position_in_grid", "uint3"),
    ("threadgroups_per_grid", "uint3"),
    ("threads_per_grid", "uint3"),
    ("threads_per_simdgroup", "uint"),
    ("threads_per_threadgroup", "uint3"),
)
#: MLX's names of types in a signature.
TYPES = {"float32": "float", "float16": "float16_t", "bfloat16": "bfloat16_t"}
TYPES |= {f"{sign}int{bits}": f"{sign}int{bits}_t" for sign in ("", "u") for bits in (8, 16, 32)}


class KernelError(RuntimeError):
    """A kernel did what Metal leaves undefined."""


@dataclass(frozen=True)
class Tensor:
    """An array as a kernel sees it; bfloat16 lies in uint16."""

    data: NDArray[Any]
    dtype: str

    @classmethod
    def of(cls, values: NDArray[Any], dtype: str | None = None) -> Tensor:
        """``values`` rounded to ``dtype``, or as they are."""
        if dtype == "bfloat16":
            words = np.ascontiguousarray(values, np.float32).view(np.uint32)
            rounded = (words + 0x7FFF + ((words >> 16) & 1)) >> 16
            return cls(np.where(np.isnan(values), 0x7FC0, rounded).astype(np.uint16), dtype)
        array = np.ascontiguousarray(values, dtype)
        return cls(array, str(array.dtype))

    def values(self) -> NDArray[np.float32]:
        if self.dtype == "bfloat16":
            return (self.data.astype(np.uint32) << 16).view(np.float32)
        return self.data.astype(np.float32)


def run(launch: Launch, *inputs: Tensor, source: str | None = None) -> list[NDArray[np.float32]]:
    """The launch's outputs as float32, run twice, threads in both orders: equal bit for bit, or KernelError.

    ``source``: another body and header in place of the kernel's, for tests of the tests.
    """
    there, back = (_run(launch, inputs, source, order) for order in (0, 1))
    for one, other in zip(there, back, strict=True):
        if one.data.tobytes() != other.data.tobytes():
            raise KernelError("results depend on the order of threads: a barrier is missing")
    return [output.values() for output in there]


def mutate(launch: Launch, old: str, new: str) -> str:
    """The kernel's text with one piece replaced, for ``run``; the piece must be there."""
    text = text_of(launch)
    assert old in text, f"{old!r} is not in {launch.kernel.files[-1]}.metal"
    return text.replace(old, new)


def text_of(launch: Launch) -> str:
    return launch.kernel.header + "\x00" + launch.kernel.body


def signature(launch: Launch, inputs: Sequence[Tensor], name: str = "tested") -> str:
    """The function's head as MLX generates it for these inputs."""
    parameters: list[str] = []
    for argument, tensor in zip(launch.kernel.inputs, inputs, strict=True):
        space = "device" if tensor.data.size >= DEVICE_ELEMENTS else "constant"
        reference = "*" if tensor.data.ndim else "&"
        parameters.append(f"  const {space} {TYPES[tensor.dtype]}{reference} {argument} [[buffer({len(parameters)})]]")
        for suffix, kind in (("shape", "int*"), ("strides", "int64_t*"), ("ndim", "int&")):
            if f"{argument}_{suffix}" in launch.kernel.body and tensor.data.ndim:
                parameters.append(f"  const constant {kind} {argument}_{suffix} [[buffer({len(parameters)})]]")
    for argument, (_, dtype) in zip(launch.kernel.outputs, launch.outputs, strict=True):
        parameters.append(f"  device {TYPES[dtype]}* {argument} [[buffer({len(parameters)})]]")
    parameters += [f"  {kind} {name} [[{name}]]" for name, kind in attributes(launch)]
    return f"[[kernel]] void {name}(\n" + ",\n".join(parameters) + ") {\n"


def attributes(launch: Launch) -> list[tuple[str, str]]:
    return [(name, kind) for name, kind in ATTRIBUTES if name in launch.kernel.body]


def _run(launch: Launch, inputs: Sequence[Tensor], source: str | None, backwards: int) -> list[Tensor]:
    assert all(whole % part == 0 for whole, part in zip(launch.grid, launch.threadgroup, strict=True))
    library = _compiled(_program(launch, inputs, source or text_of(launch)))
    buffers: list[NDArray[Any]] = []
    for argument, tensor in zip(launch.kernel.inputs, inputs, strict=True):
        buffers.append(np.ascontiguousarray(tensor.data))
        if f"{argument}_shape" in launch.kernel.body:
            buffers.append(np.array(tensor.data.shape, np.int32))
    outputs = [
        Tensor(np.empty(shape, np.uint16 if dtype == "bfloat16" else dtype), dtype) for shape, dtype in launch.outputs
    ]
    everything = [*buffers, *(output.data for output in outputs)]
    pointers = (ctypes.c_void_p * len(everything))(*(array.ctypes.data for array in everything))
    sizes = (ctypes.c_size_t * len(everything))(*(array.nbytes for array in everything))
    grid, group = ((ctypes.c_uint * 3)(*each) for each in (launch.grid, launch.threadgroup))
    failure = library.metal_launch(pointers, sizes, len(buffers), len(everything), grid, group, backwards)
    if failure:
        raise KernelError(FAILURES[failure])
    return outputs


def _program(launch: Launch, inputs: Sequence[Tensor], text: str) -> str:
    """The kernel and a C function that launches it."""
    header, body = text.split("\x00")
    head = signature(launch, inputs)
    kinds = [line.split("[[buffer")[0].split()[:-1] for line in head.splitlines() if "[[buffer" in line]
    arguments = []
    for index, words in enumerate(kinds):
        star = " ".join(word for word in words if word not in ("device", "constant"))
        assert star.endswith("*")
        arguments.append(f"({star})buffers[{index}]")
    arguments += [f"SHIM_{name}" for name, _ in attributes(launch)]
    return f"""#include "{SHIM.name}"
{header}{head}{body}
}}
static void **buffers;
static void call() {{ tested({", ".join(arguments)}); }}
extern "C" int metal_launch(void **given, const size_t *sizes, int inputs, int all, const uint *grid, const uint *group,
                            int backwards) {{
    shim::Guarded *guarded[32];
    void *inside[32];
    for (int n = 0; n < all; n++) {{
        guarded[n] = new shim::Guarded(sizes[n]);
        inside[n] = guarded[n]->data;
        if (n < inputs) {{
            memcpy(inside[n], given[n], sizes[n]);
        }}
    }}
    buffers = inside;
    const int failure = shim::run_grid(call, grid, group, backwards);
    for (int n = 0; n < all; n++) {{
        if (n >= inputs) {{
            memcpy(given[n], inside[n], sizes[n]);
        }}
        delete guarded[n];
    }}
    return failure;
}}
"""


_FOLDER = tempfile.TemporaryDirectory(prefix="bireme-metal-")
_LIBRARIES: dict[str, ctypes.CDLL] = {}


FLAGS = ("-std=c++17", "-O1", "-w", "-fPIC", "-ffp-contract=off", "-fno-math-errno")


def _compile(*arguments: str) -> None:
    assert COMPILER is not None
    done = subprocess.run([COMPILER, *FLAGS, *arguments], capture_output=True, text=True, cwd=_FOLDER.name)
    assert done.returncode == 0, done.stderr


def _compiled(program: str) -> ctypes.CDLL:
    key = hashlib.sha256(program.encode()).hexdigest()[:24]
    if key not in _LIBRARIES:
        folder = Path(_FOLDER.name)
        if not _LIBRARIES:  # parsed once for all kernels
            (folder / SHIM.name).write_text(SHIM.read_text())
            _compile("-x", "c++-header", SHIM.name, "-o", f"{SHIM.name}.gch")
        (folder / f"{key}.cpp").write_text(program)
        _compile("-shared", f"{key}.cpp", "-o", f"{key}.so")
        _LIBRARIES[key] = ctypes.CDLL(str(folder / f"{key}.so"))
    return _LIBRARIES[key]
