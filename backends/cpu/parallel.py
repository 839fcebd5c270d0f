"""``parallel_for`` for numba kernels, on the pool of ``threads.py``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from .threads import RUN_SYMBOL, pool

pool()  # registers RUN_SYMBOL, which compiled or cached kernels link against


def _outline(context: Any, builder: Any, body: Any, signature: Any, args_type: Any) -> Any:
    """A C function ``void (void *args, int64 start, int64 end)`` that calls ``body(start, end, *args)``."""
    pointer, int64 = ir.PointerType(), ir.IntType(64)
    name = f"task.{body.dispatcher.py_func.__qualname__}.{len(builder.module.functions)}"
    function = ir.Function(builder.module, ir.FunctionType(ir.VoidType(), [pointer, int64, int64]), name=name)
    function.linkage = "internal"
    inner = ir.IRBuilder(function.append_basic_block())
    data, start, end = function.args
    values = inner.load(data, typ=context.get_value_type(args_type))
    unpacked = [inner.extract_value(values, i) for i in range(len(args_type))]
    compiled = body.dispatcher.get_compile_result(signature)
    context.active_code_library.add_linking_library(compiled.library)
    context.call_internal_no_propagate(inner, compiled.fndesc, signature, [start, end, *unpacked])
    inner.ret_void()
    return function


@intrinsic
def parallel_for(
    typingctx: Any, body: Any, items: Any, grain: Any, args: Any
) -> tuple[Any, Callable[[Any, Any, Any, Any], Any]]:
    """``body(start, end, *args)`` over ``range(items)`` in chunks of ``grain``, on all threads of the pool.

    For use inside ``@njit(nogil=True)`` code. ``body`` is an ``@njit`` function that returns nothing and raises
    nothing (an exception in it is lost); ``args`` is a tuple, arrays in it are shared. What ``body`` writes for an item
    must not depend on the chunk it came in. About a microsecond when helpers are awake; nested calls run in the
    calling thread.
    """
    call = typingctx.resolve_function_type(body, (types.int64, types.int64, *args.types), {})
    if call is None or call.return_type != types.none:
        raise TypeError("parallel_for: the body must take (start, end, *args) and return nothing")

    def codegen(context: Any, builder: Any, _: Any, values: Any) -> Any:
        task = _outline(context, builder, body, call, args)
        with builder.goto_entry_block():  # once, however often the call is reached
            data = builder.alloca(values[3].type)
        builder.store(values[3], data)
        pointer, int64 = ir.PointerType(), ir.IntType(64)
        run_type = ir.FunctionType(ir.VoidType(), [pointer, pointer, int64, int64])
        run = builder.module.globals.get(RUN_SYMBOL) or ir.Function(builder.module, run_type, RUN_SYMBOL)
        builder.call(run, [task, data, values[1], values[2]])
        return context.get_dummy_value()

    return types.none(body, types.int64, types.int64, args), codegen
