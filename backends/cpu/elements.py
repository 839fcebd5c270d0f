"""How the pool keeps keys and values: float32, float16, or int8 with a float32 scale per token and head.

Kernels compute with the float32 values that the stored elements stand for, wherever they read them: a pool of another
kind is another way to load, and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .halves import load_halves
from .simd import F16, F32, I8, I64, Emitter


@dataclass(frozen=True, slots=True)
class Element:
    """One kind of stored element."""

    nbytes: int
    kind: Any  # LLVM's type
    scaled: bool = False

    def load(self, e: Emitter, pointer: Any, scale: Any) -> Any:
        """A vector of float32; ``scale`` is a vector too, where the kind is ``scaled``."""
        if self.scaled:
            return e.builder.fmul(e.load_codes(pointer), scale)
        return e.load(pointer) if self.kind is F32 else load_halves(e, pointer)


#: Bytes of a cache line.
LINE = 64
#: By the names of torch's dtypes.
ELEMENTS = {"float32": Element(4, F32), "float16": Element(2, F16), "int8": Element(1, I8, scaled=True)}


class StoredRows:
    """One head's rows of a pool [slots, heads, dim], and of its scales [slots, heads], in a kernel.

    Both begin at the head; ``slots`` is an array of int64, and ``ahead`` another, of those that will be read next.
    Arguments are IR values.
    """

    def __init__(
        self, e: Emitter, element: Element, pool: Any, scales: Any, slots: Any, ahead: Any, heads: Any, dim: Any
    ) -> None:
        self._e, self._element = e, element
        self._pool, self._scales, self._slots, self._ahead = (e.pointer(x) for x in (pool, scales, slots, ahead))
        self._heads, self._dim, self._stride = heads, dim, e.product(heads, dim)

    def row(self, key: Any) -> tuple[Any, Any]:
        """Where the row of slot number ``key`` begins, and its scale as a vector."""
        e = self._e
        slot = e.load(e.offset(self._slots, key, kind=I64), I64)
        row = e.offset(self._pool, e.product(slot, self._stride), kind=self._element.kind)
        if not self._element.scaled:
            return row, None
        return row, e.splat(e.load(e.offset(self._scales, e.product(slot, self._heads)), F32))

    def fetch(self, key: Any) -> None:
        """Bring row number ``key`` of those ahead into the cache."""
        e, element = self._e, self._element
        slot = e.load(e.offset(self._ahead, key, kind=I64), I64)
        row = e.offset(self._pool, e.product(slot, self._stride), kind=element.kind)
        with e.loop(self._dim, LINE // element.nbytes) as d:
            e.prefetch(e.offset(row, d, kind=element.kind))
        if element.scaled:
            e.prefetch(e.offset(self._scales, e.product(slot, self._heads)))

    def load(self, row: tuple[Any, Any], *terms: Any) -> Any:
        """A vector of ``row``'s elements, the first being the sum of ``terms``."""
        start, scale = row
        return self._element.load(self._e, self._e.offset(start, *terms, kind=self._element.kind), scale)
