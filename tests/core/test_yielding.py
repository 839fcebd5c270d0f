"""Places shared out by weight: long answers make way for who has waited."""

from __future__ import annotations

from collections import Counter

import pytest
from simulation import Simulation

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.request import SamplingParams
from bireme.core.yielding import PATIENCE

LONG = SamplingParams(max_tokens=150, temperature=0.0)
SHORT = SamplingParams(max_tokens=4, temperature=0.0)


def flooded(in_flight: int = 1, places: int = 4, blocks: int = 2000) -> Simulation:
    """One user's long answers fill every place, and more of them wait."""
    options = SimOptions(num_blocks=blocks, max_in_flight=in_flight, max_model_len=1000)
    sim = Simulation(options, EngineConfig(max_num_seqs=places, max_num_batched_tokens=64))
    for number in range(2 * places):
        sim.add([5, 6, number], LONG, user="flood")
    sim.run(places + 4)
    assert places_of(sim) == {"flood": places}
    return sim


def places_of(sim: Simulation) -> Counter[str]:
    return Counter(seq.account.user for seq in sim.engine.scheduler.rows.running())


def wait(sim: Simulation) -> None:
    sim.clock.now += PATIENCE


@pytest.mark.parametrize("in_flight", [1, 2])
def test_a_newcomer_gets_a_place_of_who_holds_them_all(in_flight: int) -> None:
    sim = flooded(in_flight)
    late = sim.add([7, 8], SHORT, user="late")
    sim.run(3)
    assert not sim.records[late, 0].tokens, "places may become free by themselves for a while"
    wait(sim)
    sim.run(12)
    assert sim.records[late, 0].finish is not None
    assert places_of(sim) == {"flood": 4}, "who made way is back"
    assert sim.finish().preemptions == 1  # and every answer is what it would have been alone


@pytest.mark.parametrize(("weight", "places"), [(1.0, 4), (3.0, 6)])
def test_places_are_shared_by_weight_and_then_nobody_moves(weight: float, places: int) -> None:
    sim = flooded(places=8)
    sim.engine.scheduler.fairness.set_weight("late", weight)
    for number in range(10):
        sim.add([9, number], LONG, user="late")
    wait(sim)
    sim.run(60)
    assert places_of(sim)["late"] == places
    moved = sim.engine.stats().preemptions
    sim.run(40)
    assert moved == places == sim.engine.stats().preemptions
    sim.finish()


def test_a_second_place_comes_when_reading_again_costs_no_more_than_was_made() -> None:
    """The first is there at once, however long the prompts of whoever holds them all; a place more waits."""
    options = SimOptions(num_blocks=2000, max_in_flight=1, max_model_len=1000)
    sim = Simulation(options, EngineConfig(max_num_seqs=4, max_num_batched_tokens=1000))
    for number in range(8):
        sim.add([5 + number] * 90, LONG, user="flood")
    sim.run(4)
    for number in range(8):
        sim.add([50 + number] * 90, LONG, user="late")
    wait(sim)
    sim.run(20)
    assert places_of(sim) == {"flood": 3, "late": 1}
    while places_of(sim)["late"] < 2:
        sim.step()
    made = [seq.num_outputs for seq in sim.engine.scheduler.rows.running() if seq.account.user == "flood"]
    assert min(made) >= 89 and sim.engine.stats().preemptions == 2
    sim.finish()


def test_a_better_priority_takes_a_place_of_the_worst() -> None:
    sim = flooded()
    urgent = [sim.add([3, number], LONG, user="flood", priority=-1) for number in range(6)]
    wait(sim)
    sim.run(20)
    running = {seq.group.request.request_id for seq in sim.engine.scheduler.rows.running()}
    assert running == set(urgent[:4])
    sim.finish()


def test_a_user_alone_never_makes_way() -> None:
    sim = flooded()
    wait(sim)
    sim.run(50)
    assert sim.engine.stats().preemptions == 0
    sim.finish()


def test_a_newcomer_that_the_full_cache_keeps_out_gets_room() -> None:
    """Free places are no use where four long prompts, and the little that they will still grow, fill all blocks."""
    options = SimOptions(num_blocks=45, max_model_len=200)
    sim = Simulation(options, EngineConfig(max_num_seqs=16, max_num_batched_tokens=1000))
    for number in range(6):
        sim.add([number] * 160, SamplingParams(max_tokens=30, temperature=0.0), user="flood")
    sim.run(4)
    assert places_of(sim) == {"flood": 4}
    late = sim.add([7] * 60, SHORT, user="late")
    wait(sim)
    sim.run(10)
    assert sim.records[late, 0].finish is not None and places_of(sim)["flood"] >= 3
    sim.finish()
