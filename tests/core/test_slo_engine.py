"""Objectives on a simulated device: goodput under overload, gaps between tokens, estimates, refusals."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import pytest
from simulation import Simulation

from bireme.backends.sim import SimOptions
from bireme.bench.timed_backend import LinearCost, TimedBackend
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import QueueFullError, Request, SamplingParams
from bireme.core.slo import Slo, parse_slo
from bireme.core.waiting import LATE_EVERY

COST = LinearCost(0.008, 0.0002, 1e-9)
SLO = Slo(ttft=1.0, tpot=0.05)


@dataclass
class Served:
    """One request's life on the virtual clock."""

    due: float
    user: str = ""
    times: list[float] = field(default_factory=list)
    refused: float | None = None  # seconds to wait

    def good(self, slo: Slo) -> bool:
        assert slo.ttft is not None and slo.tpot is not None
        if not self.times or self.times[0] - self.due > slo.ttft:
            return False
        return len(self.times) < 2 or (self.times[-1] - self.times[0]) / (len(self.times) - 1) <= slo.tpot

    def worst_gap(self) -> float:
        return max((b - a for a, b in zip(self.times, self.times[1:], strict=False)), default=0.0)


def poisson(rate: float, seconds: float, rng: random.Random) -> list[float]:
    due, now = [], 0.0
    while (now := now + rng.expovariate(rate)) < seconds:
        due.append(now)
    return due


def serve(
    config: EngineConfig,
    due: Sequence[float],
    prompts: Sequence[int],
    outputs: int = 40,
    users: Sequence[str] = ("",),
) -> list[Served]:
    """Run all of an open loop's requests to their end; request i comes at ``due[i]``."""
    backend = TimedBackend(4000, 16, 8192, COST)
    engine = Engine(backend, config, backend.clock)
    waiting = [Served(when, users[i % len(users)]) for i, when in enumerate(due)]
    found: dict[str, Served] = {}
    at = 0
    while at < len(waiting) or engine.has_work():
        while at < len(waiting) and waiting[at].due <= backend.clock.now:
            one = waiting[at]
            prompt = tuple((at * 7919 + j) % 50_000 + 5 for j in range(prompts[at % len(prompts)]))
            params = SamplingParams(max_tokens=outputs, temperature=0.0, ignore_eos=True)
            try:
                engine.add(Request(f"r{at}", prompt, params, one.user, arrival_time=one.due))
                found[f"r{at}"] = one
            except QueueFullError as error:
                assert error.code == "slo_unattainable"
                one.refused = error.retry_after
            at += 1
        if not engine.has_work():
            backend.clock.advance_to(waiting[at].due)
            continue
        for output in engine.step():
            found[output.request_id].times += [backend.clock.now] * len(output.token_ids)
    return waiting


def config(slo: Slo | None, policy: str = "queue") -> EngineConfig:
    return EngineConfig(max_num_seqs=32, max_queue=100_000, slo=slo, slo_policy=policy, enable_prefix_caching=False)


def overloaded(slo: Slo | None, policy: str = "queue", rate: float = 14.0) -> list[Served]:
    rng = random.Random(5)
    prompts = [rng.choice((200, 400, 800)) for _ in range(97)]
    return serve(config(slo, policy), poisson(rate, 25, random.Random(3)), prompts)


def test_goodput_under_overload_is_higher_with_an_objective() -> None:
    plain, queued, refusing = overloaded(None), overloaded(SLO), overloaded(SLO, "refuse")
    good = [sum(one.good(SLO) for one in run) for run in (plain, queued, refusing)]
    assert good[0] < 0.1 * len(plain) and good[1] > 0.5 * len(plain) and good[2] > good[1]
    assert all(one.times for one in queued), "with 'queue' everybody is served in the end"
    taken = [one for one in refusing if one.refused is None]
    assert len(taken) < len(refusing) and all(one.times for one in taken)
    assert good[2] > 0.95 * len(taken), "who is taken is in time"


def test_an_objective_that_is_met_anyway_changes_no_order() -> None:
    calm = [overloaded(slo, policy, rate=2.0) for slo, policy in ((None, "queue"), (SLO, "queue"), (SLO, "refuse"))]
    assert all(one.good(SLO) for one in calm[1]) and all(one.good(SLO) for one in calm[2])
    assert sum(one.good(SLO) for one in calm[0]) <= len(calm[0])


@pytest.mark.parametrize("tpot", [0.02, 0.05, 0.1])
def test_gaps_between_tokens_stay_under_the_bound(tpot: float) -> None:
    """Long prompts, many streams: no step takes longer than the objective, once the cost is known."""
    slo = Slo(ttft=2.0, tpot=tpot)
    due = poisson(8, 20, random.Random(1))
    served = serve(config(slo), due, (3000, 100, 1500), outputs=60)
    settled = [one for one in served if one.due > 2]
    assert max(one.worst_gap() for one in settled) <= tpot
    without = serve(config(None), due, (3000, 100, 1500), outputs=60)
    assert max(one.worst_gap() for one in without if one.due > 2) > tpot


def test_prompts_still_move_where_streams_fill_the_bound() -> None:
    served = serve(config(Slo(tpot=0.012)), poisson(20, 5, random.Random(2)), (400,), outputs=50)
    assert all(len(one.times) == 50 for one in served)


def test_who_is_late_is_passed_but_not_for_ever() -> None:
    """With a flood that is always in time, one of the late goes in at every eighth admission at least."""
    sim = Simulation(
        SimOptions(num_blocks=64, max_in_flight=1, step_seconds=0.01),
        EngineConfig(max_num_seqs=1, slo=Slo(ttft=0.5)),
    )
    params = SamplingParams(max_tokens=3, temperature=0.0)
    late = [sim.add([5, 6, 7], params) for _ in range(3)]
    sim.clock.advance_to(10.0)
    order: list[str] = []
    while len(order) < 40:
        while len(sim.engine.scheduler.queue) < 6:
            sim.add([5, 6, 7], params)
        sim.step()
        for seq in sim.engine.scheduler.rows.running():
            if seq.request_id not in order:
                order.append(seq.request_id)
    places = sorted(order.index(one) for one in late)
    assert places[0] >= LATE_EVERY - 1, "who can be in time goes first"
    assert all(b - a <= LATE_EVERY for a, b in zip((-1, *places), places, strict=False))
    sim.finish()


def test_one_user_who_is_always_late_takes_nothing_from_another() -> None:
    """The objective orders each user's own line: between users the counters decide, as ever."""
    rng = random.Random(4)
    due = poisson(16, 30, rng)
    served = serve(config(SLO), due, (400,), users=("flood", "flood", "flood", "flood", "calm"))
    good: dict[str, list[bool]] = defaultdict(list)
    for one in served:
        good[one.user].append(one.good(SLO))
    share = {user: sum(found) / len(found) for user, found in good.items()}
    assert share["calm"] > 0.9 > share["flood"]


def test_estimates_are_near_what_comes() -> None:
    """The estimate behind a refusal, against the wait there really was, of requests that were taken."""
    from bireme.core.estimate import first_token_seconds

    backend = TimedBackend(4000, 16, 8192, COST)
    engine = Engine(backend, config(Slo(ttft=60.0)), backend.clock)
    params = SamplingParams(max_tokens=30, temperature=0.0, ignore_eos=True)
    rng, expected, came = random.Random(6), {}, {}
    due = poisson(11, 15, rng)
    at = 0
    while at < len(due) or engine.has_work():
        while at < len(due) and due[at] <= backend.clock.now:
            count = rng.choice((100, 600, 1200))
            account = engine.scheduler.fairness.account("")
            expected[at] = first_token_seconds(engine.scheduler, account, 0, count, engine._door.pace())
            came[at] = -backend.clock.now
            engine.add(Request(f"{at}", tuple(rng.randrange(5, 50_000) for _ in range(count)), params))
            at += 1
        if not engine.has_work():
            backend.clock.advance_to(due[at])
            continue
        for output in engine.step():
            number = int(output.request_id)
            if output.token_ids and came[number] <= 0:
                came[number] += backend.clock.now
    later = [i for i in came if i > 20 and came[i] > 0.3]
    ratios = sorted(expected[i] / came[i] for i in later)
    assert len(later) > 50
    assert 0.5 < ratios[len(ratios) // 10] and ratios[-len(ratios) // 10] < 2.0, ratios


def test_a_refusal_has_the_numbers_and_an_idle_engine_refuses_nobody() -> None:
    backend = TimedBackend(4000, 16, 8192, COST)
    engine = Engine(backend, config(Slo(ttft=0.05), "refuse"), backend.clock)
    params = SamplingParams(max_tokens=200, temperature=0.0, ignore_eos=True)
    engine.add(Request("long", (5,) * 4000, params))  # nothing could make it faster
    with pytest.raises(
        QueueFullError, match=r"first token would come after about \d+\.\d s.*objective is 0.05 s"
    ) as it:
        engine.add(Request("second", (6,) * 4000, params))
    assert it.value.code == "slo_unattainable" and it.value.retry_after >= 1
    stats = engine.stats()
    assert stats.requests_rejected == stats.requests_unattainable == 1


@pytest.mark.parametrize(
    ("text", "ttft", "tpot"),
    [("ttft=1s,tpot=50ms", 1.0, 0.05), (" tpot = 0.5s ", None, 0.5), ("tpot=1ms,ttft=3600s", 3600.0, 0.001)],
)
def test_objectives_are_read(text: str, ttft: float | None, tpot: float | None) -> None:
    assert parse_slo(text) == Slo(ttft, tpot) == parse_slo(str(Slo(ttft, tpot)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no term"), ("ttft=1", "no term"), ("e2e=1s", "'e2e=1s'"), ("ttft=1s;tpot=1s", "no term"),
        ("ttft=1s,ttft=2s", "ttft twice"), ("ttft=0s", "must be 1 ms to 3600 s"), ("tpot=2h", "no term"),
        ("ttft=-1s", "no term"), ("tpot=5000s", "must be 1 ms"),
    ],
)  # fmt: skip
def test_wrong_objectives_are_refused_with_the_term(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        parse_slo(text)
