"""``Ops.moe`` in plain torch, and its routing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from moe_layers import MoeLayer, tokens
from tiny import tiny_config

from bireme.backends.cuda.experts import combine, route
from bireme.backends.cuda.kv import KVPool
from bireme.backends.cuda.ops import TorchOps
from bireme.backends.cuda.rope import RopeTable
from bireme.backends.cuda.weights import DenseLoader
from bireme.models.config import MoeConfig

CPU = torch.device("cpu")


def operations() -> TorchOps:
    config = tiny_config()
    return TorchOps(config, KVPool(config, 1, 4, torch.float32, CPU), RopeTable.build(config.rope, 16, 4, CPU))


@pytest.mark.parametrize("count", [1, 7, 40])
@pytest.mark.parametrize("config", [MoeConfig(4, 2, 48), MoeConfig(8, 3, 32, normalise=False), MoeConfig(2, 2, 32)])
def test_each_token_goes_through_its_own_experts(config, count):
    layer = MoeLayer(config, 64, {})
    x = tokens(count, 64)
    found = layer.load(DenseLoader(layer, torch.float32, CPU))(operations(), torch.from_numpy(x))
    np.testing.assert_allclose(found.numpy(), layer.wanted(x), atol=1e-5)


@pytest.mark.parametrize("normalise", [True, False])
def test_shares_are_a_softmax_over_all_experts(normalise):
    logits = torch.from_numpy(tokens(50, 16))
    wanted, experts = logits.softmax(-1).topk(5)
    shares, chosen = route(logits, 5, normalise)
    assert torch.equal(chosen, experts)
    torch.testing.assert_close(shares, wanted / wanted.sum(-1, keepdim=True) if normalise else wanted)


def test_of_equal_logits_the_first_wins():
    logits = torch.tensor([[0.0, 1.0, 1.0, 1.0, 0.5], [2.0, 2.0, 2.0, 2.0, 2.0], [-3.0, -3.0, 0.0, -3.0, 0.0]])
    shares, chosen = route(logits, 2, normalise=True)
    assert chosen.tolist() == [[1, 2], [0, 1], [2, 4]]
    assert torch.equal(shares, torch.full((3, 2), 0.5))


def test_nan_stays_with_its_token():
    layer = MoeLayer(MoeConfig(4, 2, 32), 64, {})
    mlp, x = layer.load(DenseLoader(layer, torch.float32, CPU)), torch.from_numpy(tokens(6, 64))
    clean = mlp(operations(), x)
    x[2, 5] = torch.nan
    found = mlp(operations(), x)
    assert found[2].isnan().all()
    kept = [0, 1, 3, 4, 5]
    torch.testing.assert_close(found[kept], clean[kept])


def test_products_are_added_in_float32_and_rounded_once():
    products = torch.tensor([[[256.0], [1.0], [1.0]]], dtype=torch.bfloat16)
    assert combine(products, torch.ones(1, 3)).item() == 258.0  # in bfloat16 256 + 1 is 256


def test_no_tokens():
    layer = MoeLayer(MoeConfig(4, 2, 32), 64, {})
    assert layer.load(DenseLoader(layer, torch.float32, CPU))(operations(), torch.zeros(0, 64)).shape == (0, 64)
