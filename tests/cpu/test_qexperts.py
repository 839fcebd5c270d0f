"""Experts on the CPU's fast road: each token as if it were alone, and its experts alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
import torch
from moe_layers import PREFIX, MoeLayer, tokens
from quantised_folders import make_mixture
from steps import Driver, LogitTap, ids
from tiny import tiny_config

from bireme.backends.cpu.ops import CpuOps
from bireme.backends.cpu.qlinear import QuantizedLinear
from bireme.backends.cpu.threads import pool
from bireme.backends.cpu.weights import QuantizedLoader
from bireme.backends.cuda.experts import route
from bireme.backends.cuda.kv import KVPool
from bireme.backends.cuda.ops import TorchOps
from bireme.backends.cuda.rope import RopeTable
from bireme.backends.cuda.weights import DenseLinear
from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import MoeConfig
from bireme.planner.devices import held_bytes
from bireme.planner.open import open_shape

CPU = torch.device("cpu")
MIXES = {
    "Q8_0": dict.fromkeys(("gate_proj", "up_proj", "down_proj"), "Q8_0"),
    "mixed": {"gate_proj": "Q4_0", "up_proj": "Q5_1", "down_proj": "Q8_0"},
    "dense": {},
}


@pytest.fixture(scope="module")
def ops() -> CpuOps:
    config = tiny_config()
    return CpuOps(config, KVPool(config, 1, 4, torch.float32, CPU), RopeTable.build(config.rope, 16, 4, CPU))


@pytest.fixture
def threads() -> Iterator[None]:
    """Leave the pool as it was."""
    before = pool().threads
    yield
    pool().resize(before)


def one_by_one(layer: MoeLayer, ops: CpuOps, x: torch.Tensor) -> torch.Tensor:
    """The same by a layer for each expert, a token at a time."""
    config, out = layer.moe, torch.zeros_like(x)
    router = torch.from_numpy(layer.weight(f"{PREFIX}mlp.gate.weight").data)
    shares, chosen = route((x.double() @ router.double().T), config.top_k, config.normalise)
    made: dict[int, tuple[QuantizedLinear, QuantizedLinear]] = {}
    for token in range(len(x)):
        for share, expert in zip(shares[token], chosen[token].tolist(), strict=True):
            if expert not in made:
                gate, up, down = (
                    layer.weight(f"{PREFIX}mlp.experts.{expert}.{part}_proj.weight") for part in ("gate", "up", "down")
                )
                made[expert] = QuantizedLinear([gate, up]), QuantizedLinear([down])
            into, back = made[expert]
            out[token] += share * back(ops.swiglu(into(x[token : token + 1])))[0]
    return out


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("config", [MoeConfig(4, 2, 32), MoeConfig(9, 3, 64, normalise=False)])
def test_experts_are_linear_layers(ops, mix, config):
    layer = MoeLayer(config, 64, MIXES[mix])
    x = torch.from_numpy(tokens(23, 64))
    found = layer.load(QuantizedLoader(layer))(ops, x)
    torch.testing.assert_close(found, one_by_one(layer, ops, x), rtol=1e-5, atol=1e-5)
    error = np.linalg.norm(found.numpy() - layer.wanted(x.numpy())) / np.linalg.norm(layer.wanted(x.numpy()))
    assert error < 0.02, "activations in 8 bits"


@pytest.mark.parametrize(("hidden", "inner"), [(72, 40), (40, 48), (60, 24)])
def test_widths_that_are_no_whole_groups(ops, hidden, inner):
    layer = MoeLayer(MoeConfig(4, 2, inner), hidden, {})
    x = torch.from_numpy(tokens(9, hidden))
    found = layer.load(QuantizedLoader(layer))(ops, x)
    torch.testing.assert_close(found, one_by_one(layer, ops, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mix", MIXES)
def test_a_token_alone_is_the_token_in_any_batch(ops, mix):
    layer = MoeLayer(MoeConfig(4, 2, 64), 64, MIXES[mix])
    mlp, x = layer.load(QuantizedLoader(layer)), torch.from_numpy(tokens(70, 64))
    together = mlp(ops, x)
    for row in range(len(x)):
        assert torch.equal(mlp(ops, x[row : row + 1])[0], together[row])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(mlp(ops, x[order]), together[order])
    for start, stop in ((0, 3), (1, 6), (5, 70), (2, 67)):
        assert torch.equal(mlp(ops, x[start:stop].clone()), together[start:stop])


@pytest.mark.parametrize("count", [1, 2, 5])
def test_threads_change_nothing(ops, count, threads):
    layer = MoeLayer(MoeConfig(4, 2, 64), 64, MIXES["mixed"])
    mlp, x = layer.load(QuantizedLoader(layer)), torch.from_numpy(tokens(130, 64))
    pool().resize(1)
    alone = mlp(ops, x)
    pool().resize(count)
    for _ in range(10):
        assert torch.equal(mlp(ops, x), alone)


def test_a_broken_token_breaks_itself_only(ops):
    layer = MoeLayer(MoeConfig(4, 2, 64), 64, MIXES["mixed"])
    mlp, x = layer.load(QuantizedLoader(layer)), torch.from_numpy(tokens(9, 64))
    clean = mlp(ops, x)
    for poison in (torch.nan, torch.inf):
        broken = x.clone()
        broken[4, 17] = poison
        found = mlp(ops, broken)
        assert found[4].isnan().all()
        kept = [row for row in range(9) if row != 4]
        assert torch.equal(found[kept], clean[kept])


def test_no_tokens(ops):
    layer = MoeLayer(MoeConfig(4, 2, 48), 64, {})
    assert layer.load(QuantizedLoader(layer))(ops, torch.zeros(0, 64)).shape == (0, 64)


class Spy:
    """Experts that keep what they are told."""

    def __call__(self, x, shares, chosen, activate):
        self.shares, self.chosen = shares, chosen
        return x


@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize(("experts", "top_k", "width"), [(4, 2, 64), (128, 8, 40), (5, 5, 8)])
def test_routing_is_the_references(ops, experts, top_k, width, normalise):
    """Rows of the router that are equal give equal logits: of these the first wins, as in the reference."""
    rng = np.random.default_rng(2)
    router = rng.standard_normal((experts, width)).astype(np.float32)
    router[experts // 2 :] = router[: experts - experts // 2]
    handle, x = DenseLinear(torch.from_numpy(router)), torch.from_numpy(tokens(33, width))
    ours, reference = Spy(), Spy()
    ops.moe(x, handle, ours, top_k, normalise)
    TorchOps.moe(ops, x.double(), DenseLinear(handle.weight.double()), reference, top_k, normalise)
    assert torch.equal(ours.chosen, reference.chosen)
    torch.testing.assert_close(ours.shares, reference.shares, rtol=1e-5, atol=1e-6)


@pytest.fixture(scope="module", params=["auto", "int8"])
def fast(request, tiny) -> Driver:
    settings = EngineConfig(kv_cache_memory=16 << 20, max_num_seqs=8, kv_cache_dtype=request.param)
    options = BackendOptions(threads=2)
    return Driver(load_backend("cpu", open_checkpoint(tiny("qwen3_moe").gguf), settings, options))


def test_a_model_gives_the_same_bits_in_any_batch_and_cut(fast):
    tap, prompt = LogitTap(fast), ids(70)
    parts = [prompt[:40], prompt[5:17], prompt[20:23], prompt[1:60]]
    alone = [tap.of([part], 6)[0] for part in parts]
    np.testing.assert_array_equal(tap.of(parts, 6), alone)
    for chunk in (1, 7, 16, 33):
        np.testing.assert_array_equal(tap.of([parts[3]], 6, chunk)[0], alone[3])


@pytest.mark.parametrize("name", ["mixtral", "qwen3_moe"])
def test_a_model_stays_close_to_the_exact_one(tiny, name):
    """Its weights are dense, and so rounded to 8 bits, as activations are."""
    model, prompt = tiny(name), ids(60)
    options = BackendOptions(threads=1)
    driver = Driver(load_backend("cpu", open_checkpoint(model.folder), EngineConfig(kv_cache_memory=16 << 20), options))
    tap = LogitTap(driver)
    driver.generate([driver.add(prompt)], 1)
    wanted = model.logits(prompt)[-1]
    assert np.abs(tap.logits[0][0] - wanted).max() < 0.1 * np.ptp(wanted)


def test_experts_in_the_order_of_activations_are_rounded_and_said(tmp_path, caplog):
    """GPTQ's: what they take is counted, and the log names them; all other matrices keep their codes."""
    folder = make_mixture(tmp_path)
    settings, options = EngineConfig(kv_cache_memory=1 << 20), BackendOptions(threads=1)
    with caplog.at_level("WARNING"):
        driver = Driver(load_backend("cpu", open_checkpoint(folder.path), settings, options))
    said = "weights: 9 matrices have their columns in an order of their own (GPTQ's desc_act), model.layers.1.mlp."
    assert any(text.startswith(said) and "9 bits a weight" in text for text in caplog.messages)
    parts = open_shape(str(folder.path)).weights.parts
    (experts,) = (part for part in parts if part.ordered and part.expert)
    down = driver.backend._decoder.layers[1].mlp.experts.down.layers
    assert sum(part.tiles.nbytes for part in down[1].parts) * 12 == held_bytes(experts, "cpu") == 12 * 64 * 64 * 9 / 8
    assert held_bytes(replace(experts, ordered=False), "cpu") < held_bytes(experts, "cpu")
    exact = Driver(load_backend("cpu", open_checkpoint(folder.path), settings, BackendOptions("exact", 1)))
    taps = LogitTap(driver), LogitTap(exact)
    for each in (driver, exact):
        each.generate([each.add(ids(30))], 1)
    found, wanted = (tap.logits[0][0] for tap in taps)
    assert np.abs(found - wanted).max() < 0.1 * np.ptp(wanted)
