"""Known faults of serving engines, each as the smallest run that shows it."""

from __future__ import annotations

import random

import pytest
from simulation import Simulation, give_way

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.request import FinishReason, Request, RequestRejectedError, SamplingParams

DEPTHS = pytest.mark.parametrize("depth", [1, 2])


def greedy(max_tokens: int | None = 8, **other: object) -> SamplingParams:
    return SamplingParams(max_tokens=max_tokens, temperature=0.0, **other)  # type: ignore[arg-type]


def prompt(length: int, seed: int = 0) -> tuple[int, ...]:
    rng = random.Random(seed)
    return tuple(rng.randrange(5, 250) for _ in range(length))


def simulation(num_blocks: int = 64, depth: int = 2, max_len: int = 4096, **config: object) -> Simulation:
    options = SimOptions(num_blocks=num_blocks, max_in_flight=depth, max_model_len=max_len)
    return Simulation(options, EngineConfig(**config))  # type: ignore[arg-type]


def test_a_request_that_can_never_fit_is_refused_with_numbers_and_blocks_nobody() -> None:
    """C01"""
    sim = simulation(num_blocks=8)
    with pytest.raises(RequestRejectedError, match=r"200 tokens.*holds 128 tokens") as caught:
        sim.add(prompt(200))
    assert caught.value.code == "kv_cache_exceeded"
    sim.add(prompt(10))
    sim.step()
    assert sim.engine.stats().running == 1
    assert sim.finish().requests_rejected == 1


@pytest.mark.parametrize("length", [127, 126, 100, 1])
def test_the_pool_ends_what_outgrows_it(length: int) -> None:
    sim = simulation(num_blocks=8)
    request = sim.add(prompt(length), greedy(None))
    sim.finish()
    assert sim.records[request, 0].finish is FinishReason.LENGTH
    assert length + len(sim.tokens(request)) == 129  # the last token is never stored


def test_a_prompt_that_fills_the_pool_is_refused() -> None:
    with pytest.raises(RequestRejectedError):
        simulation(num_blocks=8).add(prompt(128))


@pytest.mark.parametrize(("length", "asked", "given"), [(90, 10, 10), (90, 11, 10), (99, None, 1), (99, 5, 1)])
def test_the_edge_of_the_context(length: int, asked: int | None, given: int) -> None:
    sim = simulation(max_len=100)
    request = sim.add(prompt(length), greedy(asked))
    sim.finish()
    assert len(sim.tokens(request)) == given


def test_a_prompt_as_long_as_the_context_is_refused() -> None:
    with pytest.raises(RequestRejectedError, match="maximum context length is 100 tokens") as caught:
        simulation(max_len=100).add(prompt(100))
    assert caught.value.code == "context_length_exceeded"


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        (Request("a", (), SamplingParams()), "empty_prompt"),
        (Request("a", (5, 257), SamplingParams()), "invalid_token"),
        (Request("a", (-1,), SamplingParams()), "invalid_token"),
        (Request("a", (5,), SamplingParams(logit_bias={257: 1.0})), "invalid_token"),
    ],
)
def test_bad_input_is_refused_by_name(request_: Request, code: str) -> None:
    with pytest.raises(RequestRejectedError) as caught:
        simulation().engine.add(request_)
    assert caught.value.code == code


@DEPTHS
def test_two_that_outgrow_the_pool_together_both_finish(depth: int) -> None:
    """C02"""
    sim = simulation(num_blocks=8, depth=depth)
    for seed in range(2):
        sim.add(prompt(60, seed), greedy(60))
    stats = sim.finish()
    assert 1 <= stats.preemptions <= 2
    assert stats.finished[FinishReason.LENGTH] == 2


@DEPTHS
@pytest.mark.parametrize("caching", [True, False])
def test_the_preempted_find_their_own_blocks(depth: int, caching: bool) -> None:
    """C08"""
    sim = simulation(num_blocks=10, depth=depth, max_num_seqs=16, enable_prefix_caching=caching)
    for seed in range(16):
        sim.add(prompt(20 + seed, seed), greedy(40))
    assert sim.finish().preemptions > 0


@DEPTHS
@pytest.mark.parametrize("limit", [16, 2048])
@pytest.mark.parametrize("length", [1, 2, 3, 15, 16, 17, 32, 33])
def test_a_whole_cached_prompt_still_computes_one_token(length: int, limit: int, depth: int) -> None:
    """C04"""
    sim = simulation(depth=depth, max_num_seqs=4, max_num_batched_tokens=limit)
    cached = []
    for _ in range(3):
        request = sim.add(prompt(length), greedy(4))
        sim.finish()
        cached.append(sim.records[request, 0].cached)
    assert cached == [0, length - 1, length - 1]


@DEPTHS
@pytest.mark.parametrize(("length", "in_last"), [(0, 0), (1, 1), (15, 15), (16, 16), (17, 1), (32, 16)])
def test_the_last_block_holds_what_is_over(length: int, in_last: int, depth: int) -> None:
    """C06: twice, the second time with shared blocks; every step is checked for counts and doubles in the free list."""
    sim = simulation(num_blocks=8, depth=depth)
    if not length:
        with pytest.raises(RequestRejectedError):
            sim.add(prompt(0))
        return
    for _ in range(2):
        request = sim.add(prompt(length), greedy(1))
        (seq,) = sim.group(request)
        while sim.engine.has_work():
            sim.step()
            if blocks := len(seq.blocks):
                assert length - 16 * (blocks - 1) == in_last
        sim.finish()
    pool = sim.engine.scheduler.kv.pool
    assert len(set(pool.listed())) == len(list(pool.listed())) == pool.num_unreferenced == 8


def test_a_reused_block_is_not_found_under_its_old_contents() -> None:
    """C05"""
    sim = simulation(num_blocks=4)
    for seed in (1, 2, 3, 4, 1):
        request = sim.add(prompt(31, seed), greedy(2))
        sim.finish()
    assert sim.records[request, 0].cached == 0


def test_salts_are_not_shared() -> None:
    """C10"""
    sim = simulation()
    hits = []
    for salt in ("a", "b", "", "a"):
        request = sim.add(prompt(50), salt=salt)
        sim.finish()
        hits.append(sim.records[request, 0].cached)
    assert hits == [0, 0, 0, 49]


def test_many_prompts_take_no_more_than_the_pool() -> None:
    """C27: the cache is bounded by the pool's bytes, not by entries; old blocks go before new ones are needed."""
    sim = simulation(num_blocks=32)
    for seed in range(200):
        sim.add(prompt(40 + seed % 50, seed), greedy(3))
        sim.finish()
        stats = sim.engine.stats()
        assert stats.kv_blocks_live == 0 and stats.kv_blocks_cached <= 32
    assert stats.kv_blocks_cached > 24
    with pytest.raises(RequestRejectedError):
        sim.add(prompt(32 * 16))
    again = sim.add(prompt(40 + 199 % 50, 199), greedy(3))
    sim.finish()
    assert sim.records[again, 0].cached == 40 + 199 % 50 - 1


def test_an_idle_engine_shows_a_cache_and_no_leak() -> None:
    """C12"""
    sim = simulation()
    for seed in range(50):
        sim.add(prompt(20, seed), greedy(3))
    stats = sim.finish()
    assert stats.kv_blocks_live == 0 and stats.kv_blocks_cached > 50 and stats.kv_usage == 0


@DEPTHS
def test_streams_keep_flowing_beside_long_prompts(depth: int) -> None:
    """C15"""
    options = SimOptions(num_blocks=200, max_in_flight=depth, max_model_len=8192)
    sim = Simulation(options, EngineConfig(max_stall_ms=60.0))
    stream = sim.add(prompt(5), greedy(150))
    for _ in range(10):
        sim.step()
    long = sim.add(prompt(1500, 1), greedy(2))
    for seed in range(60):
        sim.add(prompt(50, 2 + seed), greedy(2), user=f"u{seed % 3}")
        sim.step()
    sim.drain()
    arrivals = sim.records[stream, 0].arrivals
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:], strict=False)]
    assert max(gaps) == 1  # a token in every step
    sim.finish()
    assert sim.records[long, 0].finish is FinishReason.LENGTH


def test_a_step_beside_streams_keeps_to_the_stall_bound() -> None:
    options = SimOptions(num_blocks=700, max_model_len=16384, step_seconds=0.005, token_seconds=0.0002)
    sim = Simulation(options, EngineConfig(max_stall_ms=50.0))
    sim.add(prompt(5), greedy(500))
    for seed in range(5):
        sim.add(prompt(1500, seed), greedy(40))
    longest, steps, read = 0.0, 0, 0
    while sim.engine.scheduler.rows.reading().size or sim.engine.scheduler.queue:
        sim.step()
        steps += 1
        if steps > 12:  # the fit has seen what it needs
            longest = max(longest, sim.engine.stats().last_step_seconds)
    read = sim.engine.stats().prompt_tokens
    assert longest <= 0.050 * 1.15
    assert read / steps > 100, "the time there was went unused"
    sim.finish()


def test_a_prompt_alone_is_cut_into_steps_of_five_stall_bounds() -> None:
    options = SimOptions(num_blocks=300, token_seconds=0.005, pair_seconds=0.0)
    sim = Simulation(options, EngineConfig(max_stall_ms=200.0, max_num_batched_tokens=4096))
    sim.add(prompt(4000), greedy(1))
    lengths = []
    while sim.engine.has_work():
        sim.step()
        lengths.append(sim.engine.stats().last_step_seconds)
    assert max(lengths[3:]) <= 1.05 and len(lengths) <= 24
    sim.finish()


def test_prompts_get_a_share_even_when_decodes_alone_pass_the_bound() -> None:
    options = SimOptions(num_blocks=500, step_seconds=1.0)
    sim = Simulation(options, EngineConfig(max_stall_ms=1.0))
    sim.add(prompt(5), greedy(200))
    sim.run(5)
    sim.add(prompt(160, 1), greedy(1))
    sim.run(14)  # one block of 16 in each step
    assert sim.engine.stats().prompt_tokens == 165
    sim.finish()


def test_one_sequence_with_nan_fails_alone() -> None:
    """C20"""
    options = SimOptions(nan_token=4)
    sim = Simulation(options)
    good = [sim.add(prompt(20, seed), greedy(20)) for seed in range(3)]
    bad = sim.add((*prompt(20, 9), 4), greedy(20))
    stats = sim.finish()
    assert sim.records[bad, 0].finish is FinishReason.ERROR
    assert all(len(sim.tokens(request)) == 20 for request in good)
    assert stats.finished[FinishReason.ERROR] == 1
    again = sim.add((*prompt(20, 9), 4), greedy(20))
    sim.finish()
    assert sim.records[again, 0].cached == 0, "blocks that may hold NaN were found again"


def test_nothing_is_found_again_of_one_that_gave_way_before_its_nan_was_known() -> None:
    sim = Simulation(SimOptions(nan_token=4))
    poisonous = (*prompt(40, 9), 4)
    bad = sim.add(poisonous, greedy(20))
    sim.run(2)
    (seq,) = sim.group(bad)
    assert len(sim.tokens(bad)) == 1  # the step that gives NaN is in flight
    give_way(sim, seq)
    assert sim.engine.stats().kv_blocks_cached > 0
    stats = sim.finish()
    assert sim.records[bad, 0].finish is FinishReason.ERROR and stats.kv_blocks_cached == 0
    again = sim.add(poisonous, greedy(20))
    sim.finish()
    assert sim.records[again, 0].cached == 0


def test_a_seed_gives_the_same_tokens_in_any_company() -> None:
    """C21"""

    def tokens(company: list[int | None], last: bool) -> list[int]:
        sim = simulation()
        others = [SamplingParams(max_tokens=12, seed=seed) for seed in company]
        if last:
            for params in others:
                sim.add(prompt(9), params)
        request = sim.add(prompt(9), SamplingParams(max_tokens=12, seed=42))
        if not last:
            for params in others:
                sim.add(prompt(9), params)
        sim.finish()
        assert all(sim.tokens(f"r{i}") != sim.tokens(request) for i in range(len(company) + 1) if f"r{i}" != request)
        return sim.tokens(request)

    alone = tokens([], False)
    assert alone == tokens([None] * 3, True) == tokens([1, 2, 3], False) == tokens([43, None], True)


@DEPTHS
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("length", [1, 15, 16, 17, 40])
def test_siblings_share_the_prompt_and_differ(length: int, caching: bool, depth: int) -> None:
    sim = simulation(depth=depth, enable_prefix_caching=caching)
    request = sim.add(prompt(length), SamplingParams(max_tokens=10, seed=7, n=4))
    most = 0
    while sim.engine.has_work():
        sim.step()
        most = max(most, sim.engine.stats().kv_blocks_live)
    stats = sim.finish()
    assert stats.prompt_tokens == stats.prompt_tokens_computed == length
    assert len({tuple(sim.tokens(request, i)) for i in range(4)}) == 4
    own = -(-(length + 9) // 16) - (length - 1) // 16
    assert most <= (length - 1) // 16 + 4 * own
    again = simulation(depth=depth)
    again.add(prompt(length), SamplingParams(max_tokens=10, seed=7, n=4))
    again.finish()
    assert [again.tokens("r0", i) for i in range(4)] == [sim.tokens(request, i) for i in range(4)]


def test_a_sibling_does_not_fork_from_a_leader_whose_own_copy_is_still_to_come() -> None:
    sim = simulation(depth=1, max_num_seqs=2)
    request = sim.add(prompt(20), SamplingParams(max_tokens=9, seed=3, n=2))
    other = sim.add(prompt(5, 1), greedy(50))
    sim.run(3)
    leader = sim.group(request)[0]
    assert leader.row >= 0 and sim.engine.stats().running == 2
    give_way(sim, leader)
    sim.abort(other)
    sim.step()  # the leader copies its partly filled block; its sibling enters in the same step
    assert sim.engine.stats().running == 2
    sim.finish()


@DEPTHS
def test_stored_blocks_are_never_written_again(depth: int) -> None:
    """C23"""
    sim = simulation(depth=depth)
    a = prompt(40)
    sim.add(a, greedy(10))
    sim.finish()
    sim.add((*a[:37], 5, 6), greedy(20))
    sim.add((*a[:35], 7), greedy(20))
    sim.finish()
    last = sim.add(a, greedy(10))
    sim.finish()
    assert sim.records[last, 0].cached == 39


def test_a_conversation_goes_on_from_its_last_token() -> None:
    sim = simulation()
    first = sim.add(prompt(21), greedy(9))
    sim.finish()
    told = (*prompt(21), *sim.tokens(first))
    second = sim.add((*told, 9, 9, 9), greedy(3))
    sim.finish()
    assert sim.records[second, 0].cached == len(told) - 1  # the last token's K/V was never computed


@DEPTHS
@pytest.mark.parametrize("caching", [True, False])
@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
def test_chunks_of_any_size_equal_one_shot(chunk: int, caching: bool, depth: int) -> None:
    """C28"""
    sim = simulation(depth=depth, max_num_seqs=1, max_num_batched_tokens=chunk, enable_prefix_caching=caching)
    for length in (1, 6, 7, 15, 16, 17, 31, 33, 64, 70):
        sim.add(prompt(length, length), greedy(3))
    sim.finish()


@DEPTHS
def test_an_abort_in_mid_prompt_publishes_only_what_was_computed(depth: int) -> None:
    sim = simulation(depth=depth, max_num_seqs=1, max_num_batched_tokens=7)
    first = sim.add(prompt(70), greedy(3))
    sim.run(4)
    computed = sim.engine.stats().prompt_tokens_computed
    assert 0 < computed < 70
    sim.abort(first)
    assert sim.engine.stats().kv_blocks_live == 0
    again = sim.add(prompt(70), greedy(3))
    sim.finish()
    assert sim.records[again, 0].cached == computed


@pytest.mark.parametrize("length", [10, 100, 1000])
def test_cached_and_computed_make_up_the_prompt(length: int) -> None:
    """C29"""
    sim = simulation(num_blocks=200)
    for round_ in range(3):
        request = sim.add(prompt(length), greedy(2))
        stats = sim.finish()
        assert sim.records[request, 0].cached == (length - 1 if round_ else 0)
        assert stats.prompt_tokens == length * (round_ + 1)
    assert stats.prompt_tokens_computed == length + 2


@DEPTHS
@pytest.mark.parametrize("steps", range(9))
def test_an_abort_frees_at_once_in_every_phase(steps: int, depth: int) -> None:
    sim = simulation(depth=depth, max_num_seqs=4, max_num_batched_tokens=16)
    request = sim.add(prompt(50), SamplingParams(max_tokens=10, n=3))
    sim.run(steps)
    assert sim.abort(request) and not sim.abort(request)
    stats = sim.engine.stats()
    assert stats.running == stats.waiting == stats.kv_blocks_live == 0
    assert sim.finish().finished[FinishReason.ABORT] == 3


def test_at_most_one_token_is_wasted_by_an_end_found_late() -> None:
    options = SimOptions(vocab_size=12, end_ids=frozenset({1}), max_in_flight=2)
    sim = Simulation(options)
    request = sim.add((5, 6, 7), greedy(None))
    stats = sim.finish()
    assert sim.records[request, 0].finish is FinishReason.STOP
    assert stats.steps <= len(sim.tokens(request)) + 1


def test_an_end_token_at_the_limit_is_a_stop() -> None:
    options = SimOptions(vocab_size=12, end_ids=frozenset({1}))
    sim = Simulation(options)
    first = sim.add((5, 6, 7), greedy(None))
    sim.finish()
    length = len(sim.tokens(first))
    second = sim.add((5, 6, 7), greedy(length))
    sim.finish()
    assert sim.records[second, 0].finish is FinishReason.STOP
