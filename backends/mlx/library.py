"""Where this package gets MLX from: ``from .library import mx``, so that a fast BLAS is always there before it.

MLX's wheel for Linux CPUs carries a reference BLAS, some seventy times slower in float32 than OpenBLAS. A system
OpenBLAS whose symbols are global when MLX is loaded takes its place.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib
import platform
import sys
from typing import Any

#: An array, a module or a stream of MLX: its types are not checked, whether or not MLX is installed.
Array = Any

_OPENBLAS = ("libopenblas.so.0", "libopenblasp.so.0")


@functools.cache
def load_openblas() -> str | None:
    """Load a system OpenBLAS for MLX to use, if there is one; call it before MLX is imported.

    Returns:
        None where all is well (also where none is needed: macOS), else what is amiss, for the load summary.
    """
    if platform.system() != "Linux":
        return None
    if "mlx.core" in sys.modules:
        return "MLX was imported before its BLAS could be chosen: matrix products may be very slow"
    if _openblas() is not None:
        return None
    return "no OpenBLAS found, MLX's own BLAS is some seventy times slower: apt install libopenblas0-pthread"


@functools.cache
def _openblas() -> ctypes.CDLL | None:
    for name in _OPENBLAS:
        with contextlib.suppress(OSError):
            return ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
    return None


@functools.cache
def openblas_core() -> str:
    """The processor whose kernels OpenBLAS takes here; "" without OpenBLAS."""
    library = _openblas() if platform.system() == "Linux" else None
    if library is None:
        return ""
    library.openblas_get_corename.restype = ctypes.c_char_p
    name: bytes = library.openblas_get_corename()
    return name.decode()


#: What ``load_openblas`` found amiss when MLX was loaded.
BLAS_PROBLEM = load_openblas()
mx: Any = importlib.import_module("mlx.core")


def on_metal() -> bool:
    """Whether MLX runs on an Apple GPU here."""
    return bool(mx.metal.is_available()) and mx.default_device() == mx.Device(mx.gpu)
