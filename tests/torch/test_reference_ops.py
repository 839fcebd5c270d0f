"""The reference operations against loops in float64, token by token."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from bireme.backends.cuda import step as step_module
from bireme.backends.cuda.kv import KVPool
from bireme.backends.cuda.ops import TorchOps
from bireme.backends.cuda.rope import RopeTable
from bireme.backends.cuda.step import TorchStep
from bireme.core.step import StepBatch
from bireme.models.config import ModelConfig, RopeConfig

CPU = torch.device("cpu")
BLOCK = 4
RANDOM = np.random.default_rng(0)


def config(heads: int = 6, kv_heads: int = 2, head_dim: int = 8, rotary: int | None = None) -> ModelConfig:
    rope = RopeConfig(rotary_dim=rotary)
    return ModelConfig("llama", 32, heads * head_dim, 16, 1, heads, kv_heads, head_dim, 256, 1e-5, rope)


def layer(window: int | None = None, **extra) -> SimpleNamespace:
    norms = {"eps": 1e-5, "q_norm": None, "k_norm": None}
    return SimpleNamespace(index=0, window=window, scale=0.3, sinks=None, rope=0, **norms, **extra)


def batch(work: list[tuple[int, int]], blocks: np.ndarray) -> StepBatch:
    """Sequences of (computed, new) tokens with their block tables [S, B]."""
    spans = [np.arange(done, done + new) for done, new in work]
    slots = [row[at // BLOCK] * BLOCK + at % BLOCK for row, at in zip(blocks, spans, strict=True)]
    total = sum(new for _, new in work)
    return StepBatch(
        0,
        np.zeros(total, np.int32),
        np.concatenate(spans).astype(np.int32),
        np.concatenate(slots).astype(np.int64),
        np.cumsum([0] + [new for _, new in work]).astype(np.int32),
        np.array([done + new for done, new in work], np.int32),
        blocks.astype(np.int32),
        np.arange(len(work), dtype=np.int32),
        np.ones(len(work), bool),
        np.zeros((0, 2), np.int32),
    )


def attend(q: np.ndarray, keys: np.ndarray, values: np.ndarray, position: int, window: int | None, scale: float):
    """One query [H, hd] over one sequence's keys and values [L, KV, hd]."""
    first = 0 if window is None else max(0, position - window + 1)
    out = np.empty_like(q)
    for head in range(len(q)):
        group = head // (len(q) // keys.shape[1])
        scores = keys[first : position + 1, group] @ q[head] * scale
        weights = np.exp(scores - scores.max())
        out[head] = weights / weights.sum() @ values[first : position + 1, group]
    return out


@pytest.mark.parametrize("elements", [1 << 8, 1 << 23])
@pytest.mark.parametrize("window", [None, 1, 5, 64])
@pytest.mark.parametrize("heads, kv_heads", [(6, 2), (4, 4), (3, 1)])
def test_attention(monkeypatch, heads, kv_heads, window, elements):
    """Decodes of very unequal lengths among chunks; what no sequence wrote is NaN. Small groups give the same."""
    monkeypatch.setattr(step_module, "GROUP_ELEMENTS", elements)
    shape = config(heads, kv_heads)
    work = [(0, 1), (62, 1), (0, 30), (7, 1), (9, 23), (33, 2), (3, 1), (5, 1)]
    width = 16
    kv = KVPool(shape, len(work) * width, BLOCK, torch.float32, CPU)
    kv.keys[0].fill_(float("nan"))
    kv.values[0].fill_(float("nan"))
    blocks = RANDOM.permutation(len(work) * width).reshape(len(work), width)
    dense = []
    for (done, new), table in zip(work, blocks, strict=True):
        k, v = RANDOM.standard_normal((2, done + new, kv_heads, shape.head_dim)).astype(np.float32)
        at = np.arange(done + new)
        slots = torch.from_numpy(table[at // BLOCK] * BLOCK + at % BLOCK)
        kv.store(0, slots, torch.from_numpy(k), torch.from_numpy(v))
        dense.append((k.astype(np.float64), v.astype(np.float64)))
    for (done, new), table in zip(work, blocks, strict=True):
        table[-(-(done + new) // BLOCK) :] = -1
    step = TorchStep.build(batch(work, blocks), torch.zeros(8, dtype=torch.int64), BLOCK)
    q = RANDOM.standard_normal((len(step.positions), heads, shape.head_dim)).astype(np.float32)
    rope = RopeTable.build(shape.rope, shape.head_dim, 64, CPU)
    found = TorchOps(shape, kv, rope).attention(torch.from_numpy(q), layer(window), step).numpy()
    wanted = [
        attend(q[token].astype(np.float64), *dense[sequence], position, window, 0.3).reshape(-1)
        for sequence, (done, new) in enumerate(work)
        for token, position in zip(
            range(*step.host.query_start[sequence : sequence + 2]), range(done, done + new), strict=True
        )
    ]
    np.testing.assert_allclose(found, np.stack(wanted), atol=2e-6)


@pytest.mark.parametrize("rotary", [None, 4])
@pytest.mark.parametrize("normed", [False, True])
def test_rope_and_store(rotary, normed):
    shape = config(rotary=rotary)
    kv = KVPool(shape, 8, BLOCK, torch.float32, CPU)
    ops = TorchOps(shape, kv, RopeTable.build(shape.rope, shape.head_dim, 64, CPU))
    step = TorchStep.build(batch([(5, 3)], np.array([[6, 2, 1]])), torch.zeros(1, dtype=torch.int64), BLOCK)
    qkv = RANDOM.standard_normal((3, 10 * 8)).astype(np.float32)
    norms = [RANDOM.standard_normal(8).astype(np.float32) for _ in range(2)] if normed else [None, None]
    handles = [None if n is None else torch.from_numpy(n) for n in norms]
    part = SimpleNamespace(index=0, eps=1e-5, q_norm=handles[0], k_norm=handles[1], rope=0)
    q = ops.rope_and_store(torch.from_numpy(qkv), part, step).numpy()
    heads = qkv.reshape(3, 10, 8).astype(np.float64)

    def turned(x: np.ndarray, norm: np.ndarray | None, position: int) -> np.ndarray:
        if norm is not None:
            x = x / np.sqrt((x * x).mean() + 1e-5) * norm
        dim = rotary or 8
        out = x.copy()
        for i in range(dim // 2):
            z = (x[i] + 1j * x[i + dim // 2]) * np.exp(1j * position * 10000.0 ** (-2 * i / dim))
            out[i], out[i + dim // 2] = z.real, z.imag
        return out

    for token in range(3):
        for head in range(6):
            np.testing.assert_allclose(q[token, head], turned(heads[token, head], norms[0], 5 + token), atol=1e-5)
        block, offset = [(2, 1), (2, 2), (2, 3)][token]
        for head in range(2):
            stored = kv.keys[0][block, offset, head].numpy()
            np.testing.assert_allclose(stored, turned(heads[token, 6 + head], norms[1], 5 + token), atol=1e-5)
            assert (kv.values[0][block, offset, head].numpy() == qkv.reshape(3, 10, 8)[token, 8 + head]).all()


def test_norms_and_gates():
    shape = config()
    ops = TorchOps(shape, KVPool(shape, 1, BLOCK, torch.float32, CPU), RopeTable.build(shape.rope, 8, 4, CPU))
    x, r, w = (torch.from_numpy(RANDOM.standard_normal(s).astype(np.float32)) for s in ((5, 12), (5, 12), 12))
    total = (x + r).double().numpy()
    normed, residual = ops.add_rms_norm(x, r, w, 1e-5)
    wanted = total / np.sqrt((total**2).mean(-1, keepdims=True) + 1e-5) * w.numpy()
    np.testing.assert_allclose(normed, wanted, atol=1e-6)
    np.testing.assert_array_equal(residual, x + r)
    gate, up = x[:, :6].double().numpy(), x[:, 6:].double().numpy()
    np.testing.assert_allclose(ops.swiglu(x), gate / (1 + np.exp(-gate)) * up, atol=1e-6)
    inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
    np.testing.assert_allclose(ops.geglu(x), gate / 2 * (1 + np.tanh(inner)) * up, atol=1e-6)


@pytest.mark.parametrize("dtype, factor", [(torch.float32, 25.298221281347036), (torch.bfloat16, 25.25)])
def test_embeddings_are_scaled_by_a_number_of_their_own_dtype(dtype, factor):
    """As transformers does it: the square root of 640 is 25.25 to a bfloat16 model."""
    ops = TorchOps(config(), KVPool(config(), 1, BLOCK, torch.float32, CPU))
    table = torch.ones(3, 8, dtype=dtype)
    rows = ops.embedding(lambda ids: table[ids], torch.tensor([0, 2]), 640**0.5)
    assert rows.dtype == dtype
    torch.testing.assert_close(rows.double(), torch.full((2, 8), factor, dtype=torch.float64), rtol=1e-7, atol=0)
    assert ops.embedding(lambda ids: table[ids], torch.tensor([1])).eq(1).all()


def test_each_layer_turns_by_its_own_table():
    shape = config()
    ropes = [RopeTable.build(RopeConfig(theta=theta), 8, 8, CPU) for theta in (1e4, 10.0)]
    both = TorchOps(shape, KVPool(shape, 2, BLOCK, torch.float32, CPU), *ropes)
    step = TorchStep.build(batch([(0, 5)], np.array([[1, 0]])), torch.zeros(1, dtype=torch.int64), BLOCK)
    qkv = torch.from_numpy(RANDOM.standard_normal((5, 80)).astype(np.float32))
    for index, rope in enumerate(ropes):
        one = TorchOps(shape, KVPool(shape, 2, BLOCK, torch.float32, CPU), rope)
        asked = layer()
        asked.rope = index
        assert torch.equal(both.rope_and_store(qkv, asked, step), one.rope_and_store(qkv, layer(), step))


def test_groups_stay_within_their_bound():
    """64 decodes and a long chunk: no group gathers more than the bound, and padding at most doubles a context."""
    work = [(17 * n, 1) for n in range(1, 60)] + [(0, 900)]
    blocks = np.arange(60 * 256).reshape(60, 256)
    step = TorchStep.build(batch(work, blocks), torch.zeros(64, dtype=torch.int64), BLOCK)
    groups = step.attention_groups(None, 2 * 2 * 8, 6)
    assert sorted(int(t) for group in groups for t in group.tokens) == list(range(59 + 900))
    for group in groups:
        sequences, queries, keys = group.mask.shape
        assert sequences == 1 or sequences * keys * 32 <= step_module.GROUP_ELEMENTS
        assert queries == 1 or queries * keys * 6 <= step_module.GROUP_ELEMENTS
        assert int(group.mask[:, -1].sum(-1).min()) * 2 + 2 * BLOCK >= keys
    assert len(groups) < 12
