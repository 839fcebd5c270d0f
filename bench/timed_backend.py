"""A device that computes nothing and takes as long as a cost model says, on a virtual clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ..backends.base import BackendInfo
from ..backends.sim.clock import VirtualClock
from ..core.step import StepBatch, StepResult
from ..planner.work import StepWork

#: Seconds of a step.
StepCost = Callable[[StepWork], float]


@dataclass(frozen=True, slots=True)
class LinearCost:
    """base + per_token * tokens + per_pair * pairs, as the scheduler's own model has it."""

    base: float
    per_token: float
    per_pair: float = 0.0

    def __call__(self, work: StepWork) -> float:
        return self.base + self.per_token * work.tokens + self.per_pair * work.pairs()


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the timeline."""

    start: float
    seconds: float
    rows: tuple[int, ...]
    counts: tuple[int, ...]  # tokens of each row: more than one is a prompt being read
    blocks: tuple[tuple[int, ...], ...]  # KV blocks of each row, in the order of its tokens


class TimedBackend:
    """A ``Backend``: every token is 1, results are due when the cost model says. Keeps the first ``keep`` steps."""

    def __init__(self, num_blocks: int, block_size: int, max_len: int, cost: StepCost, keep: int = 0) -> None:
        self.info = BackendInfo(
            device="sim",
            model_name="sim",
            quantization="none",
            vocab_size=1 << 20,
            max_model_len=max_len,
            end_ids=frozenset(),
            num_blocks=num_blocks,
            block_size=block_size,
            weight_bytes=0,
            kv_bytes_per_token=1,
            max_in_flight=2,
        )
        self.clock = VirtualClock()
        self.busy = 0.0  # seconds spent in steps
        self.records: list[StepRecord] = []
        self._cost, self._keep, self._free_at = cost, keep, 0.0

    def submit(self, batch: StepBatch) -> TimedTicket:
        seconds = self._cost(StepWork(batch.positions + 1, batch.context_lens))
        start = max(self.clock.now, self._free_at)
        self._free_at = start + seconds
        self.busy += seconds
        if len(self.records) < self._keep:
            counts = np.diff(batch.query_start)
            held = -(-batch.context_lens // self.info.block_size)
            tables = zip(batch.block_tables.tolist(), held.tolist(), strict=True)
            blocks = tuple(tuple(table[:most]) for table, most in tables)
            rows = tuple(batch.rows.tolist())
            self.records.append(StepRecord(start, seconds, rows, tuple(counts.tolist()), blocks))
        count = int(np.count_nonzero(batch.samples))
        result = StepResult(batch.step_id, np.ones(count, np.int32), np.zeros(count, np.bool_), None, seconds)
        return TimedTicket(self.clock, result, self._free_at)

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class TimedTicket:
    """A step under way; waiting for it moves the clock."""

    clock: VirtualClock
    result: StepResult
    due: float

    def done(self) -> bool:
        return self.clock.now >= self.due

    def wait(self) -> StepResult:
        self.clock.advance_to(self.due)
        return self.result
