"""A small vocabulary for writing kernels as LLVM IR."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

I1, I8, I16, I32, I64 = (ir.IntType(n) for n in (1, 8, 16, 32, 64))
F32, PTR, VOID = ir.FloatType(), ir.PointerType(), ir.VoidType()


def splat(value: Any, kind: ir.VectorType) -> ir.Constant:
    return ir.Constant(kind, [value] * kind.count)


class Emitter(ir.IRBuilder):  # type: ignore[misc]
    """An IRBuilder with the few shapes of code that kernels are made of."""

    def intrinsic(self, name: str, result: ir.Type, *args: ir.Value) -> ir.Value:
        """Call LLVM's ``name``."""
        function = self.module.globals.get(name)
        if function is None:
            function = ir.Function(self.module, ir.FunctionType(result, [a.type for a in args]), name=name)
        return self.call(function, args)

    def slot(self, kind: ir.Type) -> ir.Value:
        """A local variable's address."""
        return self.at(self.alloca(kind), 0)

    def at(self, base: ir.Value, offset: int | ir.Value) -> ir.Value:
        """The address ``offset`` bytes past ``base``."""
        index = ir.Constant(I64, offset) if isinstance(offset, int) else offset
        where = self.gep(base, [index], source_etype=I8)
        where.type = PTR  # llvmlite gives an alloca, and what is derived from it, a typed pointer
        return where

    def read(self, base: ir.Value, offset: int, kind: ir.Type) -> ir.Value:
        """Load ``kind`` from ``offset`` bytes past ``base``. Weights are 16-byte aligned, scalars by their size."""
        return self.load(self.at(base, offset), typ=kind, align=16 if isinstance(kind, ir.VectorType) else 4)

    def everywhere(self, base: ir.Value, offset: int, kind: ir.VectorType) -> ir.Value:
        """The scalar at ``offset`` in every lane of ``kind``."""
        one = self.insert_element(ir.Constant(kind, ir.Undefined), self.read(base, offset, kind.element), I32(0))
        return self.shuffle_vector(one, ir.Constant(kind, ir.Undefined), splat(0, ir.VectorType(I32, kind.count)))

    @contextmanager
    def loop(self, start: ir.Value, stop: ir.Value, step: int = 1) -> Iterator[ir.Value]:
        """``for i in range(start, stop, step)``, i being yielded."""
        before = self.block
        head, body, done = (self.append_basic_block(name) for name in ("head", "body", "done"))
        self.branch(head)
        self.position_at_end(head)
        index = self.phi(I64)
        index.add_incoming(start, before)
        self.cbranch(self.icmp_signed("<", index, stop), body, done)
        self.position_at_end(body)
        yield index
        index.add_incoming(self.add(index, I64(step)), self.block)
        self.branch(head)
        self.position_at_end(done)
