"""The lanes' form of attention at each width of vector: against float64, and the same bits at all of them."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

from bireme.backends.cpu import attention_lanes as lanes
from bireme.backends.cpu.native import compile_bodies

N, DIM, ROWS = 64, 40, 48


def run(width: int) -> tuple[np.ndarray, ...]:
    """Mixed values [DIM, ROWS], and the scores' maximum and weights' sum [2, ROWS], of ``ROWS`` rows over N keys."""
    random = np.random.default_rng(5)
    queries, keys, values = (random.standard_normal(shape, np.float32) for shape in ((DIM, ROWS), (N, DIM), (N, DIM)))
    vectors = [v for v in (3, 2, 1) if ROWS % (v * width) == 0][0]
    count = vectors * width
    code = compile_bodies(
        {
            "scores": (5, lanes.lane_scores(vectors)),
            "mask": (6, lanes.lane_mask),
            "softmax": (4, lanes.lane_softmax),
            "values": (5, lanes.lane_values(vectors)),
        },
        width,
    )

    def call(name: str, *given: np.ndarray | int) -> None:
        passed = [x if isinstance(x, int) else x.ctypes.data for x in given]
        ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * len(passed))(code[name])(*passed)

    mixed, best = np.empty((DIM, ROWS), np.float32), np.empty((2, ROWS), np.float32)
    newest, oldest = np.arange(ROWS, dtype=np.int32) + 12, np.maximum(np.arange(ROWS, dtype=np.int32) - 5, 0)
    for first in range(0, ROWS, count):
        own = slice(first, first + count)
        scores, out, peak = (np.empty((size, count), np.float32) for size in (N, DIM, 2))
        call("scores", np.ascontiguousarray(queries[:, own]), keys, N, DIM, scores)
        call("mask", scores, N, count, 0, newest[own].copy(), oldest[own].copy())
        call("softmax", scores, N, count, peak)
        call("values", scores, values, N, DIM, out)
        mixed[:, own], best[:, own] = out, peak
    wanted = keys.astype(np.float64) @ queries
    at = np.arange(N)[:, None]
    wanted[(at > newest) | (at < oldest)] = -np.inf
    weights = np.exp(wanted - wanted.max(0))
    np.testing.assert_allclose(best, [wanted.max(0), weights.sum(0)], rtol=2e-6)
    np.testing.assert_allclose(mixed, values.astype(np.float64).T @ weights, rtol=1e-4, atol=1e-5)
    return mixed, best


@pytest.mark.parametrize("width", [8, 16])
def test_a_width_is_right_and_changes_no_bit(width):
    for found, wanted in zip(run(width), run(8), strict=True):
        np.testing.assert_array_equal(found, wanted)
