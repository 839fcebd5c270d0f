"""An embedding table that is a linear layer's own storage: a tied head is held once."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from . import jit
from .qformat import GROUP, Format
from .qgather import gather_ir
from .qlinear import QuantizedLinear
from .threads import pool

_ROWS_PER_CHUNK = 32


class _GatherArgs(ctypes.Structure):
    """``qgather.GATHER_ARGS``"""

    _fields_ = [
        ("tiles", ctypes.c_void_p),
        ("ids", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("records", ctypes.c_int64),
    ]


@cache
def _kernel(form: Format) -> jit.Module:
    return jit.compile_ir(gather_ir(form))


class QuantizedEmbedding:
    """Rows of ``table``, a layer of one weight, as exact float32 values. It adds no memory of its own."""

    def __init__(self, table: QuantizedLinear) -> None:
        if len(table.parts) != 1:
            raise ValueError(f"an embedding is one weight, not a layer of {len(table.parts)} parts")
        self.table = table
        self.shape = table.shape
        self._task = _kernel(table.parts[0].form).address("gather")

    def __call__(self, ids: torch.Tensor) -> torch.Tensor:
        """``ids`` int64 [T] to float32 [T, K]. IndexError for an id outside the table."""
        rows, columns = self.shape
        records = -(-columns // GROUP)
        out = torch.empty((len(ids), records * GROUP), dtype=torch.float32)
        if not len(ids):
            return out[:, :columns]
        ids = ids.to(torch.int64).contiguous()
        low, high = (int(bound) for bound in torch.aminmax(ids))
        if low < 0 or high >= rows:
            raise IndexError(f"token id {low if low < 0 else high} is outside the embedding of {rows} rows")
        args = _GatherArgs(self.table.parts[0].tiles.ctypes.data, ids.data_ptr(), out.data_ptr(), records)
        pool().run(self._task, ctypes.addressof(args), len(ids), _ROWS_PER_CHUNK)
        return out if records * GROUP == columns else out[:, :columns].contiguous()
