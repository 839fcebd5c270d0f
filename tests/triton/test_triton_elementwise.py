"""Norms, rotation with storing, and SwiGLU against the torch reference."""

from __future__ import annotations

import pytest
import torch
from triton_setup import close, pool, reference_ops, shape, step_of

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

import triton
import triton.language as tl

from bireme.backends.cuda.kernels import activation, e4m3, norm, rope

widen, narrow = e4m3.widen, e4m3.narrow


@triton.jit
def e4m3_kernel(codes, wide, count, numbers, narrowed, more, BLOCK: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    tl.store(wide + lane, widen(tl.load(codes + lane, mask=lane < count, other=0), tl.float32), mask=lane < count)
    tl.store(narrowed + lane, narrow(tl.load(numbers + lane, mask=lane < more, other=0.0)), mask=lane < more)


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


def test_norms_weights_may_be_wider_than_what_they_norm():
    """Gemma's: float32 beside activations of 16 bits."""
    torch.manual_seed(2)
    ops, config = reference_ops(), shape(4, 1, 32)
    x, residual, weight = torch.randn(3, 96).half(), torch.randn(3, 96).half(), torch.randn(96) + 40
    close(norm.rms_norm(x, weight, 1e-6), ops.rms_norm(x, weight, 1e-6))
    close(norm.add_rms_norm(x, residual, weight, 1e-6)[0], ops.add_rms_norm(x, residual, weight, 1e-6)[0])
    ops, mine, step = reference_ops(config, torch.float16), pool(config, torch.float16), step_of([(0, 3)])
    qkv, norms = torch.randn(3, 6 * 32).half(), (torch.randn(32), torch.randn(32))
    found = rope.rope_and_store(
        qkv, norms, 1e-5, (ops.ropes[0].cos, ops.ropes[0].sin), step.positions, step.slots,
        mine.keys[0], mine.values[0], 4,
    )  # fmt: skip
    close(found, ops.rope_and_store(qkv, ops.layer(norms=norms), step))


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
@pytest.mark.parametrize("approximate", ["none", "tanh"])
def test_geglu(approximate, dtype):
    x = (torch.randn(3, 2 * 1030, generator=torch.Generator().manual_seed(1)) * 4).to(dtype)
    x[0, :3] = torch.tensor([-12.0, 60.0, 0.0])
    found = activation.geglu(x, approximate)
    close(found, activation.geglu_reference(x.float(), approximate).to(dtype))
    assert activation.geglu(x[:0], approximate).shape == (0, 1030)


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
        (ops.ropes[0].cos, ops.ropes[0].sin),
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
        qkv, None, 1e-5, (ops.ropes[0].cos, ops.ropes[0].sin), step.positions, slots, mine.keys[0], mine.values[0], 2
    )
    assert q.isfinite().all()
    assert (mine.keys[0] == 7).all() and (mine.values[0] == 7).all()


@pytest.mark.parametrize("kept", [torch.int8, torch.float8_e4m3fn])
def test_a_quantised_cache_is_written_as_the_reference_writes_it(kept):
    config = shape(2, 2, 64)
    ops, mine, step = reference_ops(config, kept), pool(config, kept), step_of([(5, 2), (0, 1)])
    for array in (*ops.kv.arrays, *mine.arrays):
        array.fill_(7)
    qkv = torch.randn(3, 6 * 64)
    qkv[0, 4 * 64] = float("nan")  # in a value: its scale becomes NaN
    qkv[1, 2 * 64] = float("inf")
    qkv[2, 5 * 64 :] = 0
    wanted = ops.rope_and_store(qkv, ops.layer(), step)
    found = rope.rope_and_store(
        qkv, None, 1e-5, (ops.ropes[0].cos, ops.ropes[0].sin), step.positions, step.slots,
        mine.keys[0], mine.values[0], 2, (mine.key_scales[0], mine.value_scales[0]),
    )  # fmt: skip
    close(found, wanted)
    for one, other in zip(mine.arrays, ops.kv.arrays, strict=True):
        assert torch.equal(one.float().nan_to_num(-1), other.float().nan_to_num(-1))


def test_e4m3_bit_for_bit():
    """Every code, and float32 numbers of every size with ties among them, as torch converts them."""
    codes = torch.arange(256, dtype=torch.int32).to(torch.uint8)
    codes[[0x7F, 0xFF]] = 0  # NaN: never stored, a row's scale tells of it
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(1024, generator=generator) * 2.0 ** torch.randint(-14, 9, (1024,), generator=generator)
    ties = codes.view(torch.float8_e4m3fn).float()
    numbers = torch.cat((random, ties, (ties[:-1] + ties[1:]) / 2)).clamp(-448, 448)
    assert torch.equal(e4m3_round_trip(codes, numbers)[0], ties)
    assert torch.equal(e4m3_round_trip(codes, numbers)[1], numbers.to(torch.float8_e4m3fn).view(torch.uint8))


def e4m3_round_trip(codes: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    wide, narrow = torch.empty(len(codes)), torch.empty(len(numbers), dtype=torch.uint8)
    e4m3_kernel[(1,)](codes, wide, len(codes), numbers, narrow, len(numbers), BLOCK=2048)
    return wide, narrow
