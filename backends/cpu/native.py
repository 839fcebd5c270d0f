"""How numba code, machine code of our own and torch's memory reach each other: by plain addresses."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from llvmlite import ir
from numba import types as numba_types
from numba.extending import intrinsic as numba_intrinsic

from . import jit
from .simd import I64, POINTER, WIDTH, Emitter

# numba's own annotations are partial; kernels are checked by tests.
types: Any = numba_types
intrinsic: Callable[[Any], Any] = numba_intrinsic

PREFIX = "bireme_"
#: Writes one function's code: ``body(emitter, *arguments)``.
Body = Callable[..., None]

_loaded: list[jit.Module] = []  # never unloaded: cached numba code holds addresses into it


def compile_bodies(bodies: Mapping[str, tuple[int, Body]], width: int = WIDTH) -> dict[str, int]:
    """Machine code of functions of int64 arguments without a result: their addresses, for ``invoke``.

    Args:
        bodies: by name, the number of arguments, and what writes the code.
        width: of the vectors it is written with.
    """
    module = ir.Module("simd")
    for name, (count, body) in bodies.items():
        function = ir.Function(module, ir.FunctionType(ir.VoidType(), [I64] * count), name=PREFIX + name)
        builder = ir.IRBuilder(function.append_basic_block("entry"))
        body(Emitter(builder, width), *function.args)
        builder.ret_void()
    compiled = jit.compile_ir(str(module))
    _loaded.append(compiled)
    return {name: compiled.address(PREFIX + name) for name in bodies}


def link(bodies: Mapping[str, tuple[int, Body]], width: int = WIDTH) -> dict[str, Any]:
    """``compile_bodies``, for calls by name from numba code: no caller compiles them again."""
    for name, address in compile_bodies(bodies, width).items():
        jit.add_symbol(PREFIX + name, address)
    return {n: types.ExternalFunction(PREFIX + n, types.void(*[types.int64] * c)) for n, (c, _) in bodies.items()}


@intrinsic
def invoke(_: Any, address: Any, arguments: Any) -> tuple[Any, Callable[..., Any]]:
    """Call the function at ``address`` with ``arguments``, a tuple of integers."""
    given = list(arguments)

    def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
        passed = [builder.extract_value(values[1], i) for i in range(len(given))]
        passed = [context.cast(builder, each, kind, types.int64) for each, kind in zip(passed, given, strict=True)]
        kind = ir.FunctionType(ir.VoidType(), [I64] * len(given))
        builder.call(builder.inttoptr(values[0], kind.as_pointer()), passed)
        return context.get_dummy_value()

    return types.none(types.int64, arguments), codegen


@intrinsic
def float_pointer(_: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """An address as a pointer, for ``numba.carray``."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.float32)(types.int64), codegen


@intrinsic
def int_pointer(_: Any, address: Any) -> tuple[Any, Callable[..., Any]]:
    """An address as a pointer to int64, for ``numba.carray``."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

    return types.CPointer(types.int64)(types.int64), codegen


@intrinsic
def atomic_add(_: Any, address: Any, value: Any) -> tuple[Any, Callable[..., Any]]:
    """Add to the int64 at ``address``, for all threads to see; returns what it was."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.atomic_rmw("add", builder.inttoptr(values[0], POINTER), values[1], "seq_cst")

    return types.int64(types.int64, types.int64), codegen
