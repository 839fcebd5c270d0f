"""The CPU's attention kernel over int8 keys and values: against float64 over what the codes mean."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from paged import Paged, paged

from bireme.backends.cpu.attention import attend
from bireme.backends.cpu.attention_plan import Plan
from bireme.backends.cpu.threads import pool
from bireme.backends.cuda.kv import quantise

WORK = [(1, 300), (5, 5), (1, 64), (30, 100), (1, 1), (1, 65), (40, 200), (2, 131), (1, 128)]


@dataclass(frozen=True)
class Codes:
    """A case's pool as codes and scales; what no sequence owns has wild codes and NaN scales."""

    case: Paged  # its keys and values are what the codes mean
    pools: tuple[torch.Tensor, torch.Tensor]
    scales: tuple[torch.Tensor, torch.Tensor]

    def alone(self, sequence: int) -> Codes:
        return Codes(self.case.alone(sequence), self.pools, self.scales)


def coded(*shape, **options) -> Codes:
    case = paged(*shape, **options)
    made = [quantise(torch.from_numpy(x)) for x in (case.keys, case.values)]
    for (codes, scales), meant in zip(made, (case.keys, case.values), strict=True):
        codes[scales.isnan()] = -128
        meant[:] = (codes * scales[..., None]).numpy()
    return Codes(case, *zip(*made, strict=True))


def run(coded: Codes, window: int | None = None) -> torch.Tensor:
    case = coded.case
    heads, dim = case.q.shape[1:]
    plan = Plan.build(case.batch, window, heads, case.keys.shape[2], dim, case.keys.shape[1])
    return attend(plan, torch.from_numpy(case.q), *coded.pools, dim**-0.5, window, coded.scales)


def check(coded: Codes, window: int | None = None) -> None:
    expected = coded.case.expected(coded.case.q.shape[-1] ** -0.5, window)
    np.testing.assert_allclose(run(coded, window).numpy(), expected, rtol=1e-4, atol=4e-6)


@pytest.mark.parametrize("dim", [8, 64, 80, 128, 256])
@pytest.mark.parametrize("heads, kv_heads", [(9, 3), (3, 3), (8, 2), (16, 2), (5, 1), (14, 2)])
def test_head_shapes(heads, kv_heads, dim):
    check(coded(WORK, heads, kv_heads, dim, 16, seed=dim))


@pytest.mark.parametrize("size", [1, 16, 48])
@pytest.mark.parametrize("window", [None, 1, 7, 100])
def test_windows_and_block_sizes(window, size):
    check(coded(WORK, 6, 2, 32, size, seed=size), window)


@pytest.mark.parametrize("work", [[(1, 1)], [(1, 4097)], [(257, 257)], [(9, 3000)], [(1, n) for n in range(1, 131)]])
def test_lengths(work):
    check(coded(work, 9, 3, 64, 16))


@pytest.mark.parametrize("window", [None, 50])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_neighbours_and_threads_change_no_bit(threads, window):
    case = coded(WORK, 9, 3, 64, 16)
    before = pool().threads
    pool().resize(threads)
    try:
        together = run(case, window)
    finally:
        pool().resize(before)
    start = case.case.batch.query_start
    for s in range(len(WORK)):
        assert torch.equal(together[start[s] : start[s + 1]], run(case.alone(s), window)), WORK[s]


@pytest.mark.parametrize("sick", [0, 3])
def test_a_bad_sequence_is_sick_alone(sick):
    """A head that held a NaN or an infinity has NaN for its scale."""
    case = coded(WORK, 9, 3, 64, 16)
    healthy = run(case)
    at = case.case.slots(sick)[0]
    for scales in case.scales:
        scales.view(-1, 3)[at] = torch.nan
    result = run(case)
    start = case.case.batch.query_start
    keep = torch.ones(len(result), dtype=torch.bool)
    keep[start[sick] : start[sick + 1]] = False
    assert result[~keep].isnan().all()
    assert torch.equal(result[keep], healthy[keep])
