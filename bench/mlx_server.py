"""mlx-lm's server with the BLAS that ours uses: ``python -m bireme.bench.mlx_server``; options are its own."""

from __future__ import annotations

import importlib

from ..backends.mlx import library


def main() -> None:
    """MLX is loaded already, behind OpenBLAS on Linux; from here on it is mlx-lm's own program."""
    if library.BLAS_PROBLEM is not None:
        print(library.BLAS_PROBLEM, flush=True)
    importlib.import_module("mlx_lm.server").main()


if __name__ == "__main__":
    main()
