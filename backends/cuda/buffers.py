"""A step's small arrays on their way to the device: packed into pinned memory and sent in one copy."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.step import StepBatch
from .device import Device, Mark

#: Where each array of a packed copy begins: kernels then load whole vectors.
ALIGNMENT = 64
#: Pinned buffers used in turn: two steps may be in flight while the host writes a third, and one may send twice.
TURNS = 6

Arrays = Mapping[str, NDArray[Any]]
TORCH_TYPES = {np.dtype(np.int32): torch.int32, np.dtype(np.int64): torch.int64}


def layout(arrays: Arrays) -> tuple[dict[str, int], int]:
    """Where each array begins in a packed copy, and how many bytes they take in all."""
    places, end = {}, 0
    for name, array in arrays.items():
        places[name] = end
        end += -(-array.nbytes // ALIGNMENT) * ALIGNMENT
    return places, end


def views(buffer: torch.Tensor, arrays: Arrays) -> dict[str, torch.Tensor]:
    """The parts of ``buffer`` uint8 [...] where ``arrays`` (of int32 or int64) lie in it."""
    return {
        name: buffer[begin : begin + arrays[name].nbytes].view(TORCH_TYPES[arrays[name].dtype]).view(arrays[name].shape)
        for name, begin in layout(arrays)[0].items()
    }


class Sender:
    """Sends arrays to a device. A pinned buffer is written again only when the copy that reads it is over."""

    def __init__(self, device: Device, turns: int = TURNS) -> None:
        self._device = device
        self._buffers = [device.pinned(0) for _ in range(turns)]
        self._marks: list[Mark | None] = [None] * turns
        self._turn = 0
        self.copies = 0  # so far
        self.waits = 0  # how often a buffer was still being read when its turn came

    def send(self, arrays: Arrays, target: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        """``arrays`` on the device, one behind the other in ``target`` (uint8) or in memory of their own.

        One copy for all of them; it is under way when this returns. Arrays are int32 or int64.
        """
        places, end = layout(arrays)
        host = self._take(end)
        into = host.numpy()
        for name, array in arrays.items():
            into[places[name] : places[name] + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        if target is None:
            target = torch.empty(end, dtype=torch.uint8, device=self._device.device)
        target[:end].copy_(host, non_blocking=True)
        self.copies += 1
        self._marks[self._turn] = self._device.mark()
        return views(target, arrays)

    def _take(self, nbytes: int) -> torch.Tensor:
        """The next buffer's first bytes."""
        self._turn = (self._turn + 1) % len(self._buffers)
        mark = self._marks[self._turn]
        if mark is not None and not mark.reached():
            self.waits += 1
            mark.wait()
        if self._buffers[self._turn].numel() < nbytes:
            self._buffers[self._turn] = self._device.pinned(1 << max(16, (nbytes - 1).bit_length()))
        return self._buffers[self._turn][:nbytes]


def share(arrays: Arrays) -> dict[str, torch.Tensor]:
    """``arrays`` as tensors on the CPU, where there is nothing to send."""
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


class DecodeInputs:
    """A decode step's arrays, always at the same addresses, so that a graph captured over them can be replayed.

    Rows that pad a step to a captured size have token 0 at position 0 of the null block ``null_block``, which belongs
    to nobody, and the row ``spare_row``, which is no sequence's.
    """

    def __init__(
        self, sender: Sender, device: torch.device, most: int, width: int, block_size: int, null_block: int
    ) -> None:
        """``most``: sequences in a step; ``width``: blocks of the longest context."""
        self._sender, self._most, self._block_size, self._null = sender, most, block_size, null_block
        self.spare_row = most
        whole = self._arrays() | {"tables": np.zeros((most, width), np.int32)}
        self._staged = torch.zeros(layout(whole)[1], dtype=torch.uint8, device=device)
        fields = views(self._staged, whole)
        self.token_ids = fields["token_ids"]  # int64 [most], PLACEHOLDER where only the device knows the token
        self.positions = fields["positions"]  # int64 [most]
        self.slots = fields["slots"]  # int64 [most]
        self.rows = fields["rows"]  # int64 [most]
        self.context_lens = fields["context_lens"]  # int32 [most]
        self.query_start = torch.arange(most + 1, dtype=torch.int32, device=device)
        self.tables = torch.full((most, width), null_block, dtype=torch.int32, device=device)
        self.nbytes = self._staged.nbytes + self.tables.nbytes

    def clear(self) -> None:
        """Make every row padding."""
        tables = np.full((self._most, 1), self._null, np.int32)
        self.tables[:, :1].copy_(self._sender.send(self._arrays() | {"tables": tables}, self._staged)["tables"])

    def fill(self, batch: StepBatch, size: int) -> None:
        """Send ``batch``, one token for each sequence, padded to ``size`` rows: one copy, and one on the device."""
        count = batch.num_seqs
        arrays = self._arrays()
        for name in ("token_ids", "positions", "slots", "rows", "context_lens"):
            arrays[name][:count] = getattr(batch, name)
        width = -(-int(batch.context_lens.max()) // self._block_size)
        tables = np.full((size, width), self._null, np.int32)
        tables[:count] = np.maximum(batch.block_tables[:, :width], 0)
        sent = self._sender.send(arrays | {"tables": tables}, self._staged)["tables"]
        self.tables[:size, :width].copy_(sent)

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """The fields, all padding."""
        most = self._most
        padding = np.arange(most) % self._block_size + self._null * self._block_size
        return {
            "token_ids": np.zeros(most, np.int64),
            "positions": np.zeros(most, np.int64),
            "slots": padding.astype(np.int64),
            "rows": np.full(most, self.spare_row, np.int64),
            "context_lens": np.ones(most, np.int32),
        }
