"""The experts' kernels with one check taken out: comparisons with plain torch must notice."""

from __future__ import annotations

import importlib

import pytest
import torch
from triton_mutants import mutant
from triton_setup import CPU, block_weight

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from triton.runtime.errors import InterpreterError

from bireme.backends.cuda import experts as reference
from bireme.backends.cuda.kernels import experts as kernels
from bireme.backends.cuda.kernels.experts import Matrices
from bireme.backends.cuda.planes import planes


def routing_is_right() -> None:
    logits = torch.tensor([[1.0, 3.0, 3.0, -2.0, 3.0], [-5.0, -4.0, -3.0, -3.0, -8.0], [-0.0, 0.0, -1.0, 2.0, 0.0]])
    for normalise in (True, False):
        shares, chosen = kernels.route(logits, 3, normalise)
        wanted, experts = reference.route(logits, 3, normalise)
        assert torch.equal(chosen, experts)
        torch.testing.assert_close(shares, wanted)


def blocks_are_right() -> None:
    """More picks than a chunk of them, experts without any, and blocks that nobody has."""
    chosen = torch.tensor([[1, 3], [1, 0]] * 300)
    torch.use_deterministic_algorithms(True)  # new memory is the largest integer then, and not what lay there before
    try:
        picks = kernels.arrange(chosen, 5)
    finally:
        torch.use_deterministic_algorithms(False)
    flat, found = chosen.flatten(), []
    for owner, items in zip(picks.experts.tolist(), picks.items.view(-1, picks.size).tolist(), strict=True):
        assert -1 <= owner < 5
        there = [item for item in items if item != -1] if owner >= 0 else []
        assert all(0 <= item < len(flat) and flat[item] == owner for item in there)
        found += there
    assert sorted(found) == list(range(len(flat)))


def products_are_right() -> None:
    """Beside the products nothing is written."""
    weight, values = block_weight("Q4_1", 3 * 70, 96)
    matrices, room = Matrices(planes(weight, CPU), 3), torch.full((3 * 70 + 2, 96), torch.nan)
    flat = room[: 3 * 70].copy_(torch.from_numpy(values))
    dense = flat.view(3, 70, 96)
    chosen = torch.tensor([[2, 0], [1, 2], [2, 1]])
    every = torch.full((10, 75), 7.0)
    picks, x, out = kernels.arrange(chosen, 3), torch.randn(9, 96)[:3], every[1:9]
    for stack in (matrices, Matrices(flat, 3)):
        kernels.multiply(x, stack, picks, out[:6, :70])
        wanted = torch.stack([x[item // 2] @ dense[expert].T for item, expert in enumerate(chosen.flatten())])
        torch.testing.assert_close(out[:6, :70], wanted, rtol=1e-4, atol=1e-3)
        assert (every[:, 70:] == 7).all() and (every[0] == 7).all() and (out[6:] == 7).all()


def sums_are_right() -> None:
    products, shares = torch.randn(6, 20), torch.rand(2, 3)
    torch.testing.assert_close(kernels.combine(products, shares), reference.combine(products.view(2, 3, 20), shares))


MUTANTS = [
    ("route_kernel", "bits ^ ((bits >> 31) & 0x7FFFFFFF)", "bits", routing_is_right),
    ("route_kernel", ".to(tl.float32) + 0.0", ".to(tl.float32)", routing_is_right),
    ("route_kernel", "tl.where(inside, bits ^", "tl.where(expert >= 0, 0x7F000000 - bits ^", routing_is_right),
    ("route_kernel", "tl.where(expert == best, -2147483648, order)", "order", routing_is_right),
    ("route_kernel", "tl.where(inside, tl.exp(", "tl.where(expert >= 0, tl.exp(-4 *", routing_is_right),
    ("count_kernel", "total += (pick", "total = (pick", blocks_are_right),
    ("arrange_kernel", "mask=slot < end * SIZE", "mask=slot < 0", blocks_are_right),
    ("arrange_kernel", "seen += tl.sum(own, 0)", "seen += 0", blocks_are_right),
    ("arrange_kernel", "tl.where(every < expert, each, 0)", "tl.where(every < expert - 1, each, 0)", blocks_are_right),
    ("arrange_kernel", "for block in range(end, blocks):", "for block in range(end, end):", blocks_are_right),
    ("expert_kernel", "row = expert * outputs + output", "row = output", products_are_right),
    ("expert_kernel", "mask=valid[:, None] & present[None, :])", "mask=present[None, :] & (output >= 0)[:, None])",
     products_are_right),
    ("expert_kernel", "mask=valid[:, None] & present[None, :])", "mask=valid[:, None] & (item > -9)[None, :])",
     products_are_right),
    ("expert_kernel", "place + 32, mask=valid[:, None] & (column + 32 < columns)", "place + 32, mask=valid[:, None]",
     products_are_right),
    ("expert_kernel", "item // SHARING", "item", products_are_right),
    ("combine_kernel", "total += part", "total = part", sums_are_right),
    ("combine_kernel", "tl.load(shares + row * TOP_K + rank)", "tl.load(shares + rank)", sums_are_right),
]  # fmt: skip


@pytest.mark.parametrize("check", sorted({m[3] for m in MUTANTS}, key=lambda f: f.__name__))
def test_the_kernels_as_they_are(check):
    check()


@pytest.mark.parametrize("kernel, old, new, check", MUTANTS)
def test_a_missing_check_is_noticed(kernel, old, new, check, monkeypatch, tmp_path):
    made = mutant("experts", old, new, tmp_path)
    original = importlib.import_module("bireme.backends.cuda.kernels.experts")
    monkeypatch.setattr(original, kernel, getattr(made, kernel))
    with pytest.raises((AssertionError, InterpreterError, IndexError, ValueError)):
        check()
