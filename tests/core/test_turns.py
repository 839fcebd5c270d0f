"""More users than places: long answers take turns, short ones are left alone, and turns are few."""

from __future__ import annotations

from collections.abc import Iterator
from math import log2

import pytest
from simulation import Simulation

from bireme.backends.sim import SimOptions
from bireme.core import yielding
from bireme.core.account import OUTPUT_WEIGHT
from bireme.core.config import EngineConfig
from bireme.core.request import SamplingParams
from bireme.core.waiting import BEGUN_EVERY

TURN = 16


@pytest.fixture(autouse=True)
def short_turns(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(yielding, "QUANTUM", TURN)
    yield


def simulation(places: int = 2, in_flight: int = 2, caching: bool = True, blocks: int = 2000) -> Simulation:
    """Half a second a step: who comes has waited long enough after two."""
    options = SimOptions(num_blocks=blocks, max_in_flight=in_flight, max_model_len=4000, step_seconds=0.5)
    return Simulation(options, EngineConfig(max_num_seqs=places, enable_prefix_caching=caching))


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0)


def preemptions(sim: Simulation) -> int:
    return sim.engine.stats().preemptions


@pytest.mark.parametrize("in_flight", [1, 2])
@pytest.mark.parametrize("caching", [True, False])
def test_equal_users_take_turns(in_flight: int, caching: bool) -> None:
    sim = simulation(in_flight=in_flight, caching=caching)
    asked = [sim.add([5, 6, number], greedy(300), user=f"u{number}") for number in range(5)]
    begun = 0
    while begun < 5:
        sim.step()
        begun = sum(bool(sim.tokens(one)) for one in asked)
    assert max(len(sim.tokens(one)) for one in asked) < 4 * TURN, "all have begun before anybody has made much"
    assert sim.engine.scheduler.rows.num_running == 2
    sim.finish()
    ends = sorted(sim.records[one, 0].arrivals[-1] for one in asked)
    assert ends[0] > 300 and ends[-1] < 1.15 * 5 * 300 / 2, "the places stood empty"


def test_an_answer_shorter_than_a_turn_is_never_interrupted() -> None:
    sim = simulation()
    for number in range(8):
        sim.add([5, 6, number], greedy(TURN + 3), user=f"u{number}")
    sim.finish()
    assert preemptions(sim) == 0


def test_one_near_its_limit_goes_on_to_its_end() -> None:
    """Its turn is over when less than another is left, so whoever waits has a place soon anyway."""
    sim = simulation(places=1)
    for number in range(4):
        sim.add([5, 6, number], greedy(2 * TURN), user=f"u{number}")
    sim.finish()
    assert preemptions(sim) == 0


def test_a_turn_is_as_long_as_what_would_have_to_be_read_again() -> None:
    """After a prompt of so many turns an answer of as many again is let end its own; a shorter one's is over."""
    for prompt, moved in ((8 * TURN, False), (TURN // 2, True)):
        sim = simulation(places=1, caching=False)
        sim.add([5] * prompt, greedy(8 * TURN), user="first")
        sim.add([6] * prompt, greedy(1), user="second")
        sim.finish()
        assert (preemptions(sim) > 0) is moved


def test_turns_double_so_that_they_are_few() -> None:
    sim = simulation(places=1)
    asked = [sim.add([5, 6, number], greedy(500), user=f"u{number}") for number in range(3)]
    groups = [sim.group(one)[0] for one in asked]
    sim.finish()
    most = log2(500 / TURN) + 2
    assert all(2 <= seq.num_admissions <= most for seq in groups)
    assert preemptions(sim) == sum(seq.num_admissions - 1 for seq in groups)


def test_who_holds_a_place_takes_no_turn_of_another() -> None:
    sim = simulation(places=2)
    asked = [sim.add([5 + number] * (3 + 9 * (number % 2)), greedy(400), user="ab"[number % 2]) for number in range(6)]
    sim.run(200)
    users = [seq.account for seq in sim.engine.scheduler.rows.running()]
    assert users[0] is not users[1] and users[0].counter != users[1].counter
    assert preemptions(sim) == 0
    for one in asked:
        sim.abort(one)
    sim.finish()


@pytest.mark.parametrize("weight", [1.0, 2.0])
def test_turns_go_to_who_was_served_least_for_their_weight(weight: float) -> None:
    """Three users over one place for 900 steps: they differ by a turn, no longer than what one answer is by then."""
    sim = simulation(places=1)
    asked = [
        sim.add([5, 6, number], greedy(2000), user=f"u{number}", weight=1.0 if number else weight)
        for number in range(3)
    ]
    worst = 0.0
    for _ in range(900):
        sim.step()
        counters = [sim.engine.scheduler.fairness.account(f"u{number}").counter for number in range(3)]
        worst = max(worst, max(counters) - min(counters))
    longest = max(len(sim.tokens(one)) for one in asked)
    assert longest < 500 and worst <= OUTPUT_WEIGHT * longest
    for one in asked:
        sim.abort(one)
    sim.finish()


def test_a_worse_class_takes_no_turn_of_a_better_one() -> None:
    sim = simulation(places=1)
    good = sim.add([5, 6, 7], greedy(100), user="good", priority=-1)
    sim.run(6)
    sim.add([5, 6, 8], greedy(5), user="other")
    sim.run(80)
    assert preemptions(sim) == 0 and sim.records[good, 0].finish is None
    sim.finish()


def test_ever_new_users_do_not_keep_an_answer_that_made_way_waiting_for_ever() -> None:
    """Somebody nobody has seen always waits, with as little served as anybody: one in so many is the answer's turn."""
    sim = simulation(places=1)
    old = sim.add([5, 6, 7], greedy(100), user="old")
    number = 0
    while sim.records[old, 0].finish is None:
        while sim.engine.scheduler.num_unstarted < 2:
            sim.add([9, number % 250], greedy(2), user=f"new{number}")
            number += 1
        sim.step()
        assert sim.num_steps < 3000, "it was kept waiting"
    assert number > BEGUN_EVERY, "it never waited for long: this shows nothing"
    sim.finish()


def test_turns_are_taken_where_the_cache_is_full_and_places_are_free() -> None:
    options = SimOptions(num_blocks=16, max_in_flight=2, max_model_len=250, step_seconds=0.5)
    sim = Simulation(options, EngineConfig(max_num_seqs=8))
    for number in range(2):
        sim.add([5 + number] * 100, greedy(120), user=f"u{number}")
    late = sim.add([9] * 100, greedy(3), user="late")
    groups = [sim.group(f"r{number}")[0] for number in range(2)]
    while sim.records[late, 0].finish is None:
        sim.step()
    assert sum(seq.finish_reason is None for seq in groups) == 2 and preemptions(sim) > 0
    sim.finish()
