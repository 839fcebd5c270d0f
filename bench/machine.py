"""What a figure was measured on: without it a number means nothing."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

_KEY = "-key"  # how options end whose values are secrets
PACKAGES = ("bireme", "torch", "numba", "numpy", "xllamacpp", "mlx", "triton", "transformers")


def describe() -> dict[str, Any]:
    """The machine, the versions and the command of this run."""
    return {
        "cpu": _cpu_name(),
        "cores": psutil.cpu_count(logical=False),
        "logical_cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "packages": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "command": _command(),
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "load_average": round(os.getloadavg()[0], 2),
    }


def line(machine: dict[str, Any]) -> str:
    """The machine in one line of text."""
    packages = ", ".join(f"{name} {version}" for name, version in machine["packages"].items())
    return (
        f"{machine['cpu']}, {machine['logical_cores']} logical cores, {machine['memory_gib']} GiB, "
        f"{machine['system']}; Python {machine['python']}, {packages}; commit {machine['commit']}; "
        f"`{machine['command']}`; {machine['date']}; load average at the start {machine['load_average']}"
    )


def _cpu_name() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for text in cpuinfo.read_text(encoding="utf-8").splitlines():
            if text.startswith("model name"):
                return text.partition(":")[2].strip()
    if platform.system() == "Darwin":
        return _output(["sysctl", "-n", "machdep.cpu.brand_string"]) or platform.machine()
    return platform.processor() or platform.machine()


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str:
    root = Path(__file__).resolve().parents[1]
    commit = _output(["git", "-C", str(root), "rev-parse", "--short", "HEAD"])
    changed = _output(["git", "-C", str(root), "status", "--porcelain", "--untracked-files=no"])
    return f"{commit or 'unknown'}{' with changes' if changed else ''}"


def _command() -> str:
    """How this process was started: a module by ``python -m``, or a script by its name. Without keys, since it is
    written into records and reports, which are sent around."""
    spec = getattr(sys.modules.get("__main__"), "__spec__", None)
    start = ["python", "-m", spec.name] if spec else [Path(sys.argv[0]).name]
    return shlex.join([*start, *without_keys(sys.argv[1:])])


def without_keys(arguments: Sequence[str]) -> list[str]:
    """``arguments`` with ``...`` for the value of every option that is called a key."""
    found: list[str] = []
    for before, argument in zip(["", *arguments], arguments, strict=False):
        name, equals, _ = argument.partition("=")
        if equals and name.startswith("--") and name.endswith(_KEY):
            found.append(f"{name}=...")
        else:
            found.append("..." if before.startswith("--") and before.endswith(_KEY) else argument)
    return found


def _output(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""
