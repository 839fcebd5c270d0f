"""``CpuOps`` against ``TorchOps`` and float64: the operations between the linear layers."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from paged import paged, step

from bireme.backends.cpu.ops import CpuOps
from bireme.backends.cuda.kv import KVPool
from bireme.backends.cuda.ops import TorchOps
from bireme.backends.cuda.rope import RopeTable
from bireme.backends.cuda.step import TorchStep
from bireme.models.config import ModelConfig, RopeConfig

CPU = torch.device("cpu")
ROWS = [1, 2, 17, 300]


def make(heads=9, kv_heads=3, dim=64, rotary=None, size=16, blocks=40, dtype=torch.float32):
    """Kernel and reference operations, each with a pool of its own (equal, and NaN)."""
    config = ModelConfig(
        "llama", 64, heads * dim, 64, 1, heads, kv_heads, dim, 512, 1e-5, RopeConfig(rotary_dim=rotary)
    )
    rope = RopeTable.build(config.rope, dim, 512, CPU)
    made = []
    for kind in (CpuOps, TorchOps):
        kv = KVPool(config, blocks, size, dtype, CPU)
        for pool in kv.arrays:
            pool.fill_(-128 if pool.dtype == torch.int8 else torch.nan)
        made.append(kind(config, kv, rope))
    return made


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(1)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 2e-6) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance, equal_nan=True)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 30, 576, 2049])
def test_norms(random, rows, width):
    ops, _ = make()
    x, residual = (torch.randn(rows, width, generator=random) * 3 for _ in range(2))
    weight = torch.randn(width, generator=random)
    wide = x.double()
    close(ops.rms_norm(x, weight, 1e-5), wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight)
    normed, total = ops.add_rms_norm(x, residual, weight, 1e-5)
    assert torch.equal(total, x + residual)
    assert torch.equal(normed, ops.rms_norm(total, weight, 1e-5))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 12, 1536])
def test_swiglu(random, rows, width):
    ops, _ = make()
    both = torch.randn(rows, 2 * width, generator=random) * 4
    gate, up = both.double().chunk(2, dim=1)
    close(ops.swiglu(both), gate * torch.sigmoid(gate) * up)


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("width", [8, 12, 2048])
def test_geglu(random, rows, width):
    ops, reference = make()
    both = torch.randn(rows, 2 * width, generator=random) * 4
    both[0, :3] = torch.tensor([-60.0, 3e4, -3e4])  # powers of e beyond float32
    close(ops.geglu(both), reference.geglu(both.double()))


def test_exponentials_over_their_whole_range():
    ops, _ = make()
    gate = torch.linspace(-100, 100, 80008)
    result = ops.swiglu(torch.cat((gate, torch.ones_like(gate)))[None])[0]
    wide = gate.double()
    expected = wide * torch.sigmoid(wide)
    near = gate > -80  # below, the result is under 1e-33 and need not be exact
    assert ((result.double() - expected).abs() / expected.abs().clamp_min(1e-36))[near].max() < 5e-7
    assert result[~near].abs().max() < 1e-32


@pytest.mark.parametrize("name", ["rms_norm", "add_rms_norm", "swiglu", "geglu"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_bad_row_is_sick_alone(random, name, bad):
    ops, _ = make()
    weight = torch.ones(64)
    apply = {
        "rms_norm": lambda x: ops.rms_norm(x, weight, 1e-5),
        "add_rms_norm": lambda x: ops.add_rms_norm(x, x, weight, 1e-5)[0],
        "swiglu": ops.swiglu,
        "geglu": ops.geglu,
    }[name]
    x = torch.randn(300, 64, generator=random)
    healthy = apply(x)
    x[7, 3] = bad
    result = apply(x)
    assert not result[7].isfinite().all()
    assert torch.equal(result[:7], healthy[:7]) and torch.equal(result[8:], healthy[8:])
    assert torch.equal(apply(x[8:9]), healthy[8:9])


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("dim, rotary", [(64, None), (64, 32), (80, None), (20, None), (256, None)])
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_rope_and_store(random, rows, dim, rotary, norm):
    ops, reference = make(dim=dim, rotary=rotary)
    positions = torch.randperm(512, generator=random)[:rows].numpy()
    slots = torch.randperm(640, generator=random)[:rows].numpy()
    batch = step(positions, [0, rows], [rows], np.zeros((1, 1)), slots)
    torch_step = TorchStep.build(batch, torch.zeros(1, dtype=torch.int64), 16)
    norms = [torch.rand(dim, generator=random) + 0.5 if norm else None for _ in range(2)]
    layer = SimpleNamespace(index=0, eps=1e-5, q_norm=norms[0], k_norm=norms[1], rope=0)
    qkv = torch.randn(rows, 15 * dim, generator=random)
    close(ops.rope_and_store(qkv, layer, torch_step), reference.rope_and_store(qkv, layer, torch_step), 4e-6)
    close(ops.kv.keys[0], reference.kv.keys[0], 4e-6)
    assert torch.equal(ops.kv.values[0].nan_to_num(-1), reference.kv.values[0].nan_to_num(-1))


def stored(ops, reference, qkv, random):
    """What lies where ``qkv`` was stored, by ``ops`` and by the reference, and elsewhere. Queries come out alike."""
    rows = len(qkv)
    slots = torch.randperm(640, generator=random)[:rows]
    batch = step(np.arange(rows) * 2, [0, rows], [rows], np.zeros((1, 1)), slots.numpy())
    torch_step = TorchStep.build(batch, torch.zeros(1, dtype=torch.int64), 16)
    layer = SimpleNamespace(index=0, eps=1e-5, q_norm=None, k_norm=None, rope=0)
    close(ops.rope_and_store(qkv, layer, torch_step), reference.rope_and_store(qkv, layer, torch_step), 4e-6)
    untouched = torch.ones(640, dtype=torch.bool)
    untouched[slots] = False
    own, others = ([pool.flatten(0, 1) for pool in each.kv.arrays] for each in (ops, reference))
    return [pool[slots] for pool in own], [pool[slots] for pool in others], [pool[untouched] for pool in own]


@pytest.mark.parametrize("dim, rotary", [(64, None), (80, 32), (20, None), (256, None)])
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_rope_and_store_float16(random, rows, dim, rotary):
    """Each value is rounded once, as torch rounds: ties to even, subnormals kept, infinity where it is too large."""
    ops, reference = make(dim=dim, rotary=rotary, dtype=torch.float16)
    qkv = torch.randn(rows, 15 * dim, generator=random)
    odd = [0.0, -0.0, 1 + 2**-11, 1 + 3 * 2**-11, 2**-24, 1.5 * 2**-24, 2**-25, 65519.0, -65520.0, 1e9, torch.nan]
    qkv.view(rows, 15, dim)[0, 13, : len(odd)] = torch.tensor(odd)
    found, wanted, untouched = stored(ops, reference, qkv, random)
    close(found[0], wanted[0], 2**-10)  # a rotation's last bit may move a value over a border
    assert ((found[0] != wanted[0]).double().mean() < 0.01) and torch.equal(found[1].isnan(), wanted[1].isnan())
    assert torch.equal(found[1].view(torch.int16)[~wanted[1].isnan()], wanted[1].view(torch.int16)[~wanted[1].isnan()])
    assert all(pool.isnan().all() for pool in untouched)


@pytest.mark.parametrize("dim, rotary", [(64, None), (80, 32), (20, None), (256, None)])
@pytest.mark.parametrize("rows", [1, 3, 200])
def test_rope_and_store_int8(random, rows, dim, rotary):
    """A rotation's last bit may move a code by one; values are not rotated and must be the reference's own."""
    ops, reference = make(dim=dim, rotary=rotary, dtype=torch.int8)
    qkv = torch.randn(rows, 15 * dim, generator=random)
    value = qkv.view(rows, 15, dim)[:, 12:]
    value[0, 0], value[-1, 1] = 0.0, 1e-42
    value[rows // 2, 2, 3] = torch.inf
    found, wanted, untouched = stored(ops, reference, qkv, random)
    assert (found[0].int() - wanted[0].int()).abs().max() <= 1
    assert found[0].abs().amax() == 127
    close(found[2], wanted[2])
    finite = wanted[3].isfinite()
    assert torch.equal(found[1][finite], wanted[1][finite])
    assert torch.equal(found[3].nan_to_num(-1), wanted[3].nan_to_num(-1)) and found[3].isnan().sum() == 1
    assert all(scales.isnan().all() for scales in untouched[2:])


@pytest.mark.parametrize("dtype, tolerance", [(torch.float32, 4e-6), (torch.float16, 2e-3), (torch.int8, 2e-2)])
@pytest.mark.parametrize("dim", [20, 64])
@pytest.mark.parametrize("window", [None, 30])
def test_attention(dim, window, dtype, tolerance):
    """Both windows of a model in one step; 20 is no multiple of eight and goes to the reference."""
    case = paged([(1, 200), (30, 100), (1, 1)], 6, 2, dim, 16)
    every = torch.arange(len(case.keys) * 16)
    for ops in make(6, 2, dim, blocks=len(case.keys), dtype=dtype):
        ops.kv.store(0, every, *(torch.from_numpy(pool).flatten(0, 1) for pool in (case.keys, case.values)))
        torch_step = TorchStep.build(case.batch, torch.zeros(3, dtype=torch.int64), 16)
        for seen in (None, window):
            layer = SimpleNamespace(index=0, window=seen, scale=0.1, sinks=None)
            result = ops.attention(torch.from_numpy(case.q), layer, torch_step)
            close(result, torch.from_numpy(case.expected(0.1, seen)), tolerance)
