"""The paged attention kernels against float64, over a pool whose unowned slots are NaN."""

from __future__ import annotations

import numpy as np
import pytest
from metal_harness import NEEDS_COMPILER, KernelError, Tensor, mutate, run
from paged import Paged, paged

from bireme.backends.mlx.metal.attention import (
    GROUPS,
    LEAST_SPAN,
    MOST_SPAN,
    Geometry,
    Spans,
    attention_launch,
    make_spans,
    reduce_launch,
    roomy_tables,
    span_keys,
)

pytestmark = NEEDS_COMPILER

#: (new tokens, context): single queries and chunks, ending in and on the edges of blocks, spans and kernel steps.
WORK = [(1, 300), (3, 70), (1, 1), (5, 5), (1, 64), (1, 65), (1, 129)]
WHOLE = 1 << 20
#: The relative rounding of a result, and what float arithmetic adds at most.
ROUNDING = {"float32": 2e-6, "float16": 2**-11, "bfloat16": 2**-8}
NOISE = 4e-6


def spans_of(case: Paged, shape: Geometry, window: int | None, span: int) -> Spans:
    counts = np.diff(case.batch.query_start)
    sequences = np.repeat(np.arange(len(counts), dtype=np.int32), counts)
    return make_spans(sequences, case.batch.positions, window, shape.threadgroups, span)


class Run:
    """One case, its expected result, and the launches over it."""

    def __init__(
        self,
        case: Paged,
        dtype: str,
        window: int | None = None,
        span: int = WHOLE,
        cap: float = 0.0,
        scaled: bool = False,
    ) -> None:
        heads, dim = case.q.shape[1:]
        _, size, kv_heads, _ = case.keys.shape
        self.shape = Geometry(heads, kv_heads, dim, size, dtype, scaled)
        self.inputs, scales = [Tensor.of(case.q, dtype)], []
        stored = [self.inputs[0].values()]
        for pool in (case.keys, case.values):
            codes, scale = quantized(pool) if scaled else (Tensor.of(pool, dtype), None)
            self.inputs.append(codes)
            scales += [Tensor.of(scale)] if scaled else []
            stored.append(codes.values() * scale[..., None] if scaled else codes.values())
        self.case = Paged(case.batch, *stored)
        self.window, self.cap, self.scale = window, cap, dim**-0.5
        self.spans = spans_of(case, self.shape, window, span)
        self.launch = attention_launch(self.shape, self.spans, self.scale, cap)
        self.inputs += [Tensor.of(roomy_tables(case.batch.block_tables)), Tensor.of(self.spans.items), *scales]

    def result(self, source: str | None = None, reduce_with: tuple[str, str] | None = None) -> np.ndarray:
        """[T, H, hd]"""
        done = run(self.launch, *self.inputs, source=source)
        if not self.spans.split:
            return done[0]
        launch = reduce_launch(self.shape, self.spans)
        changed = None if reduce_with is None else mutate(launch, *reduce_with)
        return run(launch, *(Tensor.of(x) for x in done), Tensor.of(self.spans.starts), source=changed)[0]

    def expected(self) -> np.ndarray:
        if self.cap:
            return capped(self.case, self.scale, self.cap)
        return self.case.expected(self.scale, self.window).reshape(self.case.q.shape)

    def check(self, **how) -> None:
        np.testing.assert_allclose(
            self.result(**how), self.expected(), rtol=ROUNDING[self.shape.dtype], atol=NOISE, strict=False
        )


def quantized(pool: np.ndarray) -> tuple[Tensor, np.ndarray]:
    """int8 codes and a scale per token and head, NaN where nothing is stored."""
    scale = np.abs(pool).max(axis=-1) / np.float32(127)
    codes = np.nan_to_num(np.round(pool / scale[..., None]))
    return Tensor.of(codes.astype(np.int8)), scale


def capped(case: Paged, scale: float, cap: float) -> np.ndarray:
    """Attention with soft-capped scores, in float64."""
    out = np.empty(case.q.shape)
    group = case.q.shape[1] // case.keys.shape[2]
    for s in range(case.batch.num_seqs):
        keys, values = (np.repeat(x, group, axis=1) for x in case.context(s))
        for t in range(*case.batch.query_start[s : s + 2]):
            seen = case.batch.positions[t] + 1
            scores = cap * np.tanh(np.einsum("hd,lhd->hl", case.q[t].astype(np.float64), keys[:seen]) * scale / cap)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[t] = np.einsum("hl,lhd->hd", weights / weights.sum(axis=1, keepdims=True), values[:seen])
    return out


SHAPES = [  # heads, kv heads, head_dim, block size, dtype
    (8, 2, 64, 16, "float32"),
    (4, 4, 80, 8, "float16"),
    (6, 2, 96, 32, "bfloat16"),
    (8, 2, 128, 16, "bfloat16"),
    (4, 1, 256, 16, "float16"),
    (14, 2, 64, 1, "float16"),
    (16, 1, 128, 16, "float32"),  # heads of one KV head in two threadgroups
    (5, 5, 80, 48, "bfloat16"),
    (10, 2, 80, 16, "float32"),
    (3, 1, 96, 16, "float32"),
    (8, 1, 256, 16, "float32"),
]


@pytest.mark.parametrize("span", [WHOLE, 64])
@pytest.mark.parametrize("heads, kv_heads, dim, size, dtype", SHAPES)
def test_shapes_and_types(heads, kv_heads, dim, size, dtype, span):
    Run(paged(WORK, heads, kv_heads, dim, size, seed=dim), dtype, span=span).check()


@pytest.mark.parametrize("window", [1, 7, 33, 64, 128, 5000])
def test_windows(window):
    case = paged(WORK, 8, 2, 64, 16)
    Run(case, "float32", window).check()
    Run(case, "float32", window, span=64).check()


@pytest.mark.parametrize("span", [WHOLE, 64])
def test_soft_cap(span):
    Run(paged(WORK, 8, 2, 64, 16), "float32", span=span, cap=1.5).check()


@pytest.mark.parametrize("dtype, span", [("float32", WHOLE), ("float16", 64)])
def test_int8_pool(dtype, span):
    Run(paged(WORK, 8, 2, 128, 16), dtype, window=100, span=span, scaled=True).check()


@pytest.mark.parametrize("work", [[(1, 1)], [(1, 2050)], [(20, 20)], [(1, n) for n in range(1, 40)]])
def test_lengths(work):
    Run(paged(work, 8, 2, 64, 16), "float32").check()
    Run(paged(work, 8, 2, 64, 16), "float32", span=0).check()


def test_large_scores_neither_overflow_nor_vanish():
    case = paged(WORK, 8, 2, 64, 16)
    Run(Paged(case.batch, case.q * 300, case.keys, case.values), "float32").check()


def test_neighbours_change_no_bit():
    case = paged(WORK, 8, 2, 64, 16)
    together = Run(case, "float32", span=64).result()
    for s in range(len(WORK)):
        rows = slice(case.batch.query_start[s], case.batch.query_start[s + 1])
        alone = Run(case.alone(s), "float32", span=64)
        np.testing.assert_array_equal(together[rows], alone.result())


ATTENTION_FAULTS = [
    ("const bool seen = key < stop;", "const bool seen = true;"),
    ("score[u][h] = seen ? dot : LOWEST;", "score[u][h] = dot;"),
    ("if (tile + u * SLOTS + slot < stop) {", "if (true) {"),
    ("threadgroup_barrier(mem_flags::mem_threadgroup);\n        float top", "float top"),
    ("#endif\n        threadgroup_barrier(mem_flags::mem_threadgroup);", "#endif"),
    ("total[h] *= rescale;", ""),
    ("sum[h][i] *= rescale;", ""),
    ("lanes < LANES;", "lanes < LANES / 2;"),
    ("d < HEAD_DIM; d += SIMDS", "d < HEAD_DIM + 8; d += SIMDS"),
    ("tables_shape[1]", "4"),
    ("metal::exp2(highest[h] - top)", "1.0f"),
]


SCALED_FAULTS = [
    ("dot *= scale;", ""),
    ("scale = k_scales[where[u]];", "scale = v_scales[where[u]];"),
    ("scale = k_scales[where[u]];", "scale = k_scales[where[u] - kv_head];"),
    ("value_scale[u] = v_scales[where[u]];", "value_scale[u] = k_scales[where[u]];"),
    ("score[u][h] *= value_scale[u];", ""),
    ("score[u][h] *= value_scale[u];", "total[h] += score[u][h] * value_scale[u] - score[u][h];"),
    ("score[u][h] = seen ? dot : LOWEST;", "score[u][h] = dot;"),
    ("float(k_pool[where[u] * HEAD_DIM + at + i])", "float(uint8_t(k_pool[where[u] * HEAD_DIM + at + i]))"),
]


def faulty_case() -> Paged:
    """One in which block 0 is nobody's."""
    cases = (paged(WORK, 8, 2, 128, 16, seed=seed) for seed in range(1000))
    return next(case for case in cases if not (case.batch.block_tables == 0).any())


@pytest.mark.parametrize("old, new", ATTENTION_FAULTS)
def test_a_fault_shows(old, new):
    """Without one of its masks, barriers or bounds the kernel must fail these very checks."""
    sound = Run(faulty_case(), "float32")
    with pytest.raises((AssertionError, KernelError)):
        sound.check(source=mutate(sound.launch, old, new))


@pytest.mark.parametrize("old, new", SCALED_FAULTS)
def test_a_fault_over_codes_shows(old, new):
    sound = Run(faulty_case(), "float32", scaled=True)
    with pytest.raises((AssertionError, KernelError)):
        sound.check(source=mutate(sound.launch, old, new))


@pytest.mark.parametrize(
    "old, new",
    [
        ("if (d < HEAD_DIM) {", "{"),
        ("metal::exp2(lse[row] - top)", "1.0f"),
        ("item < end; item++) {\n            const", "item < begin + 1; item++) {\n            const"),
    ],
)
def test_a_fault_in_the_joining_shows(old, new):
    sound = Run(paged(WORK, 4, 4, 80, 16), "float32", span=64)
    sound.check()
    with pytest.raises((AssertionError, KernelError)):
        sound.check(reduce_with=(old, new))


def test_spans_cover_what_each_token_sees():
    random = np.random.default_rng(0)
    for window in (None, 1, 64, 100):
        positions = random.integers(0, 3000, 50).astype(np.int32)
        sequences = random.integers(0, 9, 50).astype(np.int32)
        spans = make_spans(sequences, positions, window, 8, 128)
        for token in range(50):
            own = spans.items[spans.starts[token] : spans.starts[token + 1]]
            assert (own[:, 0] == token).all() and (own[:, 1] == sequences[token]).all()
            seen = np.concatenate([np.arange(first, end) for _, _, first, end in own])
            first = max(0, positions[token] + 1 - window) if window else 0
            np.testing.assert_array_equal(seen, np.arange(first, positions[token] + 1))
            assert (own[:, 3] - own[:, 2] <= 128).all()


def test_spans_fill_a_gpu_and_no_more():
    assert span_keys(4096, 8) == LEAST_SPAN, "one long sequence: as many spans as pay"
    assert span_keys(20 * 4096, 8) == 640 and 20 * 4096 / 640 * 8 <= GROUPS
    assert span_keys(10**7, 8) == MOST_SPAN
    assert all(span_keys(keys, 3) % 64 == 0 for keys in range(1, 10**6, 9973))


def test_registers_bound_a_threadgroups_heads():
    for heads, kv_heads, dim, lanes, tile in [
        (32, 8, 128, 16, 4),
        (16, 2, 128, 32, 8),
        (16, 1, 128, 32, 8),
        (4, 4, 80, 8, 1),
        (8, 1, 256, 32, 4),
        (14, 2, 64, 16, 7),
    ]:
        shape = Geometry(heads, kv_heads, dim, 16, "float16")
        assert (shape.lanes, shape.tile) == (lanes, tile)
        assert dim % shape.lanes == 0 and heads // kv_heads % shape.tile == 0
