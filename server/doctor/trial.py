"""One library tried in a process of its own, so that one that crashes or hangs takes nothing with it.

``python -m bireme.server.doctor.trial NAME`` prints one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from typing import Any

#: How long one may take, in seconds: a first import from a slow disk takes long.
_LIMIT_S = 120


def _torch() -> dict[str, Any]:
    import torch

    return {"cuda": torch.version.cuda}


def _numba() -> dict[str, Any]:
    from ...backends.cpu.jit import target
    from ...backends.cpu.qkernel import choose_dot

    name, features = target()
    return {"cpu": name, "features": sorted(features), "dot": choose_dot(features)}


def _mlx() -> dict[str, Any]:
    from ...backends.mlx.library import BLAS_PROBLEM, mx

    mx.eval(mx.ones((2, 2)) @ mx.ones((2, 2)))
    info = mx.device_info() if mx.metal.is_available() else {}
    return {"working_set": info.get("max_recommended_working_set_size"), "blas": BLAS_PROBLEM}


def _triton() -> dict[str, Any]:
    importlib.import_module("triton")
    return {}


def _device() -> dict[str, Any]:
    from ...backends.select import DEVICES, DeviceUnavailableError, resolve_device

    problems: dict[str, str | None] = {}
    for device in DEVICES[1:]:
        try:
            resolve_device(device)
            problems[device] = None
        except DeviceUnavailableError as error:
            problems[device] = str(error).partition(": ")[2]
    return {"chosen": resolve_device(), "problems": problems}


TRIALS = {"torch": _torch, "numba": _numba, "mlx": _mlx, "triton": _triton, "device": _device}


class Trial:
    """Starts at once; ``result`` waits for it. So several run side by side."""

    def __init__(self, name: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "bireme.server.doctor.trial", name],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def result(self) -> tuple[dict[str, Any], str | None]:
        """What was found, and why it could not be, or None."""
        try:
            out, errors = self._process.communicate(timeout=_LIMIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return {}, f"it did not end within {_LIMIT_S} s"
        code = self._process.returncode
        if code < 0:
            return {}, f"it ended with signal {-code}"
        try:
            found = json.loads(out.splitlines()[-1])
        except (IndexError, ValueError):
            last = errors.strip().splitlines()
            return {}, last[-1] if last else f"it ended with exit code {code}"
        return found["facts"], found["problem"]


def main() -> None:
    try:
        facts, problem = TRIALS[sys.argv[1]](), None
    except Exception as error:  # whatever it is, it is what the user has to know
        facts, problem = {}, f"{type(error).__name__}: {error}"
    print(json.dumps({"facts": facts, "problem": problem}))


if __name__ == "__main__":
    main()
