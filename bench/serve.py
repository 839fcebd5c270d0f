"""A benchmark of one server: levels of load one after the other."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .ask import Sample, Target
from .data import draw
from .dataset import DataSpec, Drawn
from .level import Level, Load
from .load import OnSample, closed_samples, open_samples
from .objective import Objective
from .pulse import Pulse
from .sources import IdSource, Source
from .summary import summarise
from .traffic import Traffic

OnProgress = Callable[[str, int, int], None]  # (what, requests done, requests in all)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does."""

    traffic: Traffic
    warmups: int = 1
    objective: Objective | None = None
    attainment: float = 0.9  # share of good requests that a load must reach to count as met


@dataclass(slots=True)
class Runner:
    """Puts levels on one server. ``number`` of the next level, ``drawn`` sessions until now: each level has prompts of
    its own. ``notes``: what a reader must know of them."""

    target: Target
    plan: Plan
    source: Source
    on_progress: OnProgress = lambda what, done, total: None
    on_level: Callable[[Level], None] = lambda level: None
    number: int = 0
    drawn: int = 0
    interrupted: bool = False
    levels: list[Level] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, load: Load) -> Level:
        """One level, to its end.

        Raises:
            KeyboardInterrupt: Ctrl-C. What has ended until then is kept as a level that says what it lacks.
        """
        level = asyncio.run(self._level(load))
        self.levels.append(level)
        self.on_level(level)
        if self.interrupted:
            raise KeyboardInterrupt
        return level

    async def _level(self, load: Load) -> Level:
        plan, traffic = self.plan, self.plan.traffic
        count = traffic.num_prompts or _default_count(load, traffic.data)
        drawn = draw(traffic.data, self.source, count, self.number, self.drawn)
        self.number += 1
        self.drawn += len(drawn.sessions)
        self.notes += [note for note in drawn.notes if note not in self.notes]
        self.notes += traffic.idle_users(load, len(drawn.sessions))
        total = sum(len(session.turns) for session in drawn.sessions)
        samples: list[Sample] = []

        def note(sample: Sample) -> None:
            if isinstance(self.source, IdSource):
                sample.count(self.source.count)
            samples.append(sample)
            self.on_progress(load.name, len(samples), total)

        if self.number == 1 and plan.warmups:
            await self._warm_up(plan.warmups)
        unfinished, pulse = 0, Pulse()
        try:
            async with pulse:
                await self._put(load, drawn, note)
        except asyncio.CancelledError:  # Ctrl-C, by way of asyncio.run
            if not samples:
                raise
            self.interrupted = True
            unfinished = total - len(samples) - sum(sample.unasked for sample in samples)
        return summarise(samples, load, plan.objective, pulse.busy, pulse.late_ms(), unfinished)

    async def _put(self, load: Load, drawn: Drawn, note: OnSample) -> None:
        if load.loop == "closed":
            assert load.concurrency is not None
            await closed_samples(self.target, drawn.sessions, load.concurrency, note)
        else:
            due = drawn.due or self.plan.traffic.due(load, len(drawn.sessions), self.number - 1)
            await open_samples(self.target, drawn.sessions, due, note, load.concurrency)

    async def _warm_up(self, count: int) -> None:
        drawn = draw(replace(self.plan.traffic.data, kind="random", output_len=4), self.source, count, -1)
        await closed_samples(self.target, drawn.sessions, count)


def _default_count(load: Load, data: DataSpec) -> int:
    """Enough for some steady seconds; a trace whole."""
    if data.kind == "trace":
        return sys.maxsize
    if load.loop == "closed":
        return max(8, 4 * (load.concurrency or 1))
    rate = load.rate if load.ramp is None else (load.ramp.start + load.ramp.end) / 2
    return 100 if rate is None or rate == float("inf") else max(20, min(1000, round(30 * rate)))


def id_source(model: str) -> IdSource:
    """Ids of real text by the tokenizer of ``model`` (as for `bireme serve`)."""
    from ..models.hub import resolve
    from .text import load_tokenizer, real_text

    tokenizer = load_tokenizer(resolve(model))

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    return IdSource(tokenizer.vocab_size, encode(real_text(150_000)), encode)
