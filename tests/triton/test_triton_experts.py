"""Experts on a GPU, in Triton's interpreter: routing, blocks of picks, and products, each against plain torch."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from moe_layers import MoeLayer, tokens
from steps import Driver
from tiny import quantize_affine
from triton_setup import CPU, block_weight, check_product, reference_ops, shape

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from fake_gpu import FakeGpu

from bireme.backends.cuda import experts as reference
from bireme.backends.cuda.kernels import experts as kernels
from bireme.backends.cuda.kernels.experts import Matrices
from bireme.backends.cuda.planes import planes
from bireme.backends.cuda.quantized import PlanarLoader
from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.triton_ops import TritonOps
from bireme.backends.cuda.triton_sampler import TritonSampler
from bireme.backends.cuda.weights import DenseLoader
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import MoeConfig
from bireme.models.dequant import stack_rows
from bireme.models.weight import Weight


def pick(rows: int, experts: int, top_k: int, seed: int = 0) -> torch.Tensor:
    """Experts for each of some tokens, none twice."""
    scores = torch.rand(rows, experts, generator=torch.Generator().manual_seed(seed))
    return scores.argsort(-1)[:, :top_k].contiguous()


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("experts", "top_k"), [(4, 2), (5, 5), (60, 3), (128, 8)])
def test_routing(experts, top_k, normalise):
    logits = torch.from_numpy(tokens(9, experts)) * 3
    logits[1] = 1.0  # ties everywhere
    logits[2, 1::2] = logits[2, :1]
    logits[3, 0], logits[3, 2:] = -0.0, 0.0
    logits[4, 1:] = -torch.inf
    shares, chosen = kernels.route(logits, top_k, normalise)
    wanted, experts_wanted = reference.route(logits, top_k, normalise)
    assert torch.equal(chosen, experts_wanted)
    torch.testing.assert_close(shares, wanted, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("places", [[0], [3], [0, 1, 2, 3, 4]])
def test_nan_is_its_tokens_own(places):
    logits = torch.from_numpy(tokens(3, 5))
    logits[1, places] = torch.nan
    with np.errstate(invalid="ignore"):
        shares, chosen = kernels.route(logits, 2, True)
    assert shares[1].isnan().all() and not shares[[0, 2]].isnan().any()
    assert ((chosen >= 0) & (chosen < 5)).all()


@pytest.mark.parametrize(("rows", "experts", "top_k"), [(1, 4, 2), (7, 4, 2), (40, 9, 3), (300, 4, 4), (3, 128, 8)])
def test_every_pick_lies_in_a_block_of_its_expert(rows, experts, top_k):
    chosen = pick(rows, experts, top_k)
    picks, found = kernels.arrange(chosen, experts), []
    for owner, items in zip(picks.experts.tolist(), picks.items.view(-1, picks.size).tolist(), strict=True):
        if owner >= 0:
            there = [item for item in items if item >= 0]
            assert there and items == there + [-1] * (picks.size - len(there)), "picks first"
            assert all(chosen.flatten()[item] == owner for item in there)
            found += there
    assert sorted(found) == list(range(rows * top_k))
    by_expert = sorted(range(rows * top_k), key=lambda item: (int(chosen.flatten()[item]), item))
    assert found == by_expert, "experts in order, and each one's tokens"


def test_blocks_depend_on_nothing_but_sizes():
    """Also where all tokens go to the same experts, or each to others."""
    same, spread = torch.zeros(32, 2, dtype=torch.int64), pick(32, 8, 2)
    same[:, 1] = 7
    one, other = kernels.arrange(same, 8), kernels.arrange(spread, 8)
    assert one.size == other.size and len(one.experts) == len(other.experts)
    assert (one.experts >= 0).sum() == 4


def stack(kind: str, count: int, rows: int, columns: int) -> tuple[Matrices, np.ndarray]:
    """Experts' matrices with random bits, and their values."""
    if kind == "dense":
        values = torch.from_numpy(tokens(count * rows, columns))
        return Matrices(values, count), values.view(count, rows, columns).numpy()
    weight, values = block_weight(kind, count * rows, columns)
    return Matrices(planes(weight, CPU), count), values.reshape(count, rows, columns)


@pytest.mark.parametrize("tokens_", [1, 9, 150])
@pytest.mark.parametrize("kind", ["Q4_K", "Q6_K", "Q8_0", "Q4_1", "dense"])
def test_products(kind, tokens_):
    """A matrix of more rows than a program takes, a row of x for two picks or for each its own."""
    columns = 256 if kind.endswith("K") else 96
    matrices, values = stack(kind, 3, 70, columns)
    chosen = pick(tokens_, 3, 2)
    picks = kernels.arrange(chosen, 3)
    for rows in (tokens_, 2 * tokens_):
        x = torch.from_numpy(tokens(rows, columns)) / 16
        out = torch.full((2 * tokens_, 75), -1.0)
        kernels.multiply(x, matrices, picks, out[:, 2:72])
        assert (out[:, :2] == -1).all() and (out[:, 72:] == -1).all()
        for item, expert in enumerate(chosen.flatten().tolist()):
            given = x[item * rows // (2 * tokens_)][None]
            check_product(out[item : item + 1, 2:72], given, values[expert], None, roundings=16)


@pytest.mark.parametrize("kind", ["MLX", "F8_E4M3"])
def test_products_of_folders_own_forms(kind):
    """Each expert comes with scales of its own, and all of them become one weight."""
    rng, weights = np.random.default_rng(4), []
    for expert in range(3):
        values = rng.standard_normal((40, 128)).astype(np.float32)
        if kind == "MLX":
            words, scales, biases = quantize_affine(values, 4, 64)
            weights.append(Weight(f"e{expert}", values.shape, kind, words, scales, biases, 4, 64))
        else:
            codes = torch.from_numpy(values).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
            scales = np.full((40, 1), 0.5 + expert, np.float32)
            weights.append(Weight(f"e{expert}", values.shape, kind, codes, scales, group_size=128))
    together = stack_rows(weights)
    np.testing.assert_array_equal(together.dequantize(), np.concatenate([each.dequantize() for each in weights]))
    chosen, x = pick(9, 3, 2), torch.from_numpy(tokens(9, 128)) / 16
    out = torch.empty(18, 40)
    kernels.multiply(x, Matrices(planes(together, CPU), 3), kernels.arrange(chosen, 3), out)
    for item, expert in enumerate(chosen.flatten().tolist()):
        check_product(out[item : item + 1], x[item // 2][None], weights[expert].dequantize(), None, roundings=16)


def test_adding_up():
    products, shares = torch.from_numpy(tokens(15, 1030)).half(), torch.rand(5, 3)
    wanted = reference.combine(products.view(5, 3, -1), shares)
    torch.testing.assert_close(kernels.combine(products, shares), wanted)


MIXES = {
    "one form": dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "Q8_0"),
    "gate and up apart": {"gate_proj": "Q4_0", "up_proj": "Q5_1", "down_proj": "Q8_0"},
    "partly dense": {"gate_proj": "Q4_0", "up_proj": "Q4_0"},
}


@pytest.mark.parametrize("mix", MIXES)
def test_a_layer_is_the_references(mix):
    layer = MoeLayer(MoeConfig(5, 2, 64), 96, MIXES[mix])
    loader = PlanarLoader(layer, torch.float32, CPU)
    mlp = layer.load(loader)
    assert len(mlp.experts.gate_up) == (2 if mix == "gate and up apart" else 1)
    config = shape()
    ops = TritonOps(config, reference_ops(config).kv, *reference_ops(config).ropes)
    for count in (1, 12):
        x = tokens(count, 96)
        np.testing.assert_allclose(mlp(ops, torch.from_numpy(x)).numpy(), layer.wanted(x), atol=2e-5)
    assert mlp(ops, torch.zeros(0, 96)).shape == (0, 96)


def test_experts_that_differ_are_decoded():
    """One of them of another type: there are no planes of one form."""
    layer = MoeLayer(MoeConfig(4, 2, 64), 64, dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "Q8_0"))
    name = "model.layers.0.mlp.experts.2.up_proj.weight"
    layer.replace(name, "F32", layer.weight(name).dequantize())
    mlp = layer.load(PlanarLoader(layer, torch.float32, CPU))
    assert isinstance(mlp.experts.gate_up[0].weight, torch.Tensor)
    assert not isinstance(mlp.experts.down.weight, torch.Tensor)


def test_a_model_says_the_same_in_captured_steps(tiny):
    """A chunk, and decodes that are replayed: what tokens go to changes from step to step."""
    torch.set_num_threads(1)
    made = []
    settings = EngineConfig(max_num_seqs=1, max_num_batched_tokens=4, max_model_len=64, kv_cache_memory=1 << 19)
    for parts, device in (({}, None), ({"ops": TritonOps, "sampler": TritonSampler, "captures": True}, FakeGpu())):
        checkpoint = open_checkpoint(tiny("qwen3_moe").folder)
        loader = PlanarLoader if parts else DenseLoader
        road = Road(loader(checkpoint, torch.float32, CPU), **parts)
        driver = Driver(TorchBackend(checkpoint, settings, road, device, capture_seconds=0.0))
        made.append(driver.generate([driver.add(range(40, 46))], 5, chunk=4))
        if device is not None:
            assert driver.backend._graphs.replays > 0
    assert made[0] == made[1]
