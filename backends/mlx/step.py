"""One step as the MLX backend sees it: small arrays made afresh on the host for each step, and what to attend to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...core.step import StepBatch
from .kv import Keys, KVPool
from .library import Array, mx
from .metal.attention import MOST_QUERIES, PagedStep, make_spans
from .rope import RotaryTables, Rotation
from .work import GROUP_ELEMENTS, LEAST_TILE, TILE

#: Contexts are padded to a multiple of so many keys, so that freed buffers fit again step after step.
PAD = 64
#: Decodes over no more keys than this share a group, however their lengths differ.
SHORT = 256


@dataclass(frozen=True, slots=True)
class Group:
    """G sequences with Q queries each over L keys."""

    tokens: slice | Array  # where the G * Q queries lie in the packed step
    sequences: int
    keys: Keys
    mask: Array | str | None  # bool [G, 1, Q, L]; "causal": query i sees all but the last Q - 1 - i keys; None: all


@dataclass(frozen=True, slots=True)
class PagedGroup:
    """Tokens whose keys a Metal kernel reads in the pool itself."""

    tokens: slice | Array
    paged: PagedStep


@dataclass(frozen=True, slots=True)
class Groups:
    """A step's groups, and where each token's result lies in the groups' results laid end to end (None: in order)."""

    parts: list[Group | PagedGroup]
    order: Array | None


@dataclass(frozen=True, slots=True)
class MlxStep:
    """A step's arrays, ``host`` being the batch as it came. Lengths are taken from ``host``; nothing is read back."""

    host: StepBatch
    kv: KVPool
    token_ids: Array  # int32 [T], placeholders filled in
    rotations: tuple[Rotation, ...]  # of each of the model's rotary embeddings
    blocks: Array  # int32 [T], where each token's K and V go
    offsets: Array  # int32 [T], within the block
    logit_rows: Array | None  # int32 [N], last tokens of the sequences that sample
    settle: Callable[[], None]  # waits until no earlier step is under way: before anything is evaluated out of turn
    groups: dict[int | None, Groups] = field(default_factory=dict)  # by window, made on first use

    @classmethod
    def build(
        cls, batch: StepBatch, last_tokens: Array, kv: KVPool, rope: RotaryTables, settle: Callable[[], None]
    ) -> MlxStep:
        """``last_tokens`` int32 [rows]: each row's last sampled token, perhaps not computed yet."""
        token_ids = put(batch.token_ids)
        unknown = np.flatnonzero(batch.token_ids < 0)
        if len(unknown):
            sequence = np.searchsorted(batch.query_start, unknown, side="right") - 1
            rows = batch.rows[sequence]
            if len(unknown) == batch.num_tokens:
                token_ids = last_tokens[put(rows)]
            else:
                token_ids[put(unknown)] = last_tokens[put(rows)]
        last = batch.query_start[1:][batch.samples] - 1
        return cls(
            host=batch,
            kv=kv,
            token_ids=token_ids,
            rotations=rope.at(batch.positions),
            blocks=put(batch.slots // kv.block_size),
            offsets=put(batch.slots % kv.block_size),
            logit_rows=put(last) if len(last) else None,
            settle=settle,
        )

    def attention_groups(self, window: int | None, heads: int, tiled: bool = True) -> Groups:
        """How the attention of layers with ``window`` walks this step.

        Decodes of similar length share a group; a chunk is cut into tiles of queries, or, unless ``tiled``, left whole
        for an attention that cuts and masks it itself. No group holds more than GROUP_ELEMENTS, LEAST_TILE queries (of
        a whole chunk, its keys) over their whole context excepted.
        """
        if window not in self.groups:
            self.groups[window] = _Cut(self, window, heads, tiled).groups()
        return self.groups[window]


def put(array: NDArray[Any]) -> Array:
    """Integers as an int32 array of MLX's own; booleans and floats as they are."""
    return mx.array(array.astype(np.int32) if array.dtype.kind in "iu" else array)


class _Cut:
    """Cuts one step into groups."""

    def __init__(self, step: MlxStep, window: int | None, heads: int, tiled: bool) -> None:
        self.batch, self.kv = step.host, step.kv
        self.window, self.tiled = window, tiled
        self.per_key = 2 * step.kv.kv_heads * step.kv.head_dim  # elements gathered for a key
        self.heads = heads
        lengths = np.diff(self.batch.query_start)
        self.direct = np.where(lengths <= (MOST_QUERIES if step.kv.paged else 0), lengths, 0)
        self.lengths = lengths - self.direct  # queries whose keys are gathered

    def groups(self) -> Groups:
        parts: list[Group | PagedGroup] = []
        placed: list[NDArray[np.int64]] = []
        found: list[tuple[NDArray[np.int64], Group | PagedGroup]]
        found = [*self._direct(), *self._decodes(), *self._chunks()]
        for tokens, group in found:
            parts.append(group)
            placed.append(tokens)
        order = np.concatenate(placed)
        if np.array_equal(order, np.arange(len(order))):
            return Groups(parts, None)
        return Groups(parts, put(np.argsort(order)))

    def _first(self, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """The first position that queries at ``positions`` see."""
        return np.maximum(positions - (self.window - 1), 0) if self.window else np.zeros_like(positions)

    def _direct(self) -> list[tuple[NDArray[np.int64], PagedGroup]]:
        """The sequences of few queries, where a Metal kernel can read their keys in the pool."""
        shape, tokens = self.kv.paged, np.flatnonzero(np.repeat(self.direct > 0, self.direct + self.lengths))
        if shape is None or not len(tokens):
            return []
        sequences = np.repeat(np.arange(len(self.direct), dtype=np.int32), self.direct)
        spans = make_spans(sequences, self.batch.positions[tokens], self.window, shape.threadgroups)
        return [(tokens, PagedGroup(_span(tokens), PagedStep.build(shape, spans, self.batch.block_tables)))]

    def _decodes(self) -> list[tuple[NDArray[np.int64], Group]]:
        """Sequences with one query, longest first, split where memory or padding would grow too far."""
        single = np.flatnonzero(self.lengths == 1)
        last = self.batch.context_lens.astype(np.int64) - 1
        first = self._first(last)
        count = last - first + 1
        order = single[np.argsort(-count[single], kind="stable")]
        groups, start = [], 0
        while start < len(order):
            longest = int(count[order[start]])
            most = max(1, GROUP_ELEMENTS // (_padded(longest) * (self.per_key + self.heads)))
            members = order[start : start + most]
            members = np.sort(members[count[members] * 2 >= longest]) if longest > SHORT else np.sort(members)
            groups.append(self._decode_group(members, first[members], count[members]))
            start += len(members)
        return groups

    def _decode_group(
        self, members: NDArray[np.int64], first: NDArray[np.int64], count: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], Group]:
        """Padding repeats a sequence's newest key: unlike another's block it can't hold what the sequence mustn't see,
        NaN for one."""
        keys = np.arange(_padded(int(count.max())))
        seen = keys < count[:, None]
        positions = first[:, None] + np.minimum(keys, count[:, None] - 1)
        slots = self._slots(members[:, None], positions)
        tokens = self.batch.query_start[members].astype(np.int64)
        mask = None if seen.all() else mx.array(seen[:, None, None, :])
        return tokens, Group(_span(tokens), len(members), self.kv.read(put(slots)), mask)

    def _chunks(self) -> list[tuple[NDArray[np.int64], Group]]:
        """Sequences with several queries, one at a time, in tiles of queries."""
        groups = []
        for sequence in np.flatnonzero(self.lengths > 1):
            begin, end = (int(i) for i in self.batch.query_start[sequence : sequence + 2])
            context = int(self.batch.context_lens[sequence])
            keys = min(context, self.window + TILE) if self.window else context
            tile = min(TILE, max(LEAST_TILE, GROUP_ELEMENTS // (keys * self.heads)))
            tile = tile if self.tiled else end - begin
            for start in range(begin, end, tile):
                groups.append(self._chunk_group(int(sequence), start, min(start + tile, end)))
        return groups

    def _chunk_group(self, sequence: int, start: int, stop: int) -> tuple[NDArray[np.int64], Group]:
        """Tokens ``start`` to ``stop`` of the step, over exactly the keys that they see."""
        tokens = np.arange(start, stop)
        query = self.batch.positions[start:stop].astype(np.int64)
        keys = np.arange(int(self._first(query[:1])[0]), int(query[-1]) + 1)
        mask: Array | str = "causal"
        if self.window and len(keys) > self.window and self.tiled:
            visible = (keys <= query[:, None]) & (keys > query[:, None] - self.window)
            mask = mx.array(visible[None, None])
        slots = self._slots(np.array(sequence), keys)[None]
        return tokens, Group(slice(start, stop), 1, self.kv.read(put(slots)), mask)

    def _slots(self, sequences: NDArray[np.int64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Slots of ``positions`` of ``sequences`` (shapes broadcast)."""
        size = self.kv.block_size
        block = self.batch.block_tables[sequences, positions // size].astype(np.int64)
        return block * size + positions % size


def _padded(count: int) -> int:
    return -(-count // PAD) * PAD


def _span(tokens: NDArray[np.int64]) -> slice | Array:
    """``tokens`` as a slice where they are consecutive."""
    first = int(tokens[0])
    if np.array_equal(tokens, np.arange(first, first + len(tokens))):
        return slice(first, first + len(tokens))
    return put(tokens)
