"""Who goes next: priorities, the preempted, counters, arrival."""

from __future__ import annotations

import random

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings
from simulation import Simulation, give_way

from bireme.backends.sim import SimBackend, SimOptions
from bireme.core.account import OUTPUT_WEIGHT, PROMPT_WEIGHT, Account
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.fairness import MAX_IDLE_ACCOUNTS, Fairness
from bireme.core.request import QueueFullError, Request, SamplingParams
from bireme.core.sequence import Group, Sequence
from bireme.core.waiting import BEGUN_EVERY, WaitingQueue

ROWS, LONGEST = 4, 64


def order_of_admission(sim: Simulation) -> list[str]:
    seen: list[str] = []
    while sim.engine.has_work():
        sim.step()
        for seq in sim.engine.scheduler.rows.running():
            if seq.group.request.request_id not in seen:
                seen.append(seq.group.request.request_id)
    sim.finish()
    return seen


def one_at_a_time() -> Simulation:
    config = EngineConfig(max_num_seqs=1, max_num_batched_tokens=64)
    return Simulation(SimOptions(num_blocks=64, max_in_flight=1), config)


def params(tokens: int) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0)


def test_lower_priorities_go_first_then_arrival() -> None:
    sim = one_at_a_time()
    for priority in (1, 0, 1, -5, 0):
        sim.add([5, 6, 7], params(3), priority=priority)
    assert order_of_admission(sim) == ["r3", "r1", "r4", "r0", "r2"]


def test_a_flood_does_not_delay_another_user() -> None:
    sim = one_at_a_time()
    for _ in range(10):
        sim.add([5, 6, 7], params(3), user="flood")
    sim.step()
    late = sim.add([5, 6, 7], params(3), user="late")
    assert order_of_admission(sim).index(late) <= 2


@pytest.mark.parametrize("weight", [1.0, 3.0])
@pytest.mark.parametrize("seed", range(2))
def test_backlogged_users_are_served_alike_up_to_a_constant(seed: int, weight: float) -> None:
    rng = random.Random(seed)
    options = SimOptions(num_blocks=40, block_size=8, max_model_len=LONGEST, max_in_flight=rng.choice([1, 2]))
    config = EngineConfig(block_size=8, max_num_seqs=ROWS, max_num_batched_tokens=32, enable_prefix_caching=False)
    sim = Simulation(options, config)
    fairness = sim.engine.scheduler.fairness
    fairness.set_weight("b", weight)
    a, b = fairness.account("a"), fairness.account("b")
    shapes = {"a": (2, 40), "b": (30, 3)}  # short prompts and long answers against the opposite
    bound = 2 * max(LONGEST, 2 * ROWS * LONGEST)  # theorem 4.4 of the paper: 2 max(w_p L, w_q M)
    start: float | None = None
    worst = 0.0
    for _ in range(1500):
        for account in (a, b):
            while account.waiting < 3:
                length, answer = shapes[account.user]
                prompt = [rng.randrange(5, 200) for _ in range(rng.randint(1, length))]
                sim.add(prompt, params(rng.randint(1, answer)), user=account.user)
        sim.step()
        start = a.counter - b.counter if start is None else start
        worst = max(worst, abs(a.counter - b.counter - start))
    assert worst <= bound
    assert min(a.counter, b.counter) > 2 * bound, "too short a run to show anything"
    sim.finish()


@given(
    weights=st.tuples(st.sampled_from([0.5, 1.0, 3.0]), st.sampled_from([1.0, 2.0, 3.0])),
    shapes=st.tuples(*[st.tuples(st.integers(1, 30), st.integers(1, 40))] * 2),
    rows=st.integers(1, 4),
)
@example(weights=(0.5, 1.0), shapes=((4, 2), (1, 1)), rows=4)
@settings(max_examples=12, deadline=None)
def test_backlogged_users_are_served_by_their_weights(
    weights: tuple[float, float], shapes: tuple[tuple[int, int], tuple[int, int]], rows: int
) -> None:
    """Weights that come with the requests: what each was served, divided by the weight, differs by a constant.

    Counted from outside: tokens of prompts read and tokens made, whatever the users' requests look like.
    """
    options = SimOptions(num_blocks=60, block_size=8, max_model_len=80, max_in_flight=2)
    config = EngineConfig(block_size=8, max_num_seqs=rows, max_num_batched_tokens=32, enable_prefix_caching=False)
    engine = Engine(SimBackend(options), config)
    users = dict(zip("ab", zip(weights, shapes, strict=True), strict=True))
    owner: dict[str, str] = {}
    served = dict.fromkeys(users, 0.0)
    for _ in range(700):
        for user, (weight, (prompt, answer)) in users.items():
            while engine.scheduler.fairness.account(user).waiting < 12:  # more than a step can admit
                owner[name := f"r{len(owner)}"] = user
                request = Request(name, (5,) * prompt, params(answer), user, weight=weight)
                engine.add(request)
        for output in engine.step():
            user = owner[output.request_id]
            weight, (prompt, _) = users[user]
            first = output.cached_tokens is not None
            served[user] += (PROMPT_WEIGHT * prompt * first + OUTPUT_WEIGHT * len(output.token_ids)) / weight
    assert engine.scheduler.fairness.account("a").weight == weights[0]
    bound = 2 * max(80, 2 * rows * 80) / min(weights)
    assert abs(served["a"] - served["b"]) <= bound
    engine.close()


def test_a_weight_of_three_gets_three_tokens_for_one() -> None:
    """The same requests, always waiting: 1 to 3, within a request's length."""
    sim = one_at_a_time()
    made = {"one": 0, "three": 0}
    owner: dict[str, str] = {}
    for _ in range(4000):
        for user, weight in (("one", 1.0), ("three", 3.0)):
            if sim.engine.scheduler.fairness.account(user).waiting < 2:
                name = f"{user}{len(owner)}"
                owner[name] = user
                sim.engine.add(Request(name, (5, 6, 7), params(10), user, weight=weight))
        for output in sim.engine.step():
            made[owner[output.request_id]] += len(output.token_ids)
    assert abs(made["three"] - 3 * made["one"]) <= 4 * 10
    assert made["one"] > 500


def test_one_user_fills_only_their_own_line() -> None:
    sim = Simulation(SimOptions(num_blocks=64), EngineConfig(max_num_seqs=1, max_queue=6, max_queue_per_user=2))
    for _ in range(2):
        sim.add([5, 6], params(3), user="a")
    with pytest.raises(QueueFullError, match=r"2 requests of this user are waiting, .*max_queue_per_user"):
        sim.add([5, 6], params(3), user="a")
    sim.add([5, 6], params(3), user="b")
    with pytest.raises(QueueFullError):
        sim.engine.review(Request("x", (5,), params(3), "b"), beside=1, beside_own=1)
    sim.step()  # one of them runs
    sim.add([5, 6], params(3), user="a")
    sim.finish()


def test_nobody_saves_up_credit_by_staying_away() -> None:
    sim = one_at_a_time()
    for _ in range(20):
        sim.add([5, 6, 7], params(10), user="busy")
    sim.run(100)
    back = sim.add([5, 6, 7], params(10), user="back")
    accounts = sim.engine.scheduler.fairness.accounts
    assert accounts["back"].counter == accounts["busy"].counter > 0
    assert back
    sim.finish()


def test_one_that_gave_way_lends_nobody_the_credit_of_its_user() -> None:
    """The user of a single stream falls behind those who always wait; when it gives way, a newcomer still begins where
    those stand, and so does what its user sends then."""
    config = EngineConfig(max_num_seqs=3, max_num_batched_tokens=64, enable_prefix_caching=False)
    sim = Simulation(SimOptions(num_blocks=300), config)
    stream = sim.add([5, 6, 7], params(900), user="stream")
    accounts = sim.engine.scheduler.fairness.accounts
    for _ in range(300):
        while sim.engine.scheduler.fairness.account("busy").waiting < 5:
            sim.add([7] * 40, params(5), user="busy")
        sim.step()
    assert accounts["busy"].counter > 2 * accounts["stream"].counter
    give_way(sim, sim.group(stream)[0])
    sim.add([9] * 10, params(5), user="new")
    assert accounts["new"].counter == accounts["busy"].counter
    sim.add([9] * 10, params(5), user="stream")
    assert accounts["stream"].counter == accounts["busy"].counter
    head = sim.engine.scheduler.queue.head()
    assert head is not None and head.request_id == stream, "it still goes first itself"
    sim.finish()


class PlainQueue:
    """One class of the queue, by plain search."""

    def __init__(self) -> None:
        self.lines: dict[Account, list[Sequence]] = {}
        self.preempted: list[Sequence] = []
        self.begun: list[Sequence] = []
        self.passed = 0

    def join(self, seq: Sequence, how: str) -> None:
        if how == "push_preempted":
            self.preempted.append(seq)
            return
        line = self.lines.setdefault(seq.account, [])
        line.insert(0 if how == "push_front" else len(line), seq)
        if how == "push_front":
            self.begun.append(seq)

    def waiting(self) -> list[Sequence]:
        return [*self.preempted, *(seq for line in self.lines.values() for seq in line)]

    def remove(self, seq: Sequence) -> None:
        self.passed = self.passed + 1 if self.begun and seq is not self.begun[0] else 0
        for where in (self.preempted, self.begun, self.lines.get(seq.account, [])):
            if seq in where:
                where.remove(seq)
        if not self.lines.get(seq.account, [seq]):
            del self.lines[seq.account]

    def may_be_first(self) -> list[Sequence]:
        """Users with the same counter are equal here."""
        if self.passed >= BEGUN_EVERY - 1:
            return self.begun[:1]
        counter = min((account.counter for account in self.lines), default=0.0)
        least = [line[0] for account, line in self.lines.items() if account.counter == counter]
        if not self.preempted:
            return least
        first = min(self.preempted, key=lambda seq: (seq.account.running / seq.account.weight, seq.order))
        passing = [seq for seq in least if first.account.owes(seq.account)]
        return passing + [first] * (len(passing) < len(least) or not least)


@pytest.mark.parametrize("seed", range(4))
def test_the_head_is_who_a_plain_search_finds(seed: int) -> None:
    """Whoever joins in whichever way, leaves, is charged or is passed; and nothing piles up."""
    rng = random.Random(seed)
    fairness = Fairness()
    queue = WaitingQueue(fairness)
    plain = {0: PlainQueue(), 1: PlainQueue()}
    ways = ["push", "push", "push", "push_front", "push_preempted"]
    seen = set()
    for order in range(4000):
        account = fairness.account(f"u{rng.randrange(30)}")
        waiting = [seq for cls in plain.values() for seq in cls.waiting()]
        if len(waiting) < 40:
            seq = waiting_sequence(account, order, rng.choice([0, 0, 1]))
            how = rng.choice(ways)
            getattr(queue, how)(seq)
            plain[seq.priority].join(seq, how)
        account.charge(rng.randrange(3))
        account.running, account.weight = rng.randrange(5), rng.choice([0.5, 1.0, 2.0])
        while (waiting := [seq for cls in plain.values() for seq in cls.waiting()]) and rng.random() < 0.45:
            cls = plain[min(seq.priority for seq in waiting)]
            head, expected = queue.head(), cls.may_be_first()
            assert head in expected
            seen.add("begun" if expected == cls.begun[:1] else "preempted" if head in cls.preempted else "other")
            leaving = head if rng.random() < 0.7 else rng.choice(waiting)
            assert leaving is not None
            queue.remove(leaving)
            plain[leaving.priority].remove(leaving)
        assert len(queue) == len(waiting) and (queue.head() is None) is (not waiting)
        assert set(queue.preempted()) == {seq for cls in plain.values() for seq in cls.preempted}
    assert seen == {"begun", "preempted", "other"}
    assert sum(len(cls.heap) for cls in queue._classes.values()) < 200


def waiting_sequence(account: Account, order: int, priority: int) -> Sequence:
    group = Group(Request(f"r{order}", (5,), params(1)), account)
    return Sequence(group, f"r{order}", 0, order, 0, 9, frozenset(), [5], account, priority, 1)


def test_bad_weights_are_refused() -> None:
    with pytest.raises(ValueError, match="above 0"):
        Fairness().set_weight("x", 0.0)


def test_idle_accounts_do_not_pile_up() -> None:
    fairness = Fairness()
    for i in range(3 * MAX_IDLE_ACCOUNTS):
        fairness.account(f"u{i}")
    assert len(fairness.accounts) <= MAX_IDLE_ACCOUNTS + 1


def test_more_users_may_be_busy_than_idle_accounts_are_kept() -> None:
    fairness = Fairness()
    for i in range(MAX_IDLE_ACCOUNTS + 2000):
        fairness.account(f"idle{i}")
        account = fairness.account(f"u{i}")
        fairness.arrived(account)
        assert fairness.account(f"u{i}") is account
    assert len(fairness.accounts) <= 2 * MAX_IDLE_ACCOUNTS
    assert all(fairness.account(f"u{i}").waiting == 1 for i in range(MAX_IDLE_ACCOUNTS + 2000))


def test_the_preempted_go_first_within_their_class() -> None:
    options = SimOptions(num_blocks=8, max_in_flight=2)
    sim = Simulation(options, EngineConfig(max_num_seqs=2, max_num_batched_tokens=256))
    first = [sim.add([5 + i] * 50, params(60), user="a") for i in range(2)]
    while not sim.engine.scheduler.counters.preemptions:
        sim.step()
    sim.add([9] * 50, params(5), user="b")
    head = sim.engine.scheduler.queue.head()
    assert head is not None and head.group.request.request_id in first and head.num_preemptions == 1
    sim.add([9] * 50, params(5), user="b", priority=-1)
    head = sim.engine.scheduler.queue.head()
    assert head is not None and head.priority == -1
    sim.finish()


def test_the_lowest_class_gives_way_first() -> None:
    options = SimOptions(num_blocks=12)
    sim = Simulation(options, EngineConfig(max_num_seqs=3, max_num_batched_tokens=256))
    low = sim.add([5] * 90, params(60), priority=5)
    sim.run(3)
    high = [sim.add([6 + i] * 20, params(60), priority=0) for i in range(2)]
    sim.step()
    groups = {request: sim.group(request)[0] for request in (low, *high)}
    sim.finish()
    assert groups[low].num_preemptions > 0
    assert not any(groups[request].num_preemptions for request in high)
