"""Where this package gets MLX from: ``from .library import mx``, so that a fast BLAS is always there before it.

MLX's wheel for Linux CPUs carries a reference BLAS, some seventy times slower in float32 than OpenBLAS. A system
OpenBLAS whose symbols are global when MLX is loaded takes its place.
"""

from __future__ import annotations

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
    for name in _OPENBLAS:
        try:
            ctypes.CDLL(name, mode=ctypes.RTLD_GLOBAL)
        except OSError:
            continue
        return None
    return "no OpenBLAS found, MLX's own BLAS is some seventy times slower: apt install libopenblas0-pthread"


#: What ``load_openblas`` found amiss when MLX was loaded.
BLAS_PROBLEM = load_openblas()
mx: Any = importlib.import_module("mlx.core")


def on_metal() -> bool:
    """Whether MLX runs on an Apple GPU here."""
    return bool(mx.metal.is_available()) and mx.default_device() == mx.Device(mx.gpu)
