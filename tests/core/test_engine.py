"""The engine's door: queue limits, failures, health, the checker, what comes out."""

from __future__ import annotations

import logging
import subprocess
import sys

import numpy as np
import pytest
from simulation import Simulation

from bireme.backends.sim import ContractError, SimBackend, SimOptions, VirtualClock
from bireme.backends.sim.contract import check_batch
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine, EngineDeadError
from bireme.core.invariants import InvariantError
from bireme.core.request import FinishReason, QueueFullError, Request, RequestRejectedError, SamplingParams
from bireme.core.sequence import derive_seed
from bireme.core.step import RowInit, StepBatch


def params(tokens: int = 5, **other: object) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, **other)  # type: ignore[arg-type]


def test_one_more_than_the_queue_takes_is_refused() -> None:
    sim = Simulation(config=EngineConfig(max_queue=3, max_num_seqs=1, max_num_batched_tokens=64))
    for _ in range(3):
        sim.add([5, 6], params())
    with pytest.raises(QueueFullError, match="3 requests are waiting") as caught:
        sim.add([5, 6], params())
    assert 1 <= caught.value.retry_after <= 60
    sim.step()
    sim.add([5, 6], params())  # one runs now
    sim.finish()
    for _ in range(3):
        sim.add([5, 6], params())
    with pytest.raises(QueueFullError) as caught:
        sim.add([5, 6], params())
    assert 1 <= caught.value.retry_after <= 60
    sim.finish()


def test_siblings_do_not_count_as_waiting_requests() -> None:
    sim = Simulation(config=EngineConfig(max_queue=1, max_num_seqs=1, max_num_batched_tokens=64))
    sim.add([5, 6], params(n=5))
    sim.run(2)
    assert sim.engine.stats().waiting == 4
    sim.add([5, 6], params())
    sim.finish()


@pytest.mark.parametrize("depth", [1, 2])
def test_a_leader_ended_alone_before_it_began_leaves_its_request_waiting_once(depth: int) -> None:
    options = SimOptions(max_in_flight=depth)
    sim = Simulation(options, EngineConfig(max_num_seqs=1, max_queue=2, max_num_batched_tokens=64))
    request = sim.add([5, 6], params(n=3))
    sim.aborted.add(request)
    assert sim.engine.abort(request, 0)
    sim.engine.check()
    sim.add([5, 6], params())
    with pytest.raises(QueueFullError, match="2 requests are waiting"):
        sim.add([5, 6], params())
    stats = sim.finish()
    assert stats.finished[FinishReason.LENGTH] == 3 and sim.engine.scheduler.num_unstarted == 0


def test_an_id_in_use_is_refused() -> None:
    sim = Simulation()
    sim.engine.add(Request("a", (5,), params()))
    with pytest.raises(RequestRejectedError, match="'a' is already in use"):
        sim.engine.add(Request("a", (5,), params()))


@pytest.mark.parametrize("depth", [1, 2])
def test_a_lost_device_fails_everything_loudly(depth: int, caplog: pytest.LogCaptureFixture) -> None:
    backend = SimBackend(SimOptions(fail_at_step=4, max_in_flight=depth))
    engine = Engine(backend, EngineConfig(max_num_seqs=2, max_num_batched_tokens=64), backend.clock)
    for name in "abc":
        engine.add(Request(name, (5, 6), params(20)))
    ended: dict[str, str | None] = {}
    with caplog.at_level(logging.CRITICAL), pytest.raises(EngineDeadError, match="device was lost") as caught:
        for _ in range(10):
            engine.step()
    for output in caught.value.outputs:
        if output.finish_reason is FinishReason.ERROR:
            ended[output.request_id] = output.error
    assert set(ended) == {"a", "b", "c"} and all("device was lost" in str(error) for error in ended.values())
    assert engine.stats().dead and not engine.has_work()
    for call in (engine.step, lambda: engine.add(Request("d", (5,), params()))):
        with pytest.raises(EngineDeadError) as again:
            call()
        assert not again.value.outputs
    engine.close()
    engine.close()
    assert backend.closed


def test_stalled_means_waiting_and_nothing_running_for_long() -> None:
    sim = Simulation(config=EngineConfig(watchdog_s=30.0))
    sim.clock.now = 1000.0
    assert not sim.engine.stats().stalled
    sim.add([5, 6], params())
    sim.clock.now += 29.0
    assert not sim.engine.stats().stalled
    sim.clock.now += 2.0
    assert sim.engine.stats().stalled
    sim.step()
    assert not sim.engine.stats().stalled
    sim.finish()


def test_an_idle_step_does_nothing() -> None:
    sim = Simulation()
    assert not sim.engine.has_work() and sim.step() == [] and sim.backend.num_steps == 0


def test_users_are_counted_while_they_have_something() -> None:
    sim = Simulation(config=EngineConfig(max_num_seqs=2, max_num_batched_tokens=64))
    for user in "aab":
        sim.add([5, 6], params(), user=user)
    sim.step()
    users = sim.engine.stats().users
    assert {u: (c.running, c.waiting) for u, c in users.items()} == {"a": (1, 1), "b": (1, 0)}
    sim.finish()


def test_logprobs_come_with_each_token_cut_to_what_was_asked() -> None:
    sim = Simulation()
    asked = {sim.add([5, 6], params(logprobs=k)): k for k in (None, 0, 3)}
    while sim.engine.has_work():
        for output in sim.step():
            k = asked[output.request_id]
            if k is None:
                assert output.logprobs is None
            else:
                assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
                assert all(len(l.top_ids) == len(l.top_logprobs) == k for l in output.logprobs)  # noqa: E741
    sim.finish()


def test_min_tokens_hold_back_the_end() -> None:
    sim = Simulation(SimOptions(vocab_size=8, end_ids=frozenset({1, 2, 3})))
    request = sim.add([5, 6], params(20, min_tokens=10))
    sim.finish()
    assert 10 <= len(sim.tokens(request))
    assert not set(sim.tokens(request)[:10]) & {1, 2, 3}


def test_ignore_eos_ignores_every_end_id_but_not_stop_ids() -> None:
    options = SimOptions(vocab_size=8, end_ids=frozenset({1, 2}))
    sim = Simulation(options)
    free = sim.add([5, 6], params(60, ignore_eos=True))
    held = sim.add([5, 6], params(60, ignore_eos=True, stop_token_ids=(3,)))
    sim.finish()
    assert set(sim.tokens(free)) & {1, 2} and len(sim.tokens(free)) == 60
    assert sim.tokens(held)[-1] == 3


def test_the_same_requests_give_the_same_with_one_or_two_steps_in_flight() -> None:
    def run(depth: int, caching: bool) -> list[list[int]]:
        options = SimOptions(num_blocks=12, max_in_flight=depth, end_ids=frozenset({1}), vocab_size=30)
        config = EngineConfig(max_num_seqs=4, max_num_batched_tokens=32, enable_prefix_caching=caching)
        sim = Simulation(options, config)
        ids = [sim.add([5, 6, 7] * (1 + i), SamplingParams(max_tokens=30, seed=i % 3, n=2)) for i in range(10)]
        sim.finish()
        return [sim.tokens(request, index) for request in ids for index in range(2)]

    assert run(1, True) == run(2, True) == run(1, False) == run(2, False)


def test_out_of_blocks_alone_it_ends_with_what_it_has() -> None:
    sim = Simulation(SimOptions(num_blocks=8, max_in_flight=1))
    request = sim.add([5, 6, 7], params(100))
    sim.run(5)
    pool = sim.engine.scheduler.kv.pool
    for block in list(pool.listed()):
        pool.quarantine(block)
    sim.drain()
    record = sim.records[request, 0]
    assert record.finish is FinishReason.LENGTH and record.tokens == record.expected[: len(record.tokens)]
    assert len(record.tokens) == 14  # one block of 16 holds 3 + 13; the last token is not stored
    stats = sim.engine.stats()
    assert stats.kv_blocks_quarantined == 7 and stats.kv_blocks_total == 1


@pytest.mark.parametrize("kind", ["reference", "leak", "table", "cached", "tree", "row", "queue"])
def test_the_checker_sees(kind: str) -> None:
    sim = Simulation()
    sim.add([5] * 40, params(20))
    sim.run(3)
    scheduler = sim.engine.scheduler
    seq = scheduler.rows.running()[0]
    if kind == "reference":
        scheduler.kv.pool.share(seq.blocks[0])
    elif kind == "leak":
        scheduler.kv.pool.take()
    elif kind == "table":
        scheduler.rows.tables[seq.row, 1] = 60
    elif kind == "cached":
        scheduler.kv.pool.mark_cached(seq.blocks[-1])
    elif kind == "tree":
        del scheduler.kv.cache.by_block[seq.blocks[0]]
    elif kind == "row":
        scheduler.rows.computed[seq.row] += 5
    else:
        seq.account.waiting += 1
    with pytest.raises(InvariantError):
        sim.engine.check()


def test_in_production_a_faulty_block_is_taken_out_of_use(caplog: pytest.LogCaptureFixture) -> None:
    backend = SimBackend(SimOptions(num_blocks=8))
    engine = Engine(backend, EngineConfig(), backend.clock)
    lost = engine.scheduler.kv.pool.take()
    problems = engine.check(repair=True)
    assert lost is not None and len(problems) == 1 and f"block {lost}" in problems[0]
    assert "taken out of use" in caplog.text
    assert engine.stats().kv_blocks_quarantined == 1 and engine.stats().kv_blocks_total == 7
    engine.add(Request("a", (5,) * 30, params(40)))
    outputs = []
    while engine.has_work():
        outputs += engine.step()
    assert outputs[-1].finish_reason is FinishReason.LENGTH


def test_what_no_longer_fits_when_blocks_were_taken_out_of_use_ends_and_blocks_nobody() -> None:
    backend = SimBackend(SimOptions(num_blocks=8))
    engine = Engine(backend, EngineConfig(), backend.clock)
    engine.add(Request("whole", (5,) * 120, params()))
    engine.scheduler.kv.pool.take()
    engine.check(repair=True)
    with pytest.raises(RequestRejectedError, match=r"120 tokens.*holds 112 tokens"):
        engine.add(Request("late", (5,) * 120, params()))
    engine.add(Request("small", (6,) * 3, params()))
    last = {}
    for _ in range(20):
        last |= {output.request_id: output for output in engine.step()}
    assert not engine.has_work()
    assert last["small"].finish_reason is FinishReason.LENGTH
    assert last["whole"].finish_reason is FinishReason.ERROR
    assert "120 tokens" in str(last["whole"].error) and "112" in str(last["whole"].error)


def test_seeds_differ_by_sequence_and_fill_64_bits() -> None:
    seeds = {derive_seed(seed, index) for seed in range(200) for index in range(20)}
    assert len(seeds) == 4000
    assert max(seeds) > 1 << 63 and derive_seed(-1, 0) == derive_seed((1 << 64) - 1, 0)


def batch(**changes: object) -> StepBatch:
    fields: dict[str, object] = {
        "step_id": 1,
        "token_ids": np.array([5, 6, 7], np.int32),
        "positions": np.array([0, 1, 0], np.int32),
        "slots": np.array([16, 17, 0], np.int64),
        "query_start": np.array([0, 2, 3], np.int32),
        "context_lens": np.array([2, 1], np.int32),
        "block_tables": np.array([[1], [0]], np.int32),
        "rows": np.array([0, 1], np.int32),
        "samples": np.array([True, True]),
        "copies": np.zeros((0, 2), np.int32),
        "new_rows": (RowInit(0, params(), 1, (5, 6)), RowInit(1, params(), 1, (7,))),
    }
    return StepBatch(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes",
    [
        {"token_ids": np.array([5, 6, -2], np.int32)},
        {"positions": np.array([0, 2, 0], np.int32)},
        {"slots": np.array([16, 16, 0], np.int64)},
        {"slots": np.array([16, 17, 0], np.int32)},
        {"query_start": np.array([0, 3, 3], np.int32)},
        {"context_lens": np.array([3, 1], np.int32)},
        {"block_tables": np.array([[1], [1]], np.int32)},
        {"block_tables": np.array([[1], [64]], np.int32)},
        {"rows": np.array([1, 1], np.int32)},
        {"copies": np.array([[3, 4], [4, 5]], np.int32)},
        {"new_rows": ()},
    ],
)
def test_the_simulator_refuses_a_bad_batch(changes: dict[str, object]) -> None:
    SimBackend().submit(batch())
    with pytest.raises(ContractError):
        SimBackend().submit(batch(**changes))


def test_the_simulator_sees_arrays_changed_in_flight() -> None:
    step = batch()
    ticket = SimBackend().submit(step)
    step.token_ids[0] = 9
    with pytest.raises(ContractError, match="changed after submission"):
        ticket.wait()


def test_the_simulator_reads_what_is_stored() -> None:
    def second_token(spoil: bool) -> int:
        backend = SimBackend(clock=VirtualClock())
        first = backend.submit(batch()).wait()
        if spoil:
            backend._entries[1, 0] += np.uint64(1)
        more = batch(
            step_id=2,
            token_ids=first.tokens[:1],
            positions=np.array([2], np.int32),
            slots=np.array([18], np.int64),
            query_start=np.array([0, 1], np.int32),
            context_lens=np.array([3], np.int32),
            block_tables=np.array([[1]], np.int32),
            rows=np.array([0], np.int32),
            samples=np.array([True]),
            new_rows=(),
        )
        return int(backend.submit(more).wait().tokens[0])

    assert second_token(False) != second_token(True)


def test_a_good_batch_passes() -> None:
    check_batch(batch(), 64, 16, 4096)


def test_the_core_imports_no_array_library() -> None:
    code = (
        "import sys; sys.modules['torch'] = sys.modules['mlx'] = None; import bireme.core.engine, bireme.backends.sim"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
