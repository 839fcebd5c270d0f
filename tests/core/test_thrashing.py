"""More than the KV cache holds: answers push each other out, and still everybody gets a share and everything ends."""

from __future__ import annotations

from typing import NamedTuple
from unittest.mock import patch

import hypothesis.strategies as st
from hypothesis import HealthCheck, given, settings
from simulation import Simulation, give_way

from bireme.backends.sim import SimOptions
from bireme.core import yielding
from bireme.core.config import EngineConfig
from bireme.core.request import SamplingParams
from bireme.core.yielding import QUANTUM


def greedy(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0)


def thrashing(in_flight: int = 2, answers: int = 8) -> Simulation:
    """One user's answers, of which three or four fit at once when they are long, and some were pushed out."""
    options = SimOptions(num_blocks=30, max_in_flight=in_flight, max_model_len=300)
    sim = Simulation(options, EngineConfig(max_num_seqs=16, max_num_batched_tokens=256))
    for number in range(answers):
        sim.add([5, 6, number], greedy(200), user="heavy")
    while len(sim.engine.scheduler.queue.preempted()) < answers - 4:
        sim.step()
    return sim


def test_a_newcomer_passes_what_another_users_own_answers_pushed_out() -> None:
    sim = thrashing()
    before = sim.engine.stats().tokens_generated
    late = sim.add([9, 9, 9], greedy(5), user="light")
    sim.run(12)
    assert sim.records[late, 0].finish is not None
    assert sim.engine.scheduler.queue.preempted(), "the heavy user's answers wait on"
    assert sim.engine.stats().tokens_generated - before > 12, "and its others went on meanwhile"
    sim.finish()


def test_of_equal_users_those_that_were_pushed_out_go_first() -> None:
    """One answer each: a newcomer does not push its way into a full cache before them."""
    sim = Simulation(SimOptions(num_blocks=12, max_model_len=200), EngineConfig(max_num_seqs=8))
    for number in range(6):
        sim.add([5, 6, number], greedy(100), user=f"u{number}")
    while not sim.engine.scheduler.queue.preempted():
        sim.step()
    sim.add([9, 9, 9], greedy(5), user="new")
    head = sim.engine.scheduler.queue.head()
    assert head is not None and head.num_preemptions == 1
    sim.finish()


def test_the_preempted_of_who_holds_nothing_goes_before_that_of_who_holds_much() -> None:
    sim = thrashing()
    other = sim.add([7, 7, 7], greedy(40), user="other")
    sim.run(6)
    (seq,) = sim.group(other)
    assert seq.row >= 0
    give_way(sim, seq)
    assert sim.engine.scheduler.queue.head() is seq, "younger than all of them"
    sim.finish()


def test_nobody_pushes_out_whom_they_owe_a_place() -> None:
    """The light user's answer is the cheapest to restore all the time, and is left alone; its own user's go instead."""
    sim = thrashing()
    light = sim.add([9, 9, 9], greedy(60), user="light")
    (seq,) = sim.group(light)
    before = sim.engine.stats().preemptions
    while sim.records[light, 0].finish is None:
        sim.step()
    assert seq.num_preemptions == 0 and seq.num_admissions == 1
    assert sim.engine.stats().preemptions > before, "nothing was pushed out meanwhile: this shows nothing"
    sim.finish()


def test_ever_new_users_keep_no_preempted_answer_waiting_for_ever() -> None:
    """Each newcomer is of a user nobody has seen, with as little served as anybody, and another one always waits."""
    sim = thrashing()
    heavy = [sim.records[f"r{number}", 0] for number in range(8)]
    passed = 0
    for number in range(6000):
        while sim.engine.scheduler.num_unstarted < 2:
            sim.add([9, number % 250], greedy(4), user=f"new{number}")
        waited, unstarted = sim.engine.scheduler.queue.preempted(), sim.engine.scheduler.num_unstarted
        sim.step()
        passed += bool(waited) and sim.engine.scheduler.num_unstarted < unstarted
        if all(record.finish is not None for record in heavy):
            break
    else:
        raise AssertionError("an answer was kept waiting")
    assert passed > 10, "nobody went before them: this shows nothing"
    sim.finish()


class User(NamedTuple):
    weight: float
    requests: int
    prompt: int
    answer: int
    every: int  # steps from one request to the next
    priority: int
    n: int


USERS = st.builds(
    User,
    weight=st.sampled_from([0.25, 1.0, 1.0, 4.0]),
    requests=st.integers(1, 8),
    prompt=st.integers(1, 60),
    answer=st.integers(1, 120),
    every=st.integers(0, 12),
    priority=st.sampled_from([0, 0, 0, 1]),
    n=st.sampled_from([1, 1, 3]),
)


@given(
    users=st.lists(USERS, min_size=1, max_size=5),
    blocks=st.integers(12, 30),
    places=st.integers(1, 12),
    extra=st.sampled_from([0, 8, 200]),
    in_flight=st.sampled_from([1, 2]),
    caching=st.booleans(),
    seconds=st.sampled_from([0.001, 0.3]),
    quantum=st.sampled_from([3, 30, QUANTUM]),
)
@settings(max_examples=20, deadline=None, derandomize=True, database=None, suppress_health_check=[HealthCheck.too_slow])
def test_everything_ends_and_tokens_never_stop_coming(
    users: list[User],
    blocks: int,
    places: int,
    extra: int,
    in_flight: int,
    caching: bool,
    seconds: float,
    quantum: int,
) -> None:
    """No two push each other out for ever: as long as there is work, a token comes within so many steps as reading all
    that fits into the cache can take. (Each step's blocks, and each answer, are checked by the simulation.)"""
    options = SimOptions(
        num_blocks=blocks, block_size=8, max_model_len=180, max_in_flight=in_flight, step_seconds=seconds
    )
    config = EngineConfig(
        block_size=8, max_num_seqs=places, max_num_batched_tokens=places + extra, enable_prefix_caching=caching
    )
    sim = Simulation(options, config)
    patience = blocks * 8 // min(8, extra + 1) + 4 * in_flight + 4
    with patch.object(yielding, "QUANTUM", quantum):
        run_all(sim, users, patience)
    stats = sim.finish()
    assert stats.preemptions <= 8 * len(sim.records) + 8, "sequences are preempted again and again"


def run_all(sim: Simulation, users: list[User], patience: int) -> None:
    """Everybody's requests, each at its step, until all have ended; a token comes every ``patience`` steps at least."""
    due = [(turn * user.every, number) for number, user in enumerate(users) for turn in range(user.requests)]
    due.sort(reverse=True)
    made, quiet = 0, 0
    while due or sim.engine.has_work():
        while due and due[-1][0] <= sim.num_steps:
            step, number = due.pop()
            user = users[number]
            prompt = [5 + number] * (user.prompt - 1) + [5 + step % 200]
            params = SamplingParams(max_tokens=user.answer, temperature=0.0, n=user.n)
            sim.add(prompt, params, user=f"u{number}", weight=user.weight, priority=user.priority)
        quiet = quiet + 1 if sim.engine.has_work() else 0
        sim.step()
        if (now := sim.engine.stats().tokens_generated) > made:
            made, quiet = now, 0
        assert quiet <= patience, sim.engine.stats()
