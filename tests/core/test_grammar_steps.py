"""Sequences that follow a grammar, over the simulated device: what they give, and that they hold nobody up."""

from __future__ import annotations

import threading
import time
from typing import cast

import pytest
from automaton import Automaton, chain, random_automaton
from simulation import Simulation, give_way

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.constraint import Constraint, Outcome
from bireme.core.grammar import GrammarError, GrammarSpec
from bireme.core.masks import MaskThreads
from bireme.core.plan import BuiltStep
from bireme.core.request import FinishReason, Request, RequestRejectedError, SamplingParams, SequenceOutput
from bireme.core.sequence import Sequence
from bireme.core.stats import EngineStats

VOCAB, END = 40, 1
SPEC = GrammarSpec("grammar", "an automaton")


def simulation(depth: int = 2, blocks: int = 64, rows: int = 8) -> Simulation:
    options = SimOptions(
        num_blocks=blocks,
        block_size=4,
        vocab_size=VOCAB,
        max_model_len=80,
        end_ids=frozenset({END}),
        max_in_flight=depth,
    )
    config = EngineConfig(block_size=4, max_num_seqs=rows, max_num_batched_tokens=64, max_stall_ms=1e6)
    return Simulation(options, config)


class Constrained:
    """Requests with grammars beside the simulation's own, which stay under its oracle."""

    def __init__(self, sim: Simulation) -> None:
        self.sim = sim
        self.tokens: dict[tuple[str, int], list[int]] = {}
        self.last: dict[tuple[str, int], SequenceOutput] = {}
        inner = sim._record
        sim._record = lambda output: self._take(output) if output.request_id[0] == "g" else inner(output)  # type: ignore[method-assign]

    def add(self, name: str, grammar: Automaton, length: int = 5, **params: object) -> None:
        fields = {"temperature": 1.0, "max_tokens": 30, "seed": 1, "grammar": SPEC, **params}
        prompt = tuple(2 + (len(name) * 7 + i) % 30 for i in range(length))
        self.sim.engine.add(Request(name, prompt, SamplingParams(**fields)), grammar)  # type: ignore[arg-type]

    def _take(self, output: SequenceOutput) -> None:
        key = (output.request_id, output.index)
        assert key not in self.last, "an output after the last"
        self.tokens.setdefault(key, []).extend(output.token_ids)
        if output.finish_reason is not None:
            self.last[key] = output

    def finish(self) -> EngineStats:
        """Run to the end; the simulation's own requests gave what they should, and nothing is left behind."""
        self.sim.drain()
        for key, record in self.sim.records.items():
            self.sim._compare(key, record)
        stats = self.sim.engine.stats()
        assert stats.running == stats.waiting == stats.kv_blocks_live == stats.in_flight == 0
        assert self.sim.engine.scheduler.rows.num_masked == 0
        return stats

    def text(self, key: tuple[str, int]) -> list[int]:
        return [token for token in self.tokens[key] if token != END]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("blocks", [64, 14])  # the smaller pool preempts
def test_every_answer_follows_its_grammar_and_others_are_as_without(depth: int, blocks: int) -> None:
    sim = simulation(depth, blocks)
    constrained = Constrained(sim)
    grammars = {f"g{i}": random_automaton(i, VOCAB) for i in range(8)}
    for i, (name, grammar) in enumerate(grammars.items()):
        constrained.add(name, grammar, 3 + i, n=1 + i % 2, seed=i)
        sim.add(range(2, 6 + i), SamplingParams(max_tokens=25, seed=i, temperature=1.0))
        sim.step()
    stats = constrained.finish()
    assert (stats.preemptions > 0) is (blocks == 14)
    assert len(constrained.last) == 12
    for key, last in constrained.last.items():
        whole = grammars[key[0]].reads(constrained.text(key))  # raises at a forbidden token
        assert whole or last.finish_reason is FinishReason.LENGTH, (key, last)
        assert last.finish_reason in (FinishReason.STOP, FinishReason.LENGTH)


def test_depth_batch_and_preemption_change_nothing() -> None:
    found = []
    for depth, blocks in ((1, 64), (2, 64), (2, 14)):
        sim = simulation(depth, blocks)
        constrained = Constrained(sim)
        for i in range(6):
            constrained.add(f"g{i}", random_automaton(i, VOCAB), 4 + i, seed=i)
        constrained.finish()
        found.append(constrained.tokens)
    assert found[0] == found[1] == found[2]


def test_a_grammar_with_nothing_to_add_stops_after_text() -> None:
    sim = simulation()
    constrained = Constrained(sim)
    constrained.add("g", chain([5, 6, 7], VOCAB), ignore_eos=True, min_tokens=9)
    constrained.finish()
    assert constrained.tokens["g", 0] == [5, 6, 7]
    assert constrained.last["g", 0].token_ids == () and constrained.last["g", 0].finish_reason is FinishReason.STOP


def test_complete_at_the_limit_is_a_stop_and_short_of_it_a_length() -> None:
    sim = simulation()
    constrained = Constrained(sim)
    constrained.add("g", chain([5, 6, 7], VOCAB), max_tokens=3)
    constrained.add("gg", chain([5, 6, 7], VOCAB), max_tokens=2)
    constrained.finish()
    assert constrained.tokens["g", 0] == [5, 6, 7] and constrained.last["g", 0].finish_reason is FinishReason.STOP
    assert constrained.tokens["gg", 0] == [5, 6] and constrained.last["gg", 0].finish_reason is FinishReason.LENGTH


def test_end_tokens_come_only_where_the_grammar_accepts() -> None:
    """Two tokens, then as many more as one likes: never ended before two."""
    loop = Automaton([{5: 1, 6: 1}, {5: 2, 6: 2}, {7: 2}], {2}, VOCAB)
    sim = simulation()
    constrained = Constrained(sim)
    for seed in range(20):
        constrained.add(f"g{seed}", loop, seed=seed)
        constrained.add(f"gmin{seed}", loop, seed=seed, min_tokens=6)
        constrained.add(f"gnever{seed}", loop, seed=seed, ignore_eos=True)
        constrained.add(f"gstop{seed}", loop, seed=seed, stop_token_ids=(9,))
        sim.drain()
    lengths = {key[0]: len(constrained.text(key)) for key in constrained.last}
    assert {lengths[f"g{seed}"] for seed in range(20)} >= {2, 3}
    assert all(lengths[f"gmin{seed}"] >= 6 for seed in range(20))
    assert all(lengths[f"gnever{seed}"] == 30 for seed in range(20))
    ends = {constrained.tokens[f"gstop{seed}", 0][-1] for seed in range(20)}
    assert ends >= {9, END}
    assert min(lengths.values()) == 2


@pytest.mark.parametrize("depth", [1, 2])
def test_a_slow_mask_holds_nobody_up(depth: int) -> None:
    gate = threading.Event()

    def wait(state: int) -> None:
        if state == 2:
            assert gate.wait(30)

    slow = chain([5, 6, 7, 8], VOCAB)
    slow.before_fill = wait
    sim = simulation(depth)
    constrained = Constrained(sim)
    constrained.add("gslow", slow)
    other = sim.add([3, 4, 5], SamplingParams(max_tokens=20, ignore_eos=True))
    for _ in range(200):
        if (other, 0) in sim.records and sim.records[other, 0].finish is not None:
            break
        sim.step()
    assert sim.records[other, 0].finish is FinishReason.LENGTH
    while constrained.tokens["gslow", 0] == [5]:  # a step waits for a mask once; then it comes when it comes
        sim.step()
    assert constrained.tokens["gslow", 0] == [5, 6] and not constrained.last
    gate.set()
    constrained.finish()
    assert constrained.tokens["gslow", 0] == [5, 6, 7, 8]


def test_what_is_slow_to_follow_is_waited_for_once() -> None:
    """Not in every step: its neighbours would pay for it until it is done."""
    gate = threading.Event()

    class Slow:
        def follow(self, token: int, made: int) -> Outcome:
            assert gate.wait(60)
            return Outcome.GOES_ON

    class Waiting:
        num_outputs, waits_for_mask = 1, False

    threads, seq = MaskThreads(), Waiting()
    threads.follow(cast(Sequence, seq), cast(Constraint, Slow()), 5)
    assert threads.take(0.01) == []
    assert threads.take(3600.0) == [] and seq.waits_for_mask  # the suite's own limit is shorter
    gate.set()
    found = threads.take(60.0, idle=True)
    assert found == [(seq, Outcome.GOES_ON)] and not seq.waits_for_mask
    threads.close()


def test_an_abort_while_a_mask_is_made_leaves_nothing() -> None:
    gate = threading.Event()
    slow = chain([5, 6, 7], VOCAB)
    slow.before_fill = lambda state: None if gate.wait(30) else None
    sim = simulation()
    constrained = Constrained(sim)
    constrained.add("g", slow)
    for _ in range(4):
        sim.step()
    assert sim.engine.abort("g")
    gate.set()
    constrained.finish()
    assert constrained.last["g", 0].finish_reason is FinishReason.ABORT


def test_a_grammar_that_fails_ends_its_own_sequence_only() -> None:
    def fail(state: int) -> None:
        if state == 2:
            raise GrammarError("too many states")

    bad = chain([5, 6, 7], VOCAB)
    bad.before_fill = fail
    sim = simulation()
    constrained = Constrained(sim)
    constrained.add("gbad", bad)
    constrained.add("ggood", chain([5, 6, 7], VOCAB))
    sim.add([3, 4, 5])
    constrained.finish()
    assert constrained.last["gbad", 0].finish_reason is FinishReason.ERROR
    assert constrained.last["gbad", 0].error == "too many states"
    assert constrained.tokens["ggood", 0] == [5, 6, 7]


def test_a_dead_end_is_an_error_never_free_text() -> None:
    dead = Automaton([{5: 1}, {}], set(), VOCAB)
    sim = simulation()
    constrained = Constrained(sim)
    constrained.add("g", dead)
    constrained.finish()
    assert constrained.last["g", 0].finish_reason is FinishReason.ERROR
    with pytest.raises(RequestRejectedError, match="no token") as refused:
        constrained.add("gnone", Automaton([{}], set(), VOCAB))
    assert refused.value.code == "invalid_grammar"


def test_a_request_whose_grammar_was_not_compiled_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="not compiled"):
        simulation().engine.add(Request("g", (3,), SamplingParams(grammar=SPEC)))


def test_those_who_follow_grammars_share_their_steps() -> None:
    """With nobody else there, sequences that came one after the other end up in the same steps."""
    sim = simulation(depth=2)
    constrained = Constrained(sim)
    for i in range(4):
        constrained.add(f"g{i}", chain([5 + j % 20 for j in range(25)], VOCAB))
        sim.step()
    for _ in range(12):
        sim.step()
    before = sim.engine.stats()
    for _ in range(12):
        sim.step()
    after = sim.engine.stats()
    assert after.tokens_generated - before.tokens_generated == 4 * (after.steps - before.steps)


def test_a_grammar_that_fails_costs_nobody_the_cached_prompt() -> None:
    def fail(state: int) -> None:
        raise GrammarError("too complex")

    sim = simulation()
    constrained = Constrained(sim)
    constrained.add("g", Automaton([{5: 1}, {6: 2}, {}], {2}, VOCAB, fail), length=20)
    (seq,) = sim.group("g")
    constrained.finish()
    assert constrained.last["g", 0].finish_reason is FinishReason.ERROR
    after = sim.add(seq.group.request.prompt_ids, SamplingParams(max_tokens=2))
    constrained.finish()
    assert sim.records[after, 0].cached == 19


def test_a_mask_that_was_made_but_not_taken_is_not_used() -> None:
    """One that gave way would enter again with it, and what is taken later would stand for the mask after."""
    go, made = threading.Event(), threading.Event()

    def slow(state: int) -> None:
        if state == 1:
            go.wait(10)
        elif state == 2:
            made.wait(10)

    sim = simulation(depth=2)
    constrained = Constrained(sim)
    constrained.add("g", Automaton([{5: 1}, {6: 2}, {7: 3}, {}], {3}, VOCAB, slow), temperature=0.0)
    (seq,) = sim.group("g")
    while not sim.engine._delivery.masks.outstanding:
        sim.step()
    give_way(sim, seq)
    inner = sim.engine.scheduler.schedule

    def late() -> BuiltStep | None:
        """The mask is ready just after the engine has asked for it."""
        go.set()
        constraint = seq.constraint
        assert constraint is not None
        for _ in range(1000):
            if constraint.mask is not None:
                break
            time.sleep(0.001)
        sim.engine.scheduler.schedule = inner  # type: ignore[method-assign]
        return inner()

    sim.engine.scheduler.schedule = late  # type: ignore[method-assign]
    sim.run(4)
    made.set()
    constrained.finish()
    assert constrained.tokens["g", 0] == [5, 6, 7]
