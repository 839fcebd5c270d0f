"""What somebody who watches the engine is shown: the last steps, who took part in them, and the blocks."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from .blocks import BlockPool
from .plan import BuiltStep
from .rows import Rows
from .sequence import Sequence

#: Steps kept between two views; of more, the first are dropped and counted.
MAX_STEPS = 1024
#: Cells of a block map: more blocks than that share cells.
MAX_CELLS = 4096


@dataclass(frozen=True, slots=True)
class StepView:
    """A step that came back. ``decodes`` and ``chunks`` name sequences by their order of arrival."""

    number: int
    start: float  # seconds on the engine's clock
    seconds: float  # on the device
    decodes: tuple[int, ...] | None  # None: those of the step before in the same view
    chunks: tuple[tuple[int, int, int], ...]  # (sequence, position, tokens) of prompt that was read


@dataclass(frozen=True, slots=True)
class SequenceView:
    """A sequence that runs, or was in one of the steps. Its request is known by its id; no tokens are shown."""

    order: int
    request_id: str
    index: int
    user: str
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    ended: bool


@dataclass(frozen=True, slots=True)
class BlockMap:
    """How many blocks of each cell are what, at most 255: one byte per cell. Blocks that are none of these are free."""

    num_blocks: int
    per_cell: int  # blocks, the last cell's may be fewer
    used: bytes  # held by one sequence
    shared: bytes  # held by several
    cached: bytes  # held by nobody, contents known


@dataclass(frozen=True, slots=True)
class EngineView:
    """What happened since the last view, and what is there now."""

    now: float  # seconds on the engine's clock
    steps: list[StepView]
    dropped: int  # steps before them that nobody will see
    sequences: list[SequenceView]
    blocks: BlockMap


@dataclass(slots=True)
class _Submitted:
    number: int
    at: float
    decodes: tuple[int, ...]
    chunks: tuple[tuple[int, int, int], ...]


@dataclass(slots=True)
class StepWatch:
    """Notes steps between views. It exists only while somebody watches."""

    _pending: deque[_Submitted] = field(default_factory=deque)
    _steps: deque[StepView] = field(default_factory=deque)
    _seen: dict[int, Sequence] = field(default_factory=dict)
    _free_at: float = 0.0  # when the device was done with the step before
    _dropped: int = 0

    def submitted(self, built: BuiltStep, rows: Rows, at: float) -> None:
        """A step goes to the device; called before, since some devices are done with it when they have taken it."""
        seqs = [rows.seqs[row] for row in built.rows.tolist()]
        starts = rows.computed[built.rows]
        reads = (starts < rows.entry[built.rows]).tolist()
        decodes, chunks = [], []
        for seq, start, count, reading in zip(seqs, starts.tolist(), built.counts.tolist(), reads, strict=True):
            assert seq is not None
            self._seen[seq.order] = seq
            if reading:
                chunks.append((seq.order, start, count))
            else:
                decodes.append(seq.order)
        self._pending.append(_Submitted(built.batch.step_id, at, tuple(decodes), tuple(chunks)))

    def done(self, number: int, seconds: float, now: float) -> None:
        """The step came back; a simulated one may say that it took longer than there was time, and is cut to that. One
        from before the watch began is not known here."""
        if not self._pending or self._pending[0].number != number:
            return
        step = self._pending.popleft()
        start = max(step.at, self._free_at)
        seconds = min(seconds, max(0.0, now - start))
        self._free_at = start + seconds
        if len(self._steps) == MAX_STEPS:
            self._steps.popleft()
            self._dropped += 1
        self._steps.append(StepView(number, start, seconds, step.decodes, step.chunks))

    def take(self, rows: Rows, pool: BlockPool, now: float) -> EngineView:
        """Everything since the last call."""
        seqs = self._seen | {seq.order: seq for seq in rows.running()}
        steps = _without_repeats(list(self._steps))
        view = EngineView(now, steps, self._dropped, [_sequence(seq) for seq in seqs.values()], block_map(pool))
        self._steps.clear()
        pending = {order for step in self._pending for order in (*step.decodes, *(chunk[0] for chunk in step.chunks))}
        self._seen = {order: seq for order, seq in self._seen.items() if order in pending}
        self._dropped = 0
        return view


def _without_repeats(steps: list[StepView]) -> list[StepView]:
    """Steady decoding repeats one list of sequences step after step; said once, it is said."""
    before: tuple[int, ...] | None = None
    told = []
    for step in steps:
        same = step.decodes == before
        before = step.decodes
        told.append(StepView(step.number, step.start, step.seconds, None, step.chunks) if same else step)
    return told


def _sequence(seq: Sequence) -> SequenceView:
    group = seq.group
    return SequenceView(
        seq.order,
        seq.request_id,
        seq.index,
        seq.account.user,
        seq.prompt_len,
        group.cached_tokens or 0,
        seq.num_outputs,
        seq.finish_reason is not None,
    )


def block_map(pool: BlockPool, max_cells: int = MAX_CELLS) -> BlockMap:
    """The pool as at most ``max_cells`` cells of equally many blocks. O(blocks)."""
    refs = np.array(pool.refs, np.int32)
    known = np.array(pool.cached, np.bool_)
    per_cell = max(1, -(-len(refs) // max_cells))
    kinds = (refs == 1, refs > 1, known & (refs == 0))
    return BlockMap(len(refs), per_cell, *(_per_cell(kind, per_cell) for kind in kinds))


def _per_cell(kind: NDArray[np.bool_], per_cell: int) -> bytes:
    cells = -(-len(kind) // per_cell)
    padded = np.zeros(cells * per_cell, np.bool_)
    padded[: len(kind)] = kind
    counts: NDArray[np.uint8] = padded.reshape(cells, per_cell).sum(1).clip(max=255).astype(np.uint8)
    return counts.tobytes()
