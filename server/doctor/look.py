"""Look at this machine."""

from __future__ import annotations

import importlib.metadata
import platform
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import psutil

from ... import __version__
from ...backends.host_memory import free_bytes
from ...models.cache import cache_folder
from ...models.hub_room import free_disk
from ...models.stored import hub_folder
from ..listen import ListenError, bind
from ..terminal.connection import Connection, ServerError
from .machine import Apple, Cpu, Folder, Gpu, Library, Machine, Port
from .trial import Trial

LIBRARIES = ("torch", "triton", "numba", "mlx")
_QUERY = "name,driver_version,memory.total,memory.free,compute_cap"
_PROBE_S = 1.0


def look(host: str, port: int) -> Machine:
    """All that ``check`` wants to know. Takes some seconds: each library is imported once."""
    versions = {name: _version(name) for name in LIBRARIES}
    trials = {name: Trial(name) for name in ("device", *(name for name in LIBRARIES if versions[name]))}
    found = {name: trial.result() for name, trial in trials.items()}
    facts: dict[str, dict[str, Any]] = {name: one for name, (one, _) in found.items()}
    problems = {name: problem for name, (_, problem) in found.items()}
    device, blas = facts["device"], facts.get("mlx", {}).get("blas")
    notes = {"device": problems["device"], "blas": blas}
    return Machine(
        version=__version__,
        system=platform.system(),
        arch=platform.machine(),
        python=sys.version_info[:3],
        executable=sys.executable,
        libraries={name: Library(versions[name], problems.get(name)) for name in LIBRARIES},
        cpu=_cpu(facts.get("numba", {})),
        memory_total=psutil.virtual_memory().total,
        memory_free=free_bytes(),
        chosen=device.get("chosen"),
        problems=device.get("problems", {}),
        folders=(_folder("models from the Hub", hub_folder()), _folder("Bireme's own files", cache_folder())),
        port=_port(host, port),
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        gpus=parse_gpus(_said("nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits")),
        apple=_apple(facts.get("mlx", {})),
        torch_cuda=facts.get("torch", {}).get("cuda"),
        notes={name: note for name, note in notes.items() if note},
    )


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _said(*command: str) -> str:
    """What a program prints; nothing where it isn't there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


def parse_gpus(text: str) -> tuple[Gpu, ...]:
    """The GPUs of nvidia-smi's lines of ``_QUERY``; memory there is in MiB."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == len(_QUERY.split(",")):
            name, driver, total, free, capability = cells
            found.append(Gpu(name, driver, _mib(total), _mib(free), _number(capability)))
    return tuple(found)


def _mib(text: str) -> int:
    return int((_number(text) or 0) * 2**20)


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:  # [N/A]
        return None


def _cpu(facts: dict[str, Any]) -> Cpu:
    from ...backends.select import usable_cores

    name = _said("sysctl", "-n", "machdep.cpu.brand_string").strip() or _linux_cpu() or platform.processor()
    return Cpu(name, usable_cores(), frozenset(facts.get("features", ())), facts.get("dot"))


def _linux_cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _apple(facts: dict[str, Any]) -> Apple | None:
    if platform.system() != "Darwin":
        return None
    translated = _said("sysctl", "-n", "sysctl.proc_translated").strip() == "1"
    if platform.machine() != "arm64" and not translated:
        return None
    return Apple(_said("sysctl", "-n", "machdep.cpu.brand_string").strip(), facts.get("working_set"), translated)


def _folder(use: str, path: Path) -> Folder:
    """Tries to write where the folder is, or would be made."""
    there = next(place for place in (path, *path.absolute().parents) if place.exists())
    problem = None
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        problem = f"{there} can't be written to ({error.strerror})"
    return Folder(use, str(path), free_disk(path), problem)


def _port(host: str, number: int) -> Port:
    try:
        bind(host, number).close()
        return Port(host, number)
    except ListenError as error:
        return Port(host, number, str(error), _bireme_at(host, number))


def _bireme_at(host: str, number: int) -> str | None:
    """The state of a server of ours there, if there is one."""
    name = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, f"[{host}]" if ":" in host else host)
    try:
        _, body = Connection(f"http://{name}:{number}", quick=_PROBE_S).health()
    except (ServerError, ValueError):
        return None
    return str(body["status"]) if "status" in body else None
