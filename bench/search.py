"""The search for the largest load that still meets an objective."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from .level import Level, Load
from .serve import Plan

#: Users at once, or requests a second: no search goes further.
MOST = 4096


class Loaded(Protocol):
    """What loads are tried on: a server, or a simulated one."""

    @property
    def plan(self) -> Plan: ...

    def run(self, load: Load) -> Level:
        """One level, to its end."""
        ...


def search(runner: Loaded, start: float, precision: float = 0.05) -> Load | None:
    """The largest load that still meets the objective at ``plan.attainment``: doubling, then halving the gap.

    ``start`` is a concurrency or a rate, as the plan's levels are. None: not even ``start`` and its tenth part (of
    users: a single one) do.

    Raises:
        ValueError: ``start`` is beyond what the search can try.
    """
    plan = runner.plan
    closed, most = bool(plan.traffic.concurrencies), _most(plan)
    if start > most:
        raise ValueError(f"--find-goodput can't start at {start:g}: {_bound(plan)}")

    def met(value: float) -> bool:
        return meets(runner.run(plan.traffic.load_at(value)), plan.attainment)

    low, high = 0.0, start
    while met(high):
        if high == most:
            return plan.traffic.load_at(high)
        low, high = high, min(2 * high, most)
    if not low:
        low = 1.0 if closed else start / 10
        if low >= high or not met(low):
            return None
    smallest = 1.0 if closed else 0.0
    while high - low > max(smallest, precision * high):
        middle = float(int((low + high) / 2)) if closed else (low + high) / 2
        low, high = (middle, high) if met(middle) else (low, middle)
    return plan.traffic.load_at(low)


def meets(level: Level, attainment: float) -> bool:
    """Whether so large a share of the requests met the objective; a level that was interrupted shows nothing."""
    assert level.attainment is not None, "a search needs an objective"
    return level.attainment.share >= attainment and not level.unfinished


def verdict(levels: Sequence[Level], plan: Plan, bounds: str) -> str:
    """What a search found, in a sentence: with what it knows of larger loads. ``bounds``: the objective as asked."""
    share = f"{plan.attainment:.0%} of the requests meet {bounds}"
    best = largest_met(levels, plan.attainment)
    rest = sorted((level for level in levels if not level.unfinished), key=lambda level: level.load.x or 0)
    if not rest:
        return f"GOODPUT: no load was tried to its end, so it isn't known at which {share}"
    if best is None:
        tried = f"at {rest[0].load.name} it was {_share(rest[0]):.1%}"
        return f"GOODPUT: no load tried is small enough that {share}; {tried}"
    larger = [level for level in rest if (level.load.x or 0) > (best.load.x or 0)]
    beyond = f"at {larger[0].load.name} it is {_share(larger[0]):.1%}" if larger else "nothing larger was tried"
    if not larger and best.load.x == _most(plan):
        beyond += f" ({_bound(plan)})"
    return (
        f"GOODPUT: {best.load.name} ({best.goodput or 0:.2f} good req/s, {best.output_throughput:.0f} tok/s) is the "
        f"largest load tried at which {share}; {beyond}"
    )


def largest_met(levels: Sequence[Level], attainment: float) -> Level | None:
    """The largest load's level among those that meet the objective."""
    met = [level for level in levels if meets(level, attainment)]
    return max(met, key=lambda level: level.load.x or 0.0, default=None)


def _share(level: Level) -> float:
    return level.attainment.share if level.attainment else 0.0


def _most(plan: Plan) -> float:
    """The largest load that can be put on: no more users than there are requests (or conversations) for them."""
    traffic = plan.traffic
    if not traffic.concurrencies or traffic.num_prompts is None:
        return MOST
    return min(MOST, traffic.data.sessions(traffic.num_prompts))


def _bound(plan: Plan) -> str:
    if _most(plan) < MOST:
        return f"--num-prompts {plan.traffic.num_prompts} keeps {_most(plan):g} users busy at most; give more"
    return f"a search goes up to {MOST} {'users' if plan.traffic.concurrencies else 'a second'}"
