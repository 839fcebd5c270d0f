"""What the host spends per step: ``bireme bench host``.

Runs the engine over a backend that answers at once, with nothing but running sequences, and times its parts. Planning
and building the batch is what the device would wait for if steps were not overlapped; counting it and dealing tokens
out comes on top.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

import numpy as np

from ..backends.base import BackendInfo, Ticket
from ..core.config import EngineConfig
from ..core.engine import Engine
from ..core.request import Request, SamplingParams
from ..core.step import StepBatch, StepResult

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(slots=True)
class Answered:
    """A step that was done when it was submitted."""

    result: StepResult
    is_done: bool = False

    def done(self) -> bool:
        return self.is_done

    def wait(self) -> StepResult:
        return self.result


class InstantBackend:
    """Gives every sequence token 1 in no time, with two steps in flight."""

    def __init__(self, num_blocks: int, block_size: int, vocab_size: int = 32000) -> None:
        self.info = BackendInfo(
            device="none",
            model_name="none",
            quantization="none",
            vocab_size=vocab_size,
            max_model_len=32768,
            end_ids=frozenset({2}),
            num_blocks=num_blocks,
            block_size=block_size,
            weight_bytes=0,
            kv_bytes_per_token=1,
            max_in_flight=2,
        )

    def submit(self, batch: StepBatch) -> Ticket:
        count = int(np.count_nonzero(batch.samples))
        result = StepResult(batch.step_id, np.ones(count, np.int32), np.zeros(count, np.bool_), None, 0.01)
        return Answered(result)

    def close(self) -> None:
        pass


@dataclass(slots=True)
class Timings:
    """Microseconds of each step, by part."""

    plan: list[float] = field(default_factory=list)  # schedule and build
    commit: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)  # the engine's step, the two above included


def measure(
    num_seqs: int, num_steps: int, prompt_len: int = 512, clock: Callable[[], float] = time.perf_counter
) -> Timings:
    """Step ``num_seqs`` decoding sequences ``num_steps`` times after a warm-up."""
    block_size, length = 16, prompt_len + num_steps + 200
    backend = InstantBackend(num_seqs * (length // block_size + 2), block_size)
    config = EngineConfig(max_num_seqs=num_seqs, max_num_batched_tokens=8192)
    engine = Engine(backend, config)
    params = SamplingParams(max_tokens=num_steps + 150, temperature=0.0)
    for i in range(num_seqs):
        engine.add(
            Request(f"r{i}", tuple((i * 7 + j) % 30000 + 3 for j in range(prompt_len)), params, user=f"u{i % 8}")
        )
    while engine.stats().waiting or engine.scheduler.rows.reading().size:
        engine.step()
    for _ in range(50):
        engine.step()
    timings = Timings()
    scheduler = engine.scheduler
    scheduler.schedule = _timed(scheduler.schedule, timings.plan, clock)  # type: ignore[method-assign]
    scheduler.commit = _timed(scheduler.commit, timings.commit, clock)  # type: ignore[method-assign]
    step = _timed(engine.step, timings.whole, clock)
    for _ in range(num_steps):
        step()
    return timings


def _timed(call: Callable[P, T], into: list[float], clock: Callable[[], float]) -> Callable[P, T]:
    def timed(*args: P.args, **kwargs: P.kwargs) -> T:
        start = clock()
        result = call(*args, **kwargs)
        into.append((clock() - start) * 1e6)
        return result

    return timed
