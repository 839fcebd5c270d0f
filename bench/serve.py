"""A benchmark of one server: levels of load one after the other, or a search for the largest that is still good."""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import httpx

from .arrivals import Ramp, ramp, schedule
from .ask import Prompt, Sample, Target, ask
from .data import draw
from .dataset import DataSpec
from .level import Level, Load, summarise
from .load import closed_samples, open_samples
from .objective import Objective
from .sources import IdSource, Source, WordSource

#: A generator that uses more of its core than this may be what limits the figures.
BUSY = 0.8
_PATIENCE = 600.0

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
            if any(given):
                raise ValueError("a trace has times of its own: leave out --concurrency, --request-rate and the ramp")
        elif sum(given) != 1:
            raise ValueError("give either --concurrency (closed loop) or --request-rate or a ramp (open loop)")
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
    number: int = 0
    drawn: int = 0
    levels: list[Level] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def run(self, load: Load) -> Level:
        """One level, to its end."""
        level = asyncio.run(self._level(load))
        self.levels.append(level)
        return level

    async def _level(self, load: Load) -> Level:
        plan = self.plan
        count = plan.num_prompts or _default_count(load, plan.data)
        drawn = draw(plan.data, self.source, count, self.number, self.drawn)
        self.number += 1
        self.drawn += len(drawn.sessions)
        self.notes += [note for note in drawn.notes if note not in self.notes]
        total, done = sum(len(session.turns) for session in drawn.sessions), 0

        def note(sample: Sample) -> None:
            nonlocal done
            done += 1
            self.on_progress(load.name, done, total)

        if self.number == 1 and plan.warmups:
            await self._warm_up(plan.warmups)
        cpu, start = time.process_time(), time.perf_counter()
        if load.loop == "closed":
            assert load.concurrency is not None
            samples = await closed_samples(self.target, drawn.sessions, load.concurrency, note)
        else:
            due = drawn.due or self._due(load, len(drawn.sessions))
            samples = await open_samples(self.target, drawn.sessions, due, note, load.concurrency)
        busy = (time.process_time() - cpu) / max(1e-9, time.perf_counter() - start)
        return summarise(samples, load, plan.objective, busy)

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


def search(
    runner: Runner,
    start: float,
    most: float = 4096,
    precision: float = 0.05,
    on_level: Callable[[Level], None] = lambda level: None,
) -> Load | None:
    """The largest load that still meets the objective at ``plan.attainment``: doubling, then halving the gap.

    ``start`` is a concurrency or a rate, as the plan's levels are. None: not even ``start`` and its tenth part do.
    ``on_level`` hears of each load that was tried.
    """
    closed = bool(runner.plan.concurrencies)
    assert runner.plan.objective is not None, "a search needs an objective"

    def met(value: float) -> bool:
        level = runner.run(_load(runner.plan, closed, value))
        on_level(level)
        assert level.attainment is not None
        return level.attainment.share >= runner.plan.attainment

    low, high = 0.0, start
    while high <= most and met(high):
        low, high = high, 2 * high
    if not low:
        low = 1.0 if closed else start / 10
        if low >= high or not met(low):
            return None
    smallest = 1.0 if closed else 0.0
    while high - low > max(smallest, precision * high) and high <= most:
        middle = float(int((low + high) / 2)) if closed else (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return _load(runner.plan, closed, low)


def _load(plan: Plan, closed: bool, value: float) -> Load:
    if closed:
        return Load("closed", int(value), None)
    return open_load(plan, value)


def open_load(plan: Plan, rate: float) -> Load:
    return Load("open", plan.max_concurrency, rate, plan.burstiness, unit=plan.data.unit)


def find_model(target: Target) -> str:
    """The first model that the server lists.

    Raises:
        ValueError: it can't be reached, or lists none.
    """
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        answer = httpx.get(f"{target.url.rstrip('/')}/models", headers=headers, timeout=10, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        raise ValueError(f"{target.url}/models gives no model ({error}); name it with --model") from None


def word_source(target: Target, chat: bool) -> WordSource:
    """Prose, its words' length in tokens learnt from the server's own ``usage``; the usual 1.35 where it has none."""
    source = WordSource()
    text = source.draw(random.Random("calibrate"), 400)
    sample = first_request(target, text, chat)
    if sample.failure not in (None, "no token") and sample.prompt_tokens is None:
        reason = f" ({sample.reason})" if sample.reason else ""
        raise ValueError(f"a first request to {target.url} failed: {sample.failure}{reason}")
    if sample.prompt_tokens:
        source.tokens_per_word = sample.prompt_tokens / len(text.split())
    return source


def accepted(target: Target, chat: bool) -> Target:
    """``target`` without ``ignore_eos`` if the server refuses a request for the sake of that, and only of that."""
    without = {key: value for key, value in target.extra.items() if key != "ignore_eos"}
    refusals = ("HTTP 400", "HTTP 422")
    if len(without) == len(target.extra) or first_request(target, "Hello", chat).failure not in refusals:
        return target
    plain = replace(target, extra=without)
    return target if first_request(plain, "Hello", chat).failure in refusals else plain


def first_request(target: Target, text: str, chat: bool) -> Sample:
    """One short answer to ``text``."""
    content: Any = ({"role": "user", "content": text},) if chat else text

    async def once() -> Sample:
        async with httpx.AsyncClient(timeout=_PATIENCE, trust_env=False) as client:
            if target.api_key:
                client.headers["Authorization"] = f"Bearer {target.api_key}"
            return await ask(client, target, Prompt(content, 1), time.perf_counter())

    return asyncio.run(once())


def id_source(model: str) -> IdSource:
    """Ids of real text by the tokenizer of ``model`` (as for `bireme serve`)."""
    from ..models.hub import resolve
    from .text import load_tokenizer, real_text

    tokenizer = load_tokenizer(resolve(model))

    def encode(text: str) -> Sequence[int]:
        return tokenizer.encode(text, add_special_tokens=False)

    return IdSource(tokenizer.vocab_size, encode(real_text(150_000)), encode)
