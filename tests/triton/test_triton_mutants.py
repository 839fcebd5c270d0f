"""Kernels with one check taken out: the comparisons of this folder must notice."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import numpy as np
import pytest
import torch
from triton_mutants import mutant
from triton_setup import CPU, block_weight, close, reference_ops

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from triton.runtime.errors import InterpreterError
from triton_attention import case, decoded, extended
from triton_sampling import CHUNK, VOCAB, Pair

from bireme.backends.cuda.kernels import activation, norm, quantized, sampler
from bireme.backends.cuda.planes import planes
from bireme.core.request import SamplingParams


def decode_is_right() -> None:
    ops, step, q = case([(75, 1), (9, 1)], 2, 1, 64, torch.float32)
    close(decoded(ops, q, step, 2), ops.attention(q, ops.layer(), step), 8)
    close(decoded(ops, q, step, 2, window=13), ops.attention(q, ops.layer(13), step), 8)


def extend_is_right() -> None:
    ops, step, q = case([(70, 5), (0, 9)], 2, 1, 64, torch.float32)
    close(extended(ops, q, step), ops.attention(q, ops.layer(), step), 8)
    close(extended(ops, q, step, window=13), ops.attention(q, ops.layer(13), step), 8)


def sinks_are_right() -> None:
    ops, step, q = case([(75, 1), (33, 5), (0, 1)], 6, 2, 64, torch.float32)
    sinks = torch.tensor([50.0, -200.0, 0.0, 1.0, 3.0, -1.0])
    wanted, decodes = ops.attention(q, ops.layer(sinks=sinks), step), [0, 6]
    for splits in (1, 4):
        close(decoded(ops, q, step, splits, sinks=sinks)[decodes], wanted[decodes], 8)
    close(extended(ops, q, step, sinks=sinks)[1:6], wanted[1:6], 8)


def e4m3_is_right() -> None:
    ops, step, q = case([(75, 1), (33, 5)], 2, 1, 64, torch.float8_e4m3fn)
    wanted = ops.attention(q, ops.layer(13), step)
    close(decoded(ops, q, step, 2, window=13)[:1], wanted[:1], 8)
    close(extended(ops, q, step, window=13)[1:], wanted[1:], 8)


def gates_are_right() -> None:
    """Nothing beyond the last column is written: it would be the next row's first."""
    x = torch.randn(3, 2 * 7)
    for approximate in ("none", "tanh"):
        close(activation.geglu(x, approximate), activation.geglu_reference(x, approximate))


def norm_is_right() -> None:
    x, weight = torch.randn(2, 7), torch.ones(7)
    close(norm.rms_norm(x, weight, 1e-5), reference_ops().rms_norm(x, weight, 1e-5))


def product_is_right() -> None:
    """Beside the product nothing is written."""
    weight, values = block_weight("Q4_1", 67, 64)
    made = planes(weight, CPU)
    x, out = torch.randn(3, 64), torch.full((6, 70), 7.0)
    quantized.some(x, made, None, out[:3, :67], 1)
    close(out[:3, :67], x @ torch.from_numpy(values).T, 16)
    assert (out[:, 67:] == 7).all() and (out[3:] == 7).all()


def sampling_is_right() -> None:
    """One row with everything, and one that pads. Row -1 is one before the rows that are given, so that it exists."""
    params = SamplingParams(top_k=30, top_p=0.9, presence_penalty=-2.0, min_tokens=9, logit_bias={299: 5.0})
    pair, last = Pair([params, params]), torch.full((3,), -7)
    held = pair.kernels.device_rows
    assert held.seen is not None
    rest = sampler.Rows(held.words[1:], held.floats[1:], held.pair_ids[1:], held.pair_values[1:], held.seen[1:])
    logits = torch.randn(2, VOCAB, generator=torch.Generator().manual_seed(2)) * 2
    logits[0, 7], logits[0, 40] = 30.0, 5.0  # an end token, and one that is masked
    masks = torch.full((1, 10), -1, dtype=torch.int32), torch.zeros(2, dtype=torch.int32)
    masks[0][0, 1] = 0
    allowed = logits[:1].clone()
    allowed[0, 32:64] = float("-inf")
    for position in range(3):
        free = position == 1
        given = (logits[:1] if free else allowed).clone()
        wanted = pair.reference.sample(given, pair.rows[1:], np.array([position])).tokens.tolist()
        rows, positions = torch.tensor([0, -1]), torch.tensor([position, 0])
        tokens, _ = sampler.sample(logits, rows, positions, rest, last[1:], None if free else masks)
        assert tokens[:1].tolist() == wanted and last.tolist() == [-7, *wanted, -7]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(sampler, "CHUNK", CHUNK)


MUTANTS: list[tuple[str, str, str, str, Callable[[], None]]] = [
    ("decode", "decode_kernel", 'tl.where(seen[None, :], scores, float("-inf"))', "scores", decode_is_right),
    ("decode", "decode_kernel", "begin = tl.maximum(end - WINDOW, 0)", "begin = 0", decode_is_right),
    ("decode", "decode_kernel", "tl.minimum(from_tile + per_split, last_tile)", "from_tile + 1", decode_is_right),
    ("activation", "gated_kernel", "CUBE * gate", "0.0 * gate", gates_are_right),
    ("activation", "gated_kernel", "row * 2 * width + width + column", "row * 2 * width + column", gates_are_right),
    ("decode", "decode_kernel", "total = total * fade + tl.exp(sink - higher)", "total *= fade", sinks_are_right),
    ("decode", "join_kernel", "total += tl.exp(sink - highest)", "total += 0", sinks_are_right),
    ("extend", "extend_kernel", "sinks + kv_head * GROUP + head", "sinks + head", sinks_are_right),
    ("decode", "decode_kernel", "weights *= tl.load(value_scales", "_ = tl.load(value_scales", e4m3_is_right),
    ("extend", "extend_kernel", "scores *= key_scale[None, :]", "scores *= 1", e4m3_is_right),
    ("decode", "join_kernel", "part * weight[:, None]", "part", decode_is_right),
    (
        "extend",
        "extend_kernel",
        "seen = at[None, :] <= position[:, None]",
        "seen = (at < end)[None, :]",
        extend_is_right,
    ),
    ("extend", "extend_kernel", "seen & (at[None, :] > position[:, None] - WINDOW)", "seen", extend_is_right),
    ("extend", "extend_kernel", "highest // TILE + 1", "highest // TILE", extend_is_right),
    (
        "norm",
        "rms_norm_kernel",
        "mask=inside, other=0.0)\n    gain",
        "mask=inside, other=1.0)\n    gain",
        norm_is_right,
    ),
    ("sampler", "adjust_kernel", 'other=float("-inf")).to', "other=99.0).to", sampling_is_right),
    ("sampler", "adjust_kernel", "& (short == 0), 0.0, bias)", ", 0.0, bias)", sampling_is_right),
    ("sampler", "adjust_kernel", '!= 0, value, float("-inf"))', "!= 2, value, value)", sampling_is_right),
    ("sampler", "adjust_kernel", "(ids < (chunk + 1) * CHUNK)", "(ids < chunk * CHUNK)", sampling_is_right),
    ("sampler", "weigh_kernel", 'other=float("-inf"))\n    scaled', "other=4.0)\n    scaled", sampling_is_right),
    ("pick", "pick_kernel", "mass = heavier_mass +", "mass +=", sampling_is_right),
    ("pick", "pick_kernel", "above_mass + more_mass if BY_MASS else above + more", "more", sampling_is_right),
    (
        "pick",
        "pick_kernel",
        "tl.where(weight >= floor, weight, 0), 0)\n    return",
        "weight, 0)\n    return",
        sampling_is_right,
    ),
    ("pick", "pick_kernel", "    if row < 0:\n        return\n    chunk =", "    chunk =", sampling_is_right),
    ("quantized", "matrix_kernel", "keep = valid[:, None] & ", "keep = ", product_is_right),
    ("quantized", "matrix_kernel", "total = tl.dot(b.to", "_ = tl.dot(b.to", product_is_right),
]


@pytest.mark.parametrize("check", sorted({m[4] for m in MUTANTS}, key=lambda f: f.__name__))
def test_the_kernels_as_they_are(check):
    check()


@pytest.mark.parametrize("module, kernel, old, new, check", MUTANTS)
def test_a_missing_check_is_noticed(module, kernel, old, new, check, monkeypatch, tmp_path):
    made = mutant(module, old, new, tmp_path)
    original = importlib.import_module(f"bireme.backends.cuda.kernels.{module}")
    monkeypatch.setattr(original, kernel, getattr(made, kernel))
    with pytest.raises((AssertionError, InterpreterError)):  # wrong, or NaN on the way
        check()
