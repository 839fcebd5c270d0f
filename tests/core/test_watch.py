"""What a watcher of the engine is shown."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bireme.backends.base import Ticket
from bireme.bench.host import InstantBackend
from bireme.core.blocks import BlockPool
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import Request, SamplingParams
from bireme.core.step import StepBatch
from bireme.core.watch import MAX_STEPS, EngineView, block_map


def engine(**config: int) -> Engine:
    return Engine(InstantBackend(256, 16), EngineConfig(max_num_batched_tokens=64, **config))


def request(name: str, length: int, tokens: int) -> Request:
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    return Request(name, tuple(range(3, 3 + length)), params, user=f"user of {name}")


def drain(one: Engine) -> EngineView:
    while one.has_work():
        one.step()
    return one.view()


def decodes(view: EngineView, order: int) -> int:
    count, current = 0, ()
    for step in view.steps:
        current = current if step.decodes is None else step.decodes
        count += order in current
    return count


def test_every_token_is_in_some_step() -> None:
    one = engine()
    one.watch(True)
    one.add(request("a", 150, 10))
    one.add(request("b", 20, 30))
    view = drain(one)
    by_name = {seq.request_id: seq for seq in view.sequences}
    for name, length, tokens in (("a", 150, 10), ("b", 20, 30)):
        seq = by_name[name]
        assert (seq.user, seq.prompt_tokens, seq.output_tokens, seq.ended) == (f"user of {name}", length, tokens, True)
        chunks = [(start, count) for step in view.steps for order, start, count in step.chunks if order == seq.order]
        assert sum(count for _, count in chunks) + seq.cached_tokens == length
        assert [start for start, _ in chunks] == sorted(start for start, _ in chunks)
        assert decodes(view, seq.order) >= tokens - 1  # two steps in flight: one may be wasted at the end
    assert [step.number for step in view.steps] == sorted(step.number for step in view.steps)


def test_a_view_tells_what_happened_since_the_last() -> None:
    one = engine()
    one.watch(True)
    one.add(request("a", 30, 20))
    for _ in range(8):
        one.step()
    first, second = one.view(), drain(one)
    assert first.steps and second.steps and second.steps[0].number == first.steps[-1].number + 1
    assert second.steps[0].decodes is not None  # each view stands alone
    assert [seq.request_id for seq in second.sequences] == ["a"]
    assert drain(one).sequences == []


def test_steady_decoding_is_said_once() -> None:
    one = engine()
    one.watch(True)
    one.add(request("a", 20, 50))
    view = drain(one)
    assert sum(step.decodes is not None for step in view.steps) <= 3 < len(view.steps)


def test_time_on_the_device_goes_one_way() -> None:
    one = engine()
    one.watch(True)
    one.add(request("a", 200, 20))
    steps = drain(one).steps
    ends = [step.start + step.seconds for step in steps]
    assert all(step.start >= end for step, end in zip(steps[1:], ends, strict=False))
    assert ends[-1] <= one.clock()


def test_a_device_that_works_while_it_is_given_a_step() -> None:
    """Its whole time is shown, not what is left when it has taken the step."""
    now = [0.0]
    backend = InstantBackend(256, 16)
    submit = backend.submit

    def slow(batch: StepBatch) -> Ticket:
        now[0] += 0.01  # as long as it says in its result
        return submit(batch)

    backend.submit = slow  # type: ignore[method-assign]
    one = Engine(backend, EngineConfig(), lambda: now[0])
    one.watch(True)
    one.add(request("a", 20, 5))
    assert all(step.seconds == pytest.approx(0.01) for step in drain(one).steps)


def test_watching_begins_and_ends_at_any_time() -> None:
    one = engine()
    one.add(request("a", 100, 60))
    for turn in range(40):
        one.watch(turn % 8 < 4)
        one.step()
    one.watch(True)
    assert drain(one).steps
    one.watch(False)
    with pytest.raises(AssertionError, match="nobody watches"):
        one.view()


def test_a_watcher_who_never_looks_costs_a_bounded_memory() -> None:
    one = Engine(InstantBackend(256, 16), EngineConfig())
    one.watch(True)
    one.add(request("a", 10, MAX_STEPS + 100))
    view = drain(one)
    assert len(view.steps) == MAX_STEPS and view.dropped > 0


@given(st.lists(st.sampled_from(["free", "used", "shared", "cached"]), min_size=1, max_size=80), st.integers(1, 40))
def test_blocks_by_kind(kinds: list[str], cells: int) -> None:
    pool = BlockPool(len(kinds))
    for _ in kinds:
        pool.take()
    for block, kind in enumerate(kinds):
        if kind == "shared":
            pool.share(block)
        if kind == "cached":
            pool.mark_cached(block)
        if kind in ("free", "cached"):
            pool.release(block)
    shown = block_map(pool, cells)
    per_cell = shown.per_cell
    assert shown.num_blocks == len(kinds) and len(shown.used) <= cells
    for kind in ("used", "shared", "cached"):
        expected = [kinds[at : at + per_cell].count(kind) for at in range(0, len(kinds), per_cell)]
        assert np.frombuffer(getattr(shown, kind), np.uint8).tolist() == expected
