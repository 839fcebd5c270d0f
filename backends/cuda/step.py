"""One step as the torch backend sees it: tensors on the device beside the host's own arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...core.step import StepBatch
from .buffers import Arrays, DecodeInputs, share

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
    are taken from ``host``.

    A ``static`` step is one whose arrays are written anew for each replay of a captured graph. Its ``host`` holds the
    most that may come, and what depends on contexts must read the tensors on the device.
    """

    host: StepBatch
    block_size: int
    token_ids: torch.Tensor  # int64 [T], placeholders filled in
    positions: torch.Tensor  # int64 [T]
    slots: torch.Tensor  # int64 [T]
    query_start: torch.Tensor  # int32 [S + 1]
    context_lens: torch.Tensor  # int32 [S]
    block_tables: torch.Tensor  # int32 [S, B], 0 past a sequence's end
    logit_rows: torch.Tensor | None  # int64 [N], last tokens of the sequences that sample
    rows: torch.Tensor | None = None  # int64 [N], the rows of the sequences that sample
    next_positions: torch.Tensor | None = None  # int64 [N], the places that the sampled tokens take
    extra: Mapping[str, torch.Tensor] = field(default_factory=dict)  # what the operations asked to be sent along
    memo: dict[str, Any] = field(default_factory=dict)  # what operations keep while the step lives
    static: bool = False
    groups: dict[int | None, list[Group]] = field(default_factory=dict)  # by window, made on first use

    @classmethod
    def build(
        cls,
        batch: StepBatch,
        last_tokens: torch.Tensor,
        block_size: int,
        send: Callable[[Arrays], dict[str, torch.Tensor]] = share,
        extra: Arrays | None = None,
    ) -> TorchStep:
        """``last_tokens`` int64 [rows]: each row's last sampled token, still on the device. ``send`` brings arrays
        there, ``extra``'s among them."""
        extra, last = extra or {}, batch.query_start[1:][batch.samples] - 1
        unknown = np.flatnonzero(batch.token_ids < 0)
        sequence = np.searchsorted(batch.query_start, unknown, side="right") - 1
        sent = send(
            {
                "token_ids": batch.token_ids.astype(np.int64),
                "positions": batch.positions.astype(np.int64),
                "slots": batch.slots.astype(np.int64),
                "query_start": batch.query_start.astype(np.int32),
                "context_lens": batch.context_lens.astype(np.int32),
                "block_tables": np.maximum(batch.block_tables, 0).astype(np.int32),
                "unknown": unknown.astype(np.int64),
                "unknown_rows": batch.rows[sequence].astype(np.int64),
                "logit_rows": last.astype(np.int64),
                "rows": batch.rows[batch.samples].astype(np.int64),
                "next_positions": batch.context_lens[batch.samples].astype(np.int64),
                **extra,
            }
        )
        token_ids, wants_logits = sent["token_ids"], len(last) > 0
        if len(unknown):
            token_ids.index_copy_(0, sent["unknown"], last_tokens[sent["unknown_rows"]])
        return cls(
            host=batch,
            block_size=block_size,
            token_ids=token_ids,
            positions=sent["positions"],
            slots=sent["slots"],
            query_start=sent["query_start"],
            context_lens=sent["context_lens"],
            block_tables=sent["block_tables"],
            logit_rows=sent["logit_rows"] if wants_logits else None,
            rows=sent["rows"] if wants_logits else None,
            next_positions=sent["next_positions"] if wants_logits else None,
            extra={name: sent[name] for name in extra},
        )

    @classmethod
    def static_decode(cls, inputs: DecodeInputs, size: int, context: int, block_size: int) -> TorchStep:
        """A decode step over the first ``size`` rows of ``inputs``, for contexts of up to ``context`` tokens. Its
        ``token_ids`` may hold placeholders."""
        count = np.arange(size + 1, dtype=np.int32)
        host = StepBatch(
            step_id=-1,
            token_ids=np.zeros(size, np.int32),
            positions=np.full(size, context - 1, np.int32),
            slots=np.zeros(size, np.int64),
            query_start=count,
            context_lens=np.full(size, context, np.int32),
            block_tables=np.zeros((size, inputs.tables.shape[1]), np.int32),
            rows=np.full(size, inputs.spare_row, np.int32),
            samples=np.ones(size, np.bool_),
            copies=np.zeros((0, 2), np.int32),
        )
        return cls(
            host=host,
            block_size=block_size,
            token_ids=inputs.token_ids[:size],
            positions=inputs.positions[:size],
            slots=inputs.slots[:size],
            query_start=inputs.query_start[: size + 1],
            context_lens=inputs.context_lens[:size],
            block_tables=inputs.tables[:size],
            logit_rows=inputs.query_start[:size].long(),
            rows=inputs.rows[:size],
            static=True,
        )

    def attention_groups(self, window: int | None, elements_per_key: int, scores_per_key: int) -> list[Group]:
        """How the reference attention walks this step for layers with ``window``.

        Decodes of similar length share a group; a chunk is cut into tiles of queries. No group gathers more than
        GROUP_ELEMENTS (one whole context excepted): ``elements_per_key`` is what a gathered key takes with its value,
        ``scores_per_key`` the number of heads.
        """
        if self.static:
            return [self._whole_group(window)]
        if window not in self.groups:
            cut = _Cut(self, window, elements_per_key, scores_per_key)
            self.groups[window] = [*cut.decodes(), *cut.chunks()]
        return self.groups[window]

    def _whole_group(self, window: int | None) -> Group:
        """All sequences of a decode step over their whole tables, masked by what the device knows of their lengths."""
        count, blocks = self.block_tables.shape
        key = torch.arange(blocks * self.block_size, device=self.positions.device)
        query = self.positions[:, None]
        mask = key <= query
        if window:
            mask &= key > query - window
        return Group(torch.arange(count, device=key.device), self.block_tables.long(), mask[:, None])


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
