"""LLVM IR text to machine code for this CPU, kept on disk between runs."""

from __future__ import annotations

import ctypes
import hashlib
from functools import cache
from pathlib import Path

import llvmlite.binding as llvm

from ...models.cache import atomic, cache_folder


class Module:
    """Machine code in memory; keep it while an address of it is in use."""

    def __init__(self, code: bytes) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine(2))
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """The entry of function ``name``."""
        return int(self._engine.get_function_address(name))

    def call(self, name: str) -> None:
        """Call a function without arguments or result."""
        ctypes.CFUNCTYPE(None)(self.address(name))()


@cache
def target() -> tuple[str, frozenset[str]]:
    """The host CPU's LLVM name and the features it has (``avx2``, ``avxvnni``, ...)."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm.get_host_cpu_name(), frozenset(k for k, on in llvm.get_host_cpu_features().items() if on)


def add_symbol(name: str, address: int) -> None:
    """Let code compiled later (here or by numba) call ``address`` by ``name``."""
    llvm.add_symbol(name, address)


def compile_ir(text: str) -> Module:
    """The code of one module of IR, from the cache if it was made before on such a CPU.

    Floating point stays as written: no reassociation, no contraction.
    """
    cpu, features = target()
    maker = (llvm.llvm_version_info, cpu, sorted(features))
    path = cache_folder() / "jit" / f"{hashlib.sha256(repr((maker, text)).encode()).hexdigest()[:32]}.o"
    code = _read(path)
    if code is None:
        code = _compile(text)
        _write(path, code)
    return Module(code)


def _machine(opt: int) -> llvm.TargetMachine:
    cpu, features = target()
    flags = ",".join(f"+{feature}" for feature in sorted(features))
    return llvm.Target.from_default_triple().create_target_machine(cpu=cpu, features=flags, opt=opt, jit=True)


def _compile(text: str) -> bytes:
    """An object file."""
    machine = _machine(2)
    module = llvm.parse_assembly(text)
    module.verify()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=2))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def _read(path: Path) -> bytes | None:
    """What ``_write`` wrote: a SHA-256 and the code. None unless it is there and whole."""
    try:
        stored = path.read_bytes()
    except OSError:
        return None
    return stored[32:] if hashlib.sha256(stored[32:]).digest() == stored[:32] else None


def _write(path: Path, code: bytes) -> None:
    """Best effort: without a writable cache every start compiles."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic(path) as part:
            part.write_bytes(hashlib.sha256(code).digest() + code)
    except OSError:
        return
