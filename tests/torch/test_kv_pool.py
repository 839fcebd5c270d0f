"""The KV pool: codes and their scales, copies, and how many bytes it takes."""

from __future__ import annotations

import pytest
import torch
from tiny_models import VOCAB

from bireme.backends.cuda.kv import KVPool, quantise
from bireme.core.memory import kv_bytes_per_token, kv_element_bytes
from bireme.models.config import ModelConfig

CPU = torch.device("cpu")
CONFIG = ModelConfig("llama", VOCAB, 48, 64, 3, 6, 2, 24, 512, 1e-5)


@pytest.fixture
def random() -> torch.Generator:
    return torch.Generator().manual_seed(3)


def test_codes_are_within_half_a_step(random):
    x = torch.randn(50, 4, 64, generator=random) * torch.logspace(-30, 30, 50)[:, None, None]
    codes, scales = quantise(x)
    assert codes.dtype == torch.int8 and scales.shape == (50, 4)
    assert (codes.abs().amax(-1) == 127).all()
    error = (codes.double() * scales.double()[..., None] - x.double()).abs()
    assert (error <= scales.double()[..., None] * (0.5 + 1e-5)).all()


def test_e4m3_codes_are_within_half_a_step_of_their_own_size(random):
    x = torch.randn(50, 4, 64, generator=random) * torch.logspace(-30, 30, 50)[:, None, None]
    codes, scales = quantise(x, torch.float8_e4m3fn)
    assert codes.dtype == torch.float8_e4m3fn and (codes.float().abs().amax(-1) == 448).all()
    near = codes.double() * scales.double()[..., None]
    # three bits of fraction; below 2^-6 steps of 2^-9
    bound = (near.abs() / 16).clamp_min(scales.double()[..., None] * 2.0**-10) * (1 + 1e-4)
    assert ((near - x.double()).abs() <= bound).all()


def test_what_has_no_scale():
    codes, scales = quantise(torch.tensor([[0.0, 0.0], [1e-42, -1e-42], [1.0, torch.nan], [-torch.inf, 1.0]]))
    assert torch.equal(codes[:2], torch.zeros(2, 2, dtype=torch.int8))
    assert scales[:2].isfinite().all() and scales[2:].isnan().all()


def test_halves_are_quantised_in_float32(random):
    x = torch.randn(20, 64, generator=random).bfloat16()
    assert all(torch.equal(a, b) for a, b in zip(quantise(x), quantise(x.float()), strict=True))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.int8, torch.float8_e4m3fn])
def test_store_gather_and_copy(random, dtype):
    kv = KVPool(CONFIG, 6, 4, dtype, CPU)
    for pool in kv.arrays:
        pool.zero_()
    keys, values = torch.randn(2, 8, 2, 24, generator=random)
    kv.store(1, torch.tensor([16, 17, 18, 19, 4, 5, 6, 7]), keys, values)
    found = kv.gather(1, torch.tensor([[4, 1]]))
    for stored, wanted in zip(found, (keys, values), strict=True):
        assert stored.shape == (1, 8, 2, 24) and stored.dtype == torch.float32
        bound = {torch.float32: 0, torch.float16: 2e-3, torch.int8: 0.02}.get(dtype, 0.2)
        torch.testing.assert_close(stored[0], wanted, rtol=0, atol=bound)
    kv.copy_blocks(torch.tensor([[4, 1], [1, 0]]))
    moved = kv.gather(1, torch.tensor([[1, 0]]))
    assert all(torch.equal(after, before) for after, before in zip(moved, found, strict=True))
    assert all((pool == 0).all() for pool in kv.gather(0, torch.arange(6)[None]))


E4M3 = torch.float8_e4m3fn


@pytest.mark.parametrize(
    "dtype, name",
    [
        *((torch.float32, name) for name in ("auto", "float32")),
        *((torch.float16, name) for name in ("auto", "float16")),
        (torch.int8, "int8"),
        (E4M3, "fp8"),
    ],
)
def test_bytes_are_the_plans(dtype, name):
    kv = KVPool(CONFIG, 5, 16, dtype, CPU)
    per_token = kv_bytes_per_token(CONFIG, kv_element_bytes(name, CONFIG.head_dim, dtype.itemsize))
    assert sum(pool.nbytes for pool in kv.arrays) == 5 * 16 * per_token
