"""What follows from what a machine has: each finding with what to do about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..sizes import size_text
from .machine import Folder, Gpu, Library, Machine

OK, WARN, FAIL = "ok", "warning", "problem"

_PYTHONS = ((3, 11), (3, 13))
_LEAST_MEMORY, _LEAST_DISK, _LEAST_FILES = 1 << 30, 5 << 30, 1024
#: What Triton and today's PyTorch still know, and what the kernels were compiled for.
_LEAST_CAPABILITY, _MADE_FOR = 7.5, 8.0
_NEEDED = {"mlx": ("mlx",), "cuda": ("torch", "triton"), "cpu": ("torch", "numba")}


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the answer."""

    name: str
    status: str  # OK, WARN: it serves, but; FAIL: it can't serve
    text: str
    fix: str = ""


def check(machine: Machine) -> list[Finding]:
    """All findings, the device first among what matters. Any FAIL means that this machine can't serve as it is."""
    parts = (_python, _device, _libraries, _gpus, _apple, _cpu, _memory, _folders, _port, _files)
    return [finding for part in parts for finding in part(machine)]


def _python(machine: Machine) -> Iterator[Finding]:
    version = ".".join(map(str, machine.python))
    text = f"Bireme {machine.version}, Python {version} ({machine.executable}), {machine.system} {machine.arch}"
    least, most = (".".join(map(str, one)) for one in _PYTHONS)
    if not _PYTHONS[0] <= machine.python[:2] <= _PYTHONS[1]:
        yield Finding("python", FAIL, text, f"use Python {least} to {most}")
    elif machine.apple and machine.apple.translated:
        fix = "install a Python for Apple silicon (arm64) and make the environment anew with it"
        yield Finding("python", FAIL, f"{text}: an Intel Python, run by Rosetta", fix)
    else:
        yield Finding("python", OK, text)


def _device(machine: Machine) -> Iterator[Finding]:
    if machine.chosen is None:
        why = machine.notes.get("device", "")
        yield Finding("device", FAIL, f"no device could be chosen: {why}", "install bireme[cpu], [cuda] or [mlx]")
        return
    broken = [name for name in _needed(machine) if not machine.libraries.get(name, Library()).works]
    others = [f"not {name}: {why}" for name, why in machine.problems.items() if why and name != machine.chosen]
    text = f"--device auto is {machine.chosen}: {_why(machine)}"
    text += "".join(f"; {other}" for other in others)
    if broken:
        fix = f"pip install 'bireme[{machine.chosen}]' brings {', '.join(broken)}"
        yield Finding("device", FAIL, f"{text}; it needs {', '.join(broken)}", fix)
    else:
        yield Finding("device", OK, text)


def _needed(machine: Machine) -> tuple[str, ...]:
    names = _NEEDED[machine.chosen or "cpu"]
    return tuple(name for name in names if name != "triton" or machine.system == "Linux")


def _why(machine: Machine) -> str:
    return {
        "mlx": "this is Apple silicon and MLX is here",
        "cuda": "PyTorch sees an NVIDIA GPU",
        "cpu": "neither Apple silicon with MLX nor an NVIDIA GPU that PyTorch sees",
    }[str(machine.chosen)]


def _libraries(machine: Machine) -> Iterator[Finding]:
    for name, library in machine.libraries.items():
        needed = name in _needed(machine)
        if library.version is None:
            if not needed:  # what is needed and missing is said of the device
                yield Finding(name, OK, "not installed, and not needed for this device")
        elif name == "mlx" and library.works and "blas" in machine.notes:
            what, _, fix = machine.notes["blas"].partition(": ")
            yield Finding(name, WARN, f"{library.version}; {what}", fix)
        elif library.problem is None:
            yield Finding(name, OK, library.version)
        else:
            text = f"{library.version} can't be used: {library.problem}"
            yield Finding(name, FAIL if needed else WARN, text, _library_fix(name, library.problem))


def _library_fix(name: str, problem: str) -> str:
    if "signal 4" in problem:
        return f"this build of {name} was made for a newer processor; install an older release of it"
    return f"pip install --force-reinstall {name}"


def _gpus(machine: Machine) -> Iterator[Finding]:
    for gpu in machine.gpus:
        yield _gpu(gpu)
    if machine.gpus and machine.chosen == "cpu":
        if machine.torch_cuda is None:
            fix = "pip install --force-reinstall torch (PyPI's build, not the CPU one), or install bireme[cuda]"
            yield Finding("gpu", WARN, "an NVIDIA GPU is here, but this PyTorch was built without CUDA", fix)
        else:
            fix = "update the driver, and check CUDA_VISIBLE_DEVICES; in a container, give it the GPU (--gpus all)"
            text = f"an NVIDIA GPU is here, but PyTorch (built for CUDA {machine.torch_cuda}) sees none"
            yield Finding("gpu", WARN, text, fix)


def _gpu(gpu: Gpu) -> Finding:
    capability = "unknown" if gpu.capability is None else f"{gpu.capability:.1f}"
    text = (
        f"{gpu.name}, {size_text(gpu.free)} of {size_text(gpu.total)} free, driver {gpu.driver}, "
        f"compute capability {capability}"
    )
    if gpu.capability is not None and gpu.capability < _LEAST_CAPABILITY:
        return Finding("gpu", WARN, f"{text}: older than Triton and PyTorch support", "use --device cpu")
    if gpu.capability is not None and gpu.capability < _MADE_FOR:
        return Finding("gpu", WARN, f"{text}: the kernels are compiled and checked for 8.0 and later", "")
    if gpu.total and gpu.free < gpu.total / 2:
        return Finding("gpu", WARN, f"{text}: something else uses it", "nvidia-smi shows what; stop it")
    return Finding("gpu", OK, text)


def _apple(machine: Machine) -> Iterator[Finding]:
    if machine.apple is None:
        return
    text = machine.apple.chip
    if machine.apple.working_set is None:
        yield Finding("chip", OK, text)
        return
    size = size_text(machine.apple.working_set)
    more = "more: sudo sysctl iogpu.wired_limit_mb=MB, until the next start"
    yield Finding("chip", OK, f"{text}; Metal recommends {size} at most for models and caches ({more})")


def _cpu(machine: Machine) -> Iterator[Finding]:
    cpu = machine.cpu
    known = [name for name in ("avx2", "avxvnni", "avx512f", "avx512vnni", "neon", "dotprod") if name in cpu.features]
    text = f"{cpu.name or 'unknown'}, {cpu.cores} core{'' if cpu.cores == 1 else 's'} for this process"
    text += f", {' '.join(known)}" if known else ""
    if cpu.dot is None or machine.chosen != "cpu":
        yield Finding("cpu", OK, text)
    elif cpu.dot == "plain":
        fix = "a virtual machine may hide what the processor has: look for its CPU type ('host')"
        slow = "no AVX2" if machine.arch in ("x86_64", "AMD64") else "no fast inner products for this kind of processor"
        yield Finding("cpu", WARN, f"{text}: {slow}, so the kernels are slow here", fix)
    else:
        yield Finding("cpu", OK, f"{text}; products by {cpu.dot}")


def _memory(machine: Machine) -> Iterator[Finding]:
    text = f"{size_text(machine.memory_free)} of {size_text(machine.memory_total)} free"
    if machine.memory_free < _LEAST_MEMORY:
        yield Finding("memory", WARN, text, "close something, or give the container more")
    else:
        yield Finding("memory", OK, text)


def _folders(machine: Machine) -> Iterator[Finding]:
    for folder in machine.folders:
        yield _folder(folder)


def _folder(folder: Folder) -> Finding:
    text = f"{folder.path} ({folder.use}), {size_text(folder.free)} free"
    variable = "HF_HUB_CACHE" if "Hub" in folder.use else "BIREME_CACHE"
    if folder.problem:
        return Finding("folder", WARN, f"{text}: {folder.problem}", f"set {variable} to a folder that can be")
    if folder.free < _LEAST_DISK:
        return Finding("folder", WARN, text, f"make room ('bireme models'), or set {variable} to a larger disk")
    return Finding("folder", OK, text)


def _port(machine: Machine) -> Iterator[Finding]:
    port = machine.port
    if port.taken is None:
        yield Finding("port", OK, f"{port.number} on {port.host} is free")
    elif port.bireme:
        yield Finding("port", OK, f"{port.number} on {port.host}: a Bireme server is there ({port.bireme})")
    else:
        yield Finding("port", WARN, port.taken, "stop what uses it, or choose another: --port 8001")


def _files(machine: Machine) -> Iterator[Finding]:
    count = machine.open_files
    if 0 < count < _LEAST_FILES:
        text = f"a process may have {count} open files here: so many clients at once, less some"
        yield Finding("open files", WARN, text, "ulimit -n 65536 (systemd: LimitNOFILE=)")
