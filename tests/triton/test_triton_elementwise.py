"""Norms, rotation with storing, and SwiGLU against the torch reference."""

from __future__ import annotations

import pytest
import torch
from triton_setup import close, pool, reference_ops, shape, step_of

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda.kernels import activation, norm, rope

DTYPES = [torch.float32, torch.float16]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, width", [(1, 1), (3, 7), (2, 576), (5, 1025)])
def test_rms_norm(rows, width, dtype):
    torch.manual_seed(width)
    ops = reference_ops()
    x, residual = torch.randn(2, rows, width).to(dtype) * 3
    weight = torch.randn(width).to(dtype)
    close(norm.rms_norm(x, weight, 1e-5), ops.rms_norm(x, weight, 1e-5))
    found, total = norm.add_rms_norm(x, residual, weight, 1e-5)
    wanted, wanted_total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, wanted_total)
    close(found, wanted)


def test_rms_norm_over_heads():
    x, weight = torch.randn(2, 3, 5, 16)[0], torch.randn(16)
    close(norm.rms_norm(x, weight, 1e-6), reference_ops().rms_norm(x, weight, 1e-6))


def test_nothing_to_do():
    none = torch.zeros(0, 8)
    assert norm.rms_norm(none, torch.ones(8), 1e-5).shape == (0, 8)
    assert norm.add_rms_norm(none, none, torch.ones(8), 1e-5)[1].shape == (0, 8)
    assert activation.swiglu(none).shape == (0, 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows, width", [(1, 1), (3, 48), (2, 1030)])
def test_swiglu(rows, width, dtype):
    torch.manual_seed(width)
    x = (torch.randn(rows, 2 * width) * 4).to(dtype)
    close(activation.swiglu(x), reference_ops().swiglu(x.float()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(
    "heads, kv_heads, dim, rotary",
    [(6, 2, 64, None), (3, 1, 80, None), (2, 2, 128, 32), (4, 1, 256, None), (1, 1, 96, 48)],
)
def test_rope_and_store(heads, kv_heads, dim, rotary, normed, dtype):
    torch.manual_seed(dim)
    config = shape(heads, kv_heads, dim, rotary)
    step = step_of([(5, 2), (0, 1)])
    ops, mine = reference_ops(config, dtype), pool(config, dtype)
    for pools in (ops.kv.keys, ops.kv.values, mine.keys, mine.values):
        pools[0].fill_(7)
    qkv = torch.randn(3, (heads + 2 * kv_heads) * dim).to(dtype)
    norms = tuple(torch.randn(2, dim).to(dtype)) if normed else None
    layer = ops.layer(norms=norms)
    found = rope.rope_and_store(
        qkv,
        norms,
        layer.eps,
        (ops.rope.cos, ops.rope.sin),
        step.positions,
        step.slots,
        mine.keys[0],
        mine.values[0],
        heads,
    )
    close(found, ops.rope_and_store(qkv, layer, step))
    close(mine.keys[0], ops.kv.keys[0])
    assert torch.equal(mine.values[0], ops.kv.values[0])


def test_a_row_without_a_slot_stores_nothing():
    config = shape(2, 1, 64)
    ops, mine, step = reference_ops(config), pool(config), step_of([(0, 2)])
    for pools in (mine.keys, mine.values):
        pools[0].fill_(7)
    slots = torch.tensor([-1, -1])
    qkv = torch.randn(2, 4 * 64)
    q = rope.rope_and_store(
        qkv, None, 1e-5, (ops.rope.cos, ops.rope.sin), step.positions, slots, mine.keys[0], mine.values[0], 2
    )
    assert q.isfinite().all()
    assert (mine.keys[0] == 7).all() and (mine.values[0] == 7).all()


def test_an_int8_cache_is_written_as_the_reference_writes_it():
    config = shape(2, 2, 64)
    ops, mine, step = reference_ops(config, torch.int8), pool(config, torch.int8), step_of([(5, 2), (0, 1)])
    for array in (*ops.kv.arrays, *mine.arrays):
        array.fill_(7)
    qkv = torch.randn(3, 6 * 64)
    qkv[0, 4 * 64] = float("nan")  # in a value: its scale becomes NaN
    qkv[1, 2 * 64] = float("inf")
    qkv[2, 5 * 64 :] = 0
    wanted = ops.rope_and_store(qkv, ops.layer(), step)
    found = rope.rope_and_store(
        qkv, None, 1e-5, (ops.rope.cos, ops.rope.sin), step.positions, step.slots, mine.keys[0], mine.values[0], 2,
        (mine.key_scales[0], mine.value_scales[0]),
    )  # fmt: skip
    close(found, wanted)
    for one, other in zip(mine.arrays, ops.kv.arrays, strict=True):
        assert torch.equal(one.float().nan_to_num(-1), other.float().nan_to_num(-1))
