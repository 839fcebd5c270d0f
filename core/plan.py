"""One step as the scheduler decided it, and its StepBatch."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from . import scores
from .pooling import num_pooled
from .request import SamplingParams
from .rows import Index, Rows
from .sequence import Sequence
from .step import RowInit, StepBatch, StepMasks


class Chunk(NamedTuple):
    """Tokens ``start`` to ``start + length`` of a sequence that is reading its prompt."""

    seq: Sequence
    start: int
    length: int


class Read(NamedTuple):
    """A sequence of whose prompt a step tells something; ``admission`` tells it apart from one of another life."""

    seq: Sequence
    admission: int
    place: int  # among the step's chunks
    pooled: int  # tokens whose hidden states are summed
    scored: int  # tokens whose scores are given


@dataclass(slots=True, eq=False)
class StepPlan:
    """Rows that decode, chunks that are read, and what must happen first."""

    decodes: Index
    chunks: list[Chunk] = field(default_factory=list)
    copies: list[tuple[int, int]] = field(default_factory=list)
    pins: list[int] = field(default_factory=list)  # blocks to copy from, held until the step is submitted
    new_rows: list[RowInit] = field(default_factory=list)
    preempted: int = 0

    @property
    def num_seqs(self) -> int:
        return len(self.decodes) + len(self.chunks)


@dataclass(frozen=True, slots=True)
class BuiltStep:
    """A plan's arrays, and what the core itself keeps of them until the step comes back."""

    batch: StepBatch
    rows: Index  # [S]
    counts: NDArray[np.int32]  # [S], tokens of each sequence
    sampled: list[Sequence]  # in batch order
    sampled_rows: Index
    pairs: int  # (query, key) pairs, for the cost model
    reads: list[Read]  # in batch order


def row_init(seq: Sequence) -> RowInit:
    """What the backend must know of a sequence that enters a row."""
    request = seq.group.request
    params: SamplingParams = request.params
    end_ids = tuple(sorted(seq.stop_ids)) if params.min_tokens else ()
    return RowInit(seq.row, params, seq.seed, request.prompt_ids, tuple(seq.tokens[seq.prompt_len :]), end_ids)


def build(plan: StepPlan, rows: Rows, step_id: int) -> BuiltStep:
    """Lay the plan out flat: decodes in row order, then the chunks."""
    decodes, chunks, seqs = plan.decodes, plan.chunks, rows.seqs
    num_decodes, size = len(decodes), rows.block_size
    order = decodes
    counts = np.ones(plan.num_seqs, np.int32)
    samples = np.ones(plan.num_seqs, np.bool_)
    if chunks:
        order = np.concatenate([decodes, np.array([chunk.seq.row for chunk in chunks], np.intp)])
        counts[num_decodes:] = [chunk.length for chunk in chunks]
        samples[num_decodes:] = (
            rows.computed[order[num_decodes:]] + counts[num_decodes:] == rows.tokens[order[num_decodes:]]
        )
    query_start = np.zeros(len(order) + 1, np.int32)
    np.cumsum(counts, out=query_start[1:])
    total = int(query_start[-1])
    token_ids = np.empty(total, np.int32)
    positions = np.empty(total, np.int32)
    token_ids[:num_decodes] = rows.next_token[decodes]
    positions[:num_decodes] = rows.computed[decodes]
    at = num_decodes
    for seq, start, length in chunks:
        assert seq.entry is not None
        token_ids[at : at + length] = seq.entry[start : start + length]
        positions[at : at + length] = np.arange(start, start + length, dtype=np.int32)
        at += length
    owners = np.repeat(order, counts) if chunks else order
    index = positions // size
    slots = rows.tables[owners, index].astype(np.int64) * size + (positions - index * size)
    context_lens = rows.computed[order] + counts
    tables = rows.tables[order, : max(1, int(rows.num_blocks[order].max()))]
    copies = np.array(plan.copies, np.int32).reshape(-1, 2)
    sampled_rows = order[samples] if chunks else order
    sampled = [seq for row in sampled_rows.tolist() if (seq := seqs[row]) is not None]
    reads = _reads(plan)
    batch = StepBatch(
        step_id,
        token_ids,
        positions,
        slots,
        query_start,
        context_lens,
        tables,
        order.astype(np.int32),
        samples,
        copies,
        tuple(plan.new_rows),
        _masks(sampled, rows.masked[sampled_rows]) if rows.num_masked else None,
        *_wants(plan, num_decodes, total, reads),
    )
    pairs = int(positions.sum(dtype=np.int64)) + total
    return BuiltStep(
        batch,
        order,
        counts,
        sampled,
        sampled_rows,
        pairs,
        reads,
    )


def _reads(plan: StepPlan) -> list[Read]:
    """The chunks of which more is wanted than that they are read."""
    found = []
    for place, (seq, start, length) in enumerate(plan.chunks):
        pooled = num_pooled(seq, start, length)
        scored = min(length, seq.prompt_len - 1 - start) if scores.wanted(seq) else 0
        if pooled or scored > 0:
            found.append(Read(seq, seq.num_admissions, place, pooled, max(0, scored)))
    return found


def _wants(
    plan: StepPlan, num_decodes: int, total: int, reads: list[Read]
) -> tuple[NDArray[np.int32] | None, NDArray[np.int32] | None, int]:
    """A batch's ``pools``, ``targets`` and ``num_top``."""
    pools = targets = None
    if any(read.pooled for read in reads):
        pools = np.zeros(plan.num_seqs, np.int32)
        for read in reads:
            pools[num_decodes + read.place] = read.pooled
    if any(read.scored for read in reads):
        targets = np.full(total, -1, np.int32)
        targets[num_decodes:] = np.concatenate([scores.targets(*chunk) for chunk in plan.chunks])
    tops = [read.seq.group.request.params.prompt_logprobs or 0 for read in reads if read.scored]
    return pools, targets, max(tops, default=0)


def _masks(sampled: list[Sequence], masked: NDArray[np.bool_]) -> StepMasks | None:
    """The masks of those that follow a grammar; each is used for this step and no other."""
    index = np.flatnonzero(masked)
    if not len(index):
        return None
    bits = []
    for i in index.tolist():
        constraint = sampled[i].constraint
        assert constraint is not None and constraint.mask is not None
        bits.append(constraint.mask)
        constraint.mask = None
    return StepMasks(index, np.stack(bits))
