"""Experts on MLX: gathered products over stacks that are dense, kept or quantised anew, and mlx-lm's own folders."""

from __future__ import annotations

import json
import warnings

import numpy as np
import pytest
from moe_layers import MoeLayer, tokens
from quantised_folders import make_mixture
from steps import LogitTap, ids
from tiny import as_f32, hf_settings, random_weights, tiny_config, write_folder

from bireme.backends.mlx.experts import DenseStack, route
from bireme.backends.mlx.kv import KVPool
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.ops import MlxOps
from bireme.backends.mlx.packing import REQUANTISED
from bireme.backends.mlx.weights import MlxLoader
from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import MoeConfig
from bireme.models.decoder import Decoder
from bireme.models.weight import CheckpointError

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mlx_lm.utils import load_model, quantize_model, save_model

ALL = ("gate_proj", "up_proj", "down_proj")
#: Types of the matrices, and how far from float64 the result may be, relative to its size.
MIXES = {
    "dense": ({}, 1e-5),
    "one form": (dict.fromkeys(ALL, "Q8_0"), 1e-5),
    "gate and up apart": ({"gate_proj": "Q4_0", "up_proj": "Q5_1", "down_proj": "Q8_0"}, 1e-5),
}


@pytest.fixture(scope="module")
def ops() -> MlxOps:
    config = tiny_config()
    return MlxOps(config, KVPool(config, 1, 4, mx.float32, False), mx.float32)


def error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.linalg.norm(found - wanted) / np.linalg.norm(wanted))


@pytest.mark.parametrize("quantized", [True, False])
@pytest.mark.parametrize("mix", MIXES)
def test_each_token_goes_through_its_own_experts(ops, mix, quantized):
    """Few picks, and so many that they are put in order."""
    kinds, bound = MIXES[mix]
    layer = MoeLayer(MoeConfig(5, 2, 64), 96, kinds)
    loader = MlxLoader(layer, mx.float32, quantized)
    mlp = layer.load(loader)
    assert len(mlp.experts.gate_up) == (2 if quantized and mix == "gate and up apart" else 1)
    assert isinstance(mlp.experts.down, DenseStack) != (quantized and mix != "dense")
    assert loader.nbytes == loader.planned_bytes() and not loader.requantised
    for count in (1, 12, 40):
        x = tokens(count, 96)
        assert error(np.array(mlp(ops, mx.array(x))), layer.wanted(x)) < bound


@pytest.mark.parametrize(("name", "bound"), [("float16", 2e-3), ("bfloat16", 1.5e-2)])
def test_dense_experts_in_half_precision(name, bound):
    """On a CPU MLX's gathered product of dense matrices has float32 alone: the matrices are held, and planned, so."""
    dtype, config = getattr(mx, name), tiny_config()
    ops = MlxOps(config, KVPool(config, 1, 4, dtype, False), dtype)
    layer = MoeLayer(MoeConfig(5, 2, 64), 96, {})
    loader = MlxLoader(layer, dtype, True)
    mlp = layer.load(loader)
    assert mlp.experts.down.weight.dtype == mx.float32 and loader.nbytes == loader.planned_bytes()
    for count in (1, 40):
        x = tokens(count, 96)
        found = mlp(ops, mx.array(x).astype(dtype))
        assert found.dtype == dtype
        assert error(np.array(found.astype(mx.float32)), layer.wanted(x)) < bound


def test_a_dense_mixture_runs_in_half_precision(tiny, on_mlx):
    """A whole model of it: chunks, decodes, and the same tokens as in float32."""
    texts = []
    for options in ({}, {"mlx_dtype": "float16"}):
        driver = on_mlx(tiny("qwen3_moe").folder, options)
        track = driver.add(ids(40))
        driver.step([(track, 40)])
        for _ in range(8):
            driver.step([(track, 1)])
        texts.append(track.made)
    assert texts[0] == texts[1] and len(texts[0]) == 9


def test_types_without_a_form_are_quantised_anew(ops):
    """IQ4_NL has a codebook; 8 bits in groups of 32 hold what it stands for closely."""
    layer = MoeLayer(MoeConfig(4, 2, 64), 64, {})
    for name in [name for name in layer.names() if "down_proj" in name]:
        weight = layer.weight(name)
        data = np.random.default_rng(1).integers(0, 256, (weight.shape[0], weight.shape[1] // 32 * 18), np.uint8)
        data.reshape(weight.shape[0], -1, 18)[:, :, :2] = np.array([0.02], np.float16).view(np.uint8)
        layer.replace(name, "IQ4_NL", data)
    loader = MlxLoader(layer, mx.float32, True)
    mlp, x = layer.load(loader), tokens(9, 64)
    assert mlp.experts.down.packing == REQUANTISED and loader.requantised == {"IQ4_NL": 4}
    assert loader.nbytes == loader.planned_bytes()
    assert error(np.array(mlp(ops, mx.array(x))), layer.wanted(x)) < 0.01


@pytest.mark.parametrize("bits", [4, 8])
def test_experts_in_the_order_of_activations_keep_their_codes(tmp_path, on_mlx, bits):
    """Every matrix has an order of its own, and one expert has none; the logits are those of the values decoded."""
    folder = make_mixture(tmp_path, bits)
    logits = []
    for weights in ("dense", "quantized"):
        driver = on_mlx(folder.path, {"mlx_weights": weights, "mlx_dtype": "float32"})
        tap = LogitTap(driver)
        for length in (1, 40):
            driver.step([(driver.add(ids(length)), length)])
        logits.append(np.concatenate(tap.logits))
    np.testing.assert_allclose(logits[1], logits[0], atol=1e-4)
    assert "requantised" not in driver.backend.info.quantization
    loader = MlxLoader(open_checkpoint(folder.path), mx.float16, True)
    decoder = Decoder(loader.checkpoint.config, loader)
    stack = decoder.layers[1].mlp.experts.down
    assert stack.packing.bits == bits and sorted(np.array(stack.order[1]).tolist()) == list(range(64))
    assert 0.98 * loader.planned_bytes() < loader.nbytes <= loader.planned_bytes()


def test_orders_that_the_configuration_denies_are_refused(tmp_path, on_mlx):
    """Gate and up would be stacked."""
    folder = make_mixture(tmp_path, known=False)
    with pytest.raises(CheckpointError, match=r"experts\.1\.gate_proj.* different orders.*desc_act to true"):
        on_mlx(folder.path, {"mlx_weights": "quantized"})


def test_routing():
    logits = tokens(40, 16)
    logits[3] = 1.0
    logits[4, 1::2] = logits[4, :1] = 5.0
    for normalise in (True, False):
        shares, chosen = (np.array(each) for each in route(mx.array(logits), 4, normalise))
        np.testing.assert_array_equal(chosen, np.argsort(-logits, axis=-1, kind="stable")[:, :4])
        soft = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
        wanted = np.take_along_axis(soft, chosen.astype(np.int64), -1)
        np.testing.assert_allclose(shares, wanted / wanted.sum(-1, keepdims=True) if normalise else wanted, rtol=1e-5)


def test_nan_stays_with_its_token(ops):
    layer = MoeLayer(MoeConfig(4, 2, 32), 64, {})
    mlp, x = layer.load(MlxLoader(layer, mx.float32, False)), tokens(6, 64)
    clean = np.array(mlp(ops, mx.array(x)))
    x[2, 5] = np.nan
    found = np.array(mlp(ops, mx.array(x)))
    kept = [0, 1, 3, 4, 5]
    assert np.isnan(found[2]).all()
    np.testing.assert_allclose(found[kept], clean[kept], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("mode", "bits", "group"), [("affine", 4, 64), ("affine", 6, 32), ("mxfp4", 4, 32)])
def test_what_mlx_lm_quantises_we_run_alike(tmp_path, on_mlx, mode, bits, group):
    """Stacked experts, and a router in 8 bits, as its own recipe makes them."""
    moe = MoeConfig(4, 2, 128, dense_layers=frozenset((0,)))
    config = tiny_config("qwen3_moe", hidden_size=128, intermediate_size=256, num_heads=8, moe=moe)
    plain = write_folder(tmp_path / "plain", hf_settings(config, decoder_sparse_step=1), as_f32(random_weights(config)))
    model, settings = load_model(plain)
    model, settings = quantize_model(model, settings, group, bits, mode=mode, quant_predicate=model.quant_predicate)
    save_model(tmp_path / "made", model)
    (tmp_path / "made" / "config.json").write_text(json.dumps(settings))
    prompt = ids(60)
    wanted = np.array(model(mx.array([prompt])))[0]
    for options in ({"mlx_weights": "quantized"}, {}):
        driver = on_mlx(tmp_path / "made", options)
        tap = LogitTap(driver)
        for length in (1, 17, 60):
            driver.step([(driver.add(prompt[:length]), length)])
            np.testing.assert_allclose(tap.logits[-1][0], wanted[length - 1], atol=1e-4)
    stack = on_mlx(tmp_path / "made", {"mlx_weights": "quantized"}).backend._decoder.layers[1].mlp.experts.down
    assert (stack.packing.bits, stack.packing.mode) == (bits, mode)
