"""A benchmark of one server: levels of load one after the other."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from .arrivals import Ramp, ramp, schedule
from .ask import Sample, Target
from .data import draw
from .dataset import DataSpec, Drawn
from .level import Level, Load
from .load import OnSample, closed_samples, open_samples
from .objective import Objective
from .sources import IdSource, Source
from .summary import summarise

OnProgress = Callable[[str, int, int], None]  # (what, requests done, requests in all)


@dataclass(frozen=True, slots=True)
class Plan:
    """What one run does. Either ``concurrencies`` (closed loop) or ``rates`` (open loop) is given."""

    data: DataSpec
    concurrencies: tuple[int, ...] = ()
    rates: tuple[float, ...] = ()
    burstiness: float = 1.0
    ramp: Ramp | None = None
    max_concurrency: int | None = None
    num_prompts: int | None = None  # per level; None: by the level
    warmups: int = 1
    objective: Objective | None = None
    attainment: float = 0.9  # share of good requests that a load must reach to count as met
    seed: int = 0

    def __post_init__(self) -> None:
        given = [bool(self.concurrencies), bool(self.rates), self.ramp is not None]
        if self.data.kind == "trace":
            if any(given) or self.burstiness != 1:
                raise ValueError(
                    "a trace has times of its own: leave out --concurrency, --request-rate, the ramp and --burstiness"
                )
        elif sum(given) != 1:
            raise ValueError("give either --concurrency (closed loop) or --request-rate or a ramp (open loop)")
        if not self.burstiness > 0:
            raise ValueError(f"burstiness is {self.burstiness:g}; it must be above 0 (1: Poisson, inf: even)")
        if self.concurrencies and (self.max_concurrency is not None or self.burstiness != 1):
            raise ValueError(
                "--max-concurrency and --burstiness belong to an open loop; --concurrency makes a closed one"
            )

    def loads(self) -> list[Load]:
        """The levels in order."""
        if self.data.kind == "trace":
            return [Load("open", self.max_concurrency, None)]
        if self.ramp is not None:
            return [Load("open", self.max_concurrency, None, self.burstiness, self.ramp, self.data.unit)]
        closed = [Load("closed", n, None) for n in self.concurrencies]
        return closed or [open_load(self, rate) for rate in self.rates]


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
        plan = self.plan
        count = plan.num_prompts or _default_count(load, plan.data)
        drawn = draw(plan.data, self.source, count, self.number, self.drawn)
        self.number += 1
        self.drawn += len(drawn.sessions)
        self.notes += [note for note in drawn.notes if note not in self.notes]
        self._note_idle_users(load, len(drawn.sessions))
        total = sum(len(session.turns) for session in drawn.sessions)
        samples: list[Sample] = []

        def note(sample: Sample) -> None:
            samples.append(sample)
            self.on_progress(load.name, len(samples), total)

        if self.number == 1 and plan.warmups:
            await self._warm_up(plan.warmups)
        unfinished, cpu, start = 0, time.process_time(), time.perf_counter()
        try:
            await self._put(load, drawn, note)
        except asyncio.CancelledError:  # Ctrl-C, by way of asyncio.run
            if not samples:
                raise
            self.interrupted = True
            unfinished = total - len(samples) - sum(sample.unasked for sample in samples)
        busy = (time.process_time() - cpu) / max(1e-9, time.perf_counter() - start)
        return summarise(samples, load, plan.objective, busy, unfinished)

    async def _put(self, load: Load, drawn: Drawn, note: OnSample) -> None:
        if load.loop == "closed":
            assert load.concurrency is not None
            await closed_samples(self.target, drawn.sessions, load.concurrency, note)
        else:
            due = drawn.due or self._due(load, len(drawn.sessions))
            await open_samples(self.target, drawn.sessions, due, note, load.concurrency)

    def _note_idle_users(self, load: Load, sessions: int) -> None:
        if load.loop == "closed" and sessions < (load.concurrency or 0):
            what = "conversations" if self.plan.data.kind == "multiturn" else "requests"
            self.notes.append(
                f"{load.name}: there are {sessions} {what} to share out, so no more than {sessions} users "
                "were ever busy; give more --num-prompts"
            )

    def _due(self, load: Load, count: int) -> list[float]:
        plan = self.plan
        if load.ramp is not None:
            return ramp(count, load.ramp, plan.burstiness, plan.seed + self.number)
        assert load.rate is not None
        return schedule(count, load.rate, plan.burstiness, plan.seed + self.number)

    async def _warm_up(self, count: int) -> None:
        drawn = draw(replace(self.plan.data, kind="random", output_len=4), self.source, count, -1)
        await closed_samples(self.target, drawn.sessions, count)


def _default_count(load: Load, data: DataSpec) -> int:
    """Enough for some steady seconds; a trace whole."""
    if data.kind == "trace":
        return sys.maxsize
    if load.loop == "closed":
        return max(8, 4 * (load.concurrency or 1))
    rate = load.rate if load.ramp is None else (load.ramp.start + load.ramp.end) / 2
    return 100 if rate is None or rate == float("inf") else max(20, min(1000, round(30 * rate)))


def open_load(plan: Plan, rate: float) -> Load:
    return Load("open", plan.max_concurrency, rate, plan.burstiness, unit=plan.data.unit)


def id_source(model: str) -> IdSource:
    """Ids of real text by the tokenizer of ``model`` (as for `bireme serve`)."""
    from ..models.hub import resolve
    from .text import load_tokenizer, real_text

    tokenizer = load_tokenizer(resolve(model))

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    return IdSource(tokenizer.vocab_size, encode(real_text(150_000)), encode)
