"""One step as the torch backend sees it: tensors on the device beside the host's own arrays."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.step import StepBatch

#: Elements of scores and gathered keys that one group of the reference attention may hold at a time.
GROUP_ELEMENTS = 1 << 23


@dataclass(frozen=True, slots=True)
class Group:
    """G sequences with Q queries each, over a context padded to L = NB * block_size keys."""

    tokens: torch.Tensor  # int64 [G * Q], where the queries lie in the packed step
    blocks: torch.Tensor  # int64 [G, NB]
    mask: torch.Tensor  # bool [G, Q, L], the keys that a query sees


@dataclass(frozen=True, slots=True)
class TorchStep:
    """A step's arrays, ``host`` being the batch as it came. No operation ever reads a tensor back: lengths and offsets
    are taken from ``host``."""

    host: StepBatch
    block_size: int
    token_ids: torch.Tensor  # int64 [T], placeholders filled in
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    query_start: torch.Tensor  # int32 [S + 1]
    context_lens: torch.Tensor  # int32 [S]
    block_tables: torch.Tensor  # int32 [S, B], 0 past a sequence's end
    logit_rows: torch.Tensor | None  # int64 [N], last tokens of the sequences that sample
    groups: dict[int | None, list[Group]] = field(default_factory=dict)  # by window, made on first use

    @classmethod
    def build(cls, batch: StepBatch, last_tokens: torch.Tensor, block_size: int) -> TorchStep:
        """``last_tokens`` int64 [rows]: each row's last sampled token, still on the device."""
        device = last_tokens.device

        def put(array: NDArray[np.generic], dtype: type[np.generic]) -> torch.Tensor:
            return torch.from_numpy(array.astype(dtype)).to(device, non_blocking=True)

        token_ids = put(batch.token_ids, np.int64)
        unknown = np.flatnonzero(batch.token_ids < 0)
        if len(unknown):
            sequence = np.searchsorted(batch.query_start, unknown, side="right") - 1
            token_ids[put(unknown, np.int64)] = last_tokens[put(batch.rows[sequence], np.int64)]
        last = batch.query_start[1:][batch.samples] - 1
        return cls(
            host=batch,
            block_size=block_size,
            token_ids=token_ids,
            positions=put(batch.positions, np.int64),
            slots=put(batch.slots, np.int64),
            query_start=put(batch.query_start, np.int32),
            context_lens=put(batch.context_lens, np.int32),
            block_tables=put(np.maximum(batch.block_tables, 0), np.int32),
            logit_rows=put(last, np.int64) if len(last) else None,
        )

    def attention_groups(self, window: int | None, elements_per_key: int, scores_per_key: int) -> list[Group]:
        """How the reference attention walks this step for layers with ``window``.

        Decodes of similar length share a group; a chunk is cut into tiles of queries. No group gathers more than
        GROUP_ELEMENTS (one whole context excepted): ``elements_per_key`` is what a gathered key takes with its value,
        ``scores_per_key`` the number of heads.
        """
        if window not in self.groups:
            cut = _Cut(self, window, elements_per_key, scores_per_key)
            self.groups[window] = [*cut.decodes(), *cut.chunks()]
        return self.groups[window]


class _Cut:
    """Cuts one step into groups."""

    def __init__(self, step: TorchStep, window: int | None, elements_per_key: int, scores_per_key: int) -> None:
        batch, size = step.host, step.block_size
        self.step = step
        self.window = window
        self.elements_per_key = elements_per_key
        self.scores_per_key = scores_per_key
        self.lengths = np.diff(batch.query_start)
        oldest = batch.context_lens - self.lengths - (window - 1) if window else np.zeros_like(batch.context_lens)
        self.first = np.maximum(oldest, 0) // size  # the first block that any query of a sequence sees
        self.count = -(-batch.context_lens // size) - self.first  # blocks to gather

    def decodes(self) -> list[Group]:
        """Sequences with one query, longest first, split where memory or padding would grow too far."""
        single = np.flatnonzero(self.lengths == 1)
        order = single[np.argsort(-self.count[single], kind="stable")]
        per_key = self.elements_per_key + 2 * self.scores_per_key
        groups, start = [], 0
        while start < len(order):
            longest = int(self.count[order[start]])
            most = max(1, GROUP_ELEMENTS // (longest * self.step.block_size * per_key))
            members = order[start : start + most]
            members = members[self.count[members] * 2 >= longest]
            groups.append(self.group(members, 0, 1))
            start += len(members)
        return groups

    def chunks(self) -> list[Group]:
        """Sequences with several queries, one at a time, in tiles of queries."""
        groups = []
        for sequence in np.flatnonzero(self.lengths > 1):
            keys = int(self.count[sequence]) * self.step.block_size
            tile = max(16, GROUP_ELEMENTS // (keys * 2 * self.scores_per_key))
            for begin in range(0, int(self.lengths[sequence]), tile):
                end = min(begin + tile, int(self.lengths[sequence]))
                groups.append(self.group(np.array([sequence]), begin, end))
        return groups

    def group(self, sequences: NDArray[np.int64], begin: int, end: int) -> Group:
        """Queries ``begin`` to ``end`` (within their sequence) of ``sequences``."""
        batch, size = self.step.host, self.step.block_size
        device = self.step.positions.device
        tokens = batch.query_start[sequences][:, None] + np.arange(begin, end)  # [G, Q]
        columns = self.first[sequences][:, None] + np.arange(int(self.count[sequences].max()))  # [G, NB]
        tables = batch.block_tables[sequences]
        blocks = np.take_along_axis(tables, np.minimum(columns, tables.shape[1] - 1), axis=1)
        key = (columns[:, :, None] * size + np.arange(size)).reshape(len(sequences), 1, -1)  # positions, [G, 1, L]
        query = batch.positions[tokens][:, :, None]
        mask = key <= query
        if self.window:
            mask &= key > query - self.window
        return Group(
            tokens=torch.from_numpy(tokens.reshape(-1).astype(np.int64)).to(device),
            blocks=torch.from_numpy(np.maximum(blocks, 0).astype(np.int64)).to(device),
            mask=torch.from_numpy(mask).to(device),
        )
