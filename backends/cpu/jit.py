"""LLVM IR text to machine code for this CPU."""

from __future__ import annotations

import ctypes
from functools import cache

import llvmlite.binding as llvm


class Module:
    """Compiled IR; owns the code, so keep it while an address of it is in use."""

    def __init__(self, engine: llvm.ExecutionEngine) -> None:
        self._engine = engine

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


def compile_ir(text: str, name: str, opt: int = 2) -> Module:
    """Compile one module of IR. Floating point stays as written: no reassociation, no contraction."""
    cpu, features = target()
    machine = llvm.Target.from_default_triple().create_target_machine(
        cpu=cpu, features=",".join(f"+{f}" for f in sorted(features)), opt=opt
    )
    module = llvm.parse_assembly(text)
    module.name = name
    module.verify()
    options = llvm.create_pipeline_tuning_options(speed_level=opt)
    builder = llvm.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)
    engine = llvm.create_mcjit_compiler(module, machine)
    engine.finalize_object()
    return Module(engine)
