"""Vectors of float32 in numba code: LLVM IR pieces from which inner loops are put together.

LLVM maps a vector of eight to one AVX register or two NEON ones, one of sixteen to an AVX-512 register. Addresses are
plain integers, as ``Tensor.data_ptr`` gives them: they cross into numba far faster than arrays do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numba
from llvmlite import ir
from numba.core import cgutils as numba_cgutils

from ...models.cache import cache_folder
from . import parallel

WIDTH = 8

# numba's own annotations are partial; kernels are checked by tests.
cgutils: Any = numba_cgutils
settings: Any = numba.config
parallel_for: Callable[..., None] = parallel.parallel_for

F32 = ir.FloatType()
F16 = ir.HalfType()
I8 = ir.IntType(8)
I16 = ir.IntType(16)
I32 = ir.IntType(32)
I64 = ir.IntType(64)
POINTER = ir.PointerType()

#: Lower than any score: the running maximum's start, finite so that ``-inf`` minus it is still ``-inf``.
FLOOR = -1e30


@cache
def _cache_path() -> str:
    """Where numba keeps machine code: a folder per state of these sources, since it looks at one file at a time."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return str(cache_folder() / "numba" / digest.hexdigest()[:16])


def kernel(**options: Any) -> Callable[[Any], Any]:
    """``numba.njit`` without the GIL, cached on disk; additions may be reordered and fused, NaN and inf stay exact."""

    def decorate(function: Any) -> Any:
        before, settings.CACHE_DIR = settings.CACHE_DIR, _cache_path()
        try:
            return numba.njit(nogil=True, cache=True, fastmath={"reassoc", "contract"}, **options)(function)
        finally:
            settings.CACHE_DIR = before

    return decorate


class Emitter:
    """Writes vector code at an IR builder's position; its vectors have ``width`` elements."""

    def __init__(self, builder: Any, width: int = WIDTH) -> None:
        self.builder = builder
        self.width = width
        self.vector, self.ints = self.of(F32), self.of(I32)

    def of(self, kind: Any) -> Any:
        """The type of a vector of ``kind``."""
        return ir.VectorType(kind, self.width)

    def number(self, value: int) -> Any:
        return ir.Constant(I64, value)

    def pointer(self, address: Any) -> Any:
        return self.builder.inttoptr(address, POINTER)

    def offset(self, base: Any, *terms: Any, kind: Any = F32) -> Any:
        """The element (float32, or of ``kind``) at ``base`` plus the sum of ``terms`` (IR values or ints)."""
        for term in terms:
            index = self.number(term) if isinstance(term, int) else term
            base = self.builder.gep(base, [index], source_etype=kind)
        return base

    def product(self, a: Any, b: Any) -> Any:
        return self.builder.mul(a, self.number(b) if isinstance(b, int) else b)

    def load(self, pointer: Any, kind: Any = None) -> Any:
        """A vector of float32, or a ``kind``."""
        return self.builder.load(pointer, typ=kind or self.vector, align=4)

    def load_codes(self, pointer: Any) -> Any:
        """A vector of int8, as float32."""
        codes = self.builder.load(pointer, typ=self.of(I8), align=1)
        return self.builder.sitofp(self.builder.sext(codes, self.ints), self.vector)

    def prefetch(self, pointer: Any) -> None:
        """Bring the cache line at ``pointer`` near; it need not be a valid address."""
        kind = ir.FunctionType(ir.VoidType(), [POINTER, I32, I32, I32])
        function = cgutils.get_or_insert_function(self.builder.module, kind, "llvm.prefetch.p0")
        self.builder.call(function, [pointer, I32(0), I32(3), I32(1)])

    def store(self, value: Any, pointer: Any) -> None:
        self.builder.store(value, pointer, align=4)

    def splat(self, value: Any, kind: Any = None) -> Any:
        """All elements ``value``: an IR scalar, or a Python number. ``kind``: of a vector, float32 if not given."""
        kind = kind or self.vector
        if isinstance(value, int | float):
            return ir.Constant(kind, [value] * self.width)
        blank = ir.Constant(kind, ir.Undefined)
        first = self.builder.insert_element(blank, value, ir.Constant(I32, 0))
        return self.builder.shuffle_vector(first, blank, ir.Constant(self.ints, [0] * self.width))

    def variable(self, value: Any) -> Any:
        """A vector kept in a register over the loops that follow, ``value`` now."""
        slot = cgutils.alloca_once(self.builder, self.vector)
        self.builder.store(value, slot)
        return slot

    def get(self, slot: Any) -> Any:
        return self.builder.load(slot, typ=self.vector)

    def set(self, slot: Any, value: Any) -> None:
        self.builder.store(value, slot)

    def fma(self, a: Any, b: Any, c: Any) -> Any:
        kind, name = ir.FunctionType(self.vector, [self.vector] * 3), f"llvm.fmuladd.v{self.width}f32"
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, kind, name), [a, b, c])

    def maximum(self, a: Any, b: Any) -> Any:
        """The larger one; ``a`` where ``b`` is NaN."""
        return self.builder.select(self.builder.fcmp_ordered(">", b, a), b, a)

    def tree(self, terms: list[Any], combine: Callable[[Any, Any], Any]) -> Any:
        """``combine`` over eight terms in ``fold``'s order."""
        for half in (4, 2, 1):
            terms = [combine(terms[i], terms[i + half]) for i in range(half)]
        return terms[0]

    def fold(self, vector: Any, combine: Callable[[Any, Any], Any]) -> Any:
        """``combine`` over the elements of a vector of eight, in a fixed tree: a scalar."""
        blank = ir.Constant(vector.type, ir.Undefined)
        for half in (4, 2, 1):
            lanes = ir.Constant(self.ints, [(i + half) % WIDTH for i in range(WIDTH)])
            vector = combine(vector, self.builder.shuffle_vector(vector, blank, lanes))
        return self.first(vector)

    def first(self, vector: Any) -> Any:
        """Lane 0, a scalar."""
        return self.builder.extract_element(vector, ir.Constant(I32, 0))

    def transpose(self, rows: list[Any]) -> list[Any]:
        """Eight vectors as a matrix, its columns: blocks of four, two and one change places across the diagonal."""
        for size in (4, 2, 1):
            for i in range(WIDTH):
                if not i & size:
                    a, b = rows[i], rows[i + size]
                    low = [lane if not lane & size else WIDTH + lane - size for lane in range(WIDTH)]
                    high = [lane + size if not lane & size else WIDTH + lane for lane in range(WIDTH)]
                    rows[i], rows[i + size] = (
                        self.builder.shuffle_vector(a, b, ir.Constant(self.ints, m)) for m in (low, high)
                    )
        return rows

    def sum(self, vector: Any) -> Any:
        return self.fold(vector, self.builder.fadd)

    @contextmanager
    def loop(self, stop: Any, step: int = 1, start: Any = 0) -> Iterator[Any]:
        """``for index in range(start, stop, step)``."""
        first = self.number(start) if isinstance(start, int) else start
        with cgutils.for_range_slice(self.builder, first, stop, self.number(step), I64) as (index, _):
            yield index

    def exp(self, x: Any) -> Any:
        """e^x to 2 ulp, 0 below -87.3 (so for -inf), clamped above 88; NaN stays NaN.

        Cody and Waite's reduction by multiples of ln 2, a polynomial on +-ln 2 / 2, and the power of two put into the
        exponent bits (the sum with 1.5 * 2^23 rounds, and leaves the integer in the low bits: no conversion that NaN
        would make undefined).
        """
        b, splat = self.builder, self.splat
        tiny = b.fcmp_ordered("<", x, splat(-87.3))
        x = b.select(tiny, splat(-87.3), x)
        x = b.select(b.fcmp_ordered(">", x, splat(88.0)), splat(88.0), x)
        shifted = self.fma(x, splat(1.4426950408889634), splat(12582912.0))
        whole = b.fsub(shifted, splat(12582912.0))
        r = self.fma(whole, splat(-0.693359375), x)
        r = self.fma(whole, splat(2.12194440e-4), r)
        y = splat(1 / 5040)
        for coefficient in (1 / 720, 1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
            y = self.fma(y, r, splat(coefficient))
        bits = b.shl(b.bitcast(shifted, self.ints), self.splat(23, self.ints))
        power = b.bitcast(b.add(bits, self.splat(0x3F800000, self.ints)), self.vector)
        return b.select(tiny, splat(0.0), b.fmul(y, power))
