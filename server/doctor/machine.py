"""What was found on a machine. Plain records, so that what is concluded from them can be tested without the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Library:
    """An optional package. ``problem``: why it can't be imported; None: it can, or isn't there at all."""

    version: str | None = None  # None: not installed
    problem: str | None = None

    @property
    def works(self) -> bool:
        return self.version is not None and self.problem is None


@dataclass(frozen=True, slots=True)
class Gpu:
    """As the NVIDIA driver lists it. Sizes are bytes."""

    name: str
    driver: str
    total: int
    free: int
    capability: float | None  # 8.0, 9.0, ...; None: an old driver doesn't say


@dataclass(frozen=True, slots=True)
class Cpu:
    name: str = ""
    cores: int = 1  # that this process may use
    features: frozenset[str] = frozenset()  # by LLVM's names; empty: not known
    dot: str | None = None  # the kernels' inner product: "vnni", "avx2" or "plain"; None: not known


@dataclass(frozen=True, slots=True)
class Apple:
    """Apple silicon. Sizes are bytes."""

    chip: str
    working_set: int | None  # what Metal recommends to keep resident; None: not known
    translated: bool = False  # this Python is an Intel one, run by Rosetta


@dataclass(frozen=True, slots=True)
class Folder:
    """A folder that is written to. ``problem``: why it can't be."""

    use: str
    path: str
    free: int  # bytes of its disk
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Port:
    """Who has the port. ``taken``: why it can't be had; ``bireme``: a server of ours answers there."""

    host: str
    number: int
    taken: str | None = None
    bireme: str | None = None  # its /health status


@dataclass(frozen=True, slots=True)
class Machine:
    """All of it."""

    version: str  # Bireme's
    system: str  # Linux, Darwin, ...
    arch: str  # x86_64, arm64, aarch64
    python: tuple[int, int, int]
    executable: str
    libraries: Mapping[str, Library]  # torch, triton, numba, mlx
    cpu: Cpu
    memory_total: int
    memory_free: int  # within the machine's and the container's limits
    chosen: str | None  # what --device auto means here; None: that could not be found out
    problems: Mapping[str, str | None]  # per device, why it can't be used
    folders: tuple[Folder, ...]
    port: Port
    open_files: int  # that one process may have
    gpus: tuple[Gpu, ...] = ()
    apple: Apple | None = None
    torch_cuda: str | None = None  # the CUDA version that torch was built for
    notes: Mapping[str, str] = field(default_factory=dict)  # what could not be looked at, and why
