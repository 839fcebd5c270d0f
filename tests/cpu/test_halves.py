"""Float16 in kernels, by the processor's instructions and bit by bit: as torch converts."""

from __future__ import annotations

import ctypes

import pytest
import torch

from bireme.backends.cpu.halves import NATIVE, load_halves, store_halves
from bireme.backends.cpu.native import compile_bodies
from bireme.backends.cpu.simd import F16, WIDTH

WAYS = [False, pytest.param(True, marks=pytest.mark.skipif(not NATIVE, reason="no such instructions here"))]


def convert(x: torch.Tensor, native: bool) -> torch.Tensor:
    """``x`` from float16 to float32, or back."""
    out = torch.empty(x.shape, dtype=torch.float32 if x.dtype == torch.float16 else torch.float16)

    def widen(e, source, target, n):
        with e.loop(n, WIDTH) as i:
            e.store(load_halves(e, e.offset(e.pointer(source), i, kind=F16), native), e.offset(e.pointer(target), i))

    def narrow(e, source, target, n):
        with e.loop(n, WIDTH) as i:
            store_halves(e, e.load(e.offset(e.pointer(source), i)), e.offset(e.pointer(target), i, kind=F16), native)

    body = widen if x.dtype == torch.float16 else narrow
    address = compile_bodies({"convert": (3, body)})["convert"]
    ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)(x.data_ptr(), out.data_ptr(), len(x))
    return out


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    numbers = ~wanted.isnan()
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found[numbers], wanted[numbers]) and torch.equal(found.signbit(), wanted.signbit())


@pytest.mark.parametrize("native", WAYS)
def test_every_half(native):
    halves = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16)
    same(convert(halves, native), halves.float())


@pytest.mark.parametrize("native", WAYS)
def test_floats_round_to_the_nearest_ties_to_even(native):
    """Every half, what lies half-way to the next, and what lies a last bit to either side of these."""
    bits = torch.arange(-(2**15), 2**15).to(torch.int16).view(torch.float16).float().view(torch.int32)
    near = torch.cat([bits + way + step for way in (0, 1 << 12) for step in (-1, 0, 1)])
    sizes = torch.tensor([0.0, 2**-26, 2**-25, 1.5 * 2**-25, 2**-24, 65519.99, 65520.0, 1e30, torch.inf])
    steps = torch.arange(4096) * 2.0**-26
    floats = torch.cat([near.view(torch.float32), sizes, -sizes, steps, -steps])
    floats = floats[: len(floats) // WIDTH * WIDTH]
    same(convert(floats, native), floats.half())
