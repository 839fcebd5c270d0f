"""The CPU's attention kernel against float64, and what a row may never depend on."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from paged import Paged
from paged import paged as made

from bireme.backends.cpu.attention import attend
from bireme.backends.cpu.attention_plan import Plan
from bireme.backends.cpu.threads import pool

WORK = [(1, 300), (5, 5), (1, 64), (30, 100), (1, 1), (1, 65), (40, 200), (2, 131), (1, 128)]


@pytest.fixture(params=[np.float32, np.float16], ids=["float32", "float16"])
def paged(request):
    return partial(made, kept=request.param)


def run(case: Paged, window: int | None = None, scale: float | None = None) -> torch.Tensor:
    heads, dim = case.q.shape[1:]
    plan = Plan.build(case.batch, window, heads, case.keys.shape[2], dim, case.keys.shape[1])
    q, keys, values = (torch.from_numpy(x) for x in (case.q, case.keys, case.values))
    first = attend(plan, q, keys, values, scale or dim**-0.5, window)
    again = attend(plan, q, keys, values, scale or dim**-0.5, window)
    assert torch.equal(first, again) or first.isnan().any(), "a plan serves every layer of its step"
    return again


def check(case: Paged, window: int | None = None, scale: float | None = None) -> None:
    expected = case.expected(scale or case.q.shape[-1] ** -0.5, window)
    np.testing.assert_allclose(run(case, window, scale).numpy(), expected, rtol=1e-4, atol=4e-6)


@pytest.mark.parametrize("dim", [8, 16, 32, 64, 80, 96, 128, 256])
@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (3, 3), (8, 2), (16, 2), (5, 1), (14, 2)])
def test_head_shapes(paged, heads, kv_heads, dim):
    check(paged(WORK, heads, kv_heads, dim, 16, seed=dim))


@pytest.mark.parametrize("size", [1, 8, 16, 32, 48])
@pytest.mark.parametrize("window", [None, 1, 7, 64, 100, 5000])
def test_windows_and_block_sizes(paged, window, size):
    check(paged(WORK, 6, 2, 32, size, seed=size), window)


@pytest.mark.parametrize("work", [[(1, 1)], [(1, 4097)], [(257, 257)], [(9, 3000)], [(1, n) for n in range(1, 131)]])
def test_lengths(paged, work):
    check(paged(work, 9, 3, 64, 16))


def test_a_layers_scale(paged):
    check(paged(WORK, 6, 2, 64, 16), scale=0.05)


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neighbours_and_threads_change_no_bit(paged, threads, window):
    case = paged(WORK, 9, 3, 64, 16)
    before = pool().threads
    pool().resize(threads)
    try:
        together = run(case, window)
    finally:
        pool().resize(before)
    for s in range(len(WORK)):
        rows = slice(case.batch.query_start[s], case.batch.query_start[s + 1])
        assert torch.equal(together[rows], run(case.alone(s), window)), WORK[s]


def test_chunks_change_no_bit(paged):
    case = paged([(150, 150)], 9, 3, 64, 16)
    whole = run(case).numpy()
    for start, end in [(0, 1), (1, 70), (70, 149), (149, 150)]:
        tokens = slice(start, end)
        batch = case.alone(0).batch
        part = type(batch)(
            **{
                **{name: getattr(batch, name) for name in batch.__dataclass_fields__},
                "positions": batch.positions[tokens],
                "query_start": np.array([0, end - start], np.int32),
                "context_lens": np.array([end], np.int32),
            }
        )
        np.testing.assert_array_equal(run(Paged(part, case.q[tokens], case.keys, case.values)), whole[tokens])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("sick", [0, 3])
def test_a_bad_sequence_is_sick_alone(paged, sick, bad):
    case = paged(WORK, 9, 3, 64, 16)
    healthy = run(case)
    at = case.slots(sick)[0]
    case.keys.reshape(-1, 3, 64)[at] = bad
    case.values.reshape(-1, 3, 64)[at] = bad
    result = run(case)
    rows = slice(case.batch.query_start[sick], case.batch.query_start[sick + 1])
    assert not result[rows].isfinite().all(dim=1).any()
    keep = torch.ones(len(result), dtype=torch.bool)
    keep[rows] = False
    assert torch.equal(result[keep], healthy[keep])


def test_blocks_before_the_window_are_not_read(paged):
    """The engine may have given them to someone else."""
    case = paged([(1, 400), (3, 300)], 6, 2, 32, 16)
    expected = run(case, 40)
    case.batch.block_tables[0, : (400 - 40) // 16] = -1
    case.batch.block_tables[1, : (298 - 40) // 16] = -1
    assert torch.equal(run(case, 40), expected)


def test_large_scores_do_not_overflow(paged):
    case = paged([(1, 200), (30, 100)], 6, 2, 64, 16)
    case.q[:] *= 1e4
    result = run(case)
    assert result.isfinite().all()
    best = case.expected(64**-0.5, None)  # one key takes all the weight
    assert np.median(np.abs(result.numpy() - best)) < 1e-5


def test_equal_lengths_of_read_only_arrays(paged):
    """Batches come read-only from the core; nothing may be compiled again for them."""
    case = paged(WORK, 9, 3, 64, 16)
    expected = run(case)
    for array in (case.batch.query_start, case.batch.context_lens, case.batch.block_tables):
        array.flags.writeable = False
    from bireme.backends.cpu import attention

    before = len(attention._run.signatures)
    assert torch.equal(run(case), expected)
    assert len(attention._run.signatures) == before


@pytest.mark.parametrize("window", [None, 400])
def test_a_shared_prefix_changes_no_bit(paged, window):
    """Sequences that share blocks are read together; each gets what it gets alone."""
    case = paged([(1, 300), (1, 310), (5, 290), (1, 270), (1, 128), (1, 306)], 9, 3, 64, 16)
    for s, common in ((1, 256), (2, 256), (3, 192), (4, 128), (5, 300)):
        case.batch.block_tables[s, : common // 16] = case.batch.block_tables[0, : common // 16]
    together = run(case, window)
    np.testing.assert_allclose(together.numpy(), case.expected(64**-0.5, window), rtol=1e-4, atol=4e-6)
    for s in range(case.batch.num_seqs):
        rows = slice(case.batch.query_start[s], case.batch.query_start[s + 1])
        assert torch.equal(together[rows], run(case.alone(s), window)), s


@pytest.mark.parametrize("window", [7, 50, 100])
def test_chunks_change_no_bit_behind_a_window(paged, window):
    case = paged([(150, 150)], 6, 2, 32, 8)
    whole = run(case, window)
    for t in (0, 5, 63, 64, 90, 149):
        batch = case.alone(0).batch
        fields = {name: getattr(batch, name) for name in batch.__dataclass_fields__}
        fields |= {"positions": batch.positions[t : t + 1], "context_lens": np.array([t + 1], np.int32)}
        fields["query_start"] = np.array([0, 1], np.int32)
        alone = run(Paged(type(batch)(**fields), case.q[t : t + 1], case.keys, case.values), window)
        assert torch.equal(alone[0], whole[t]), t
