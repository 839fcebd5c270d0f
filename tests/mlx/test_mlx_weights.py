"""Weights stay quantised where MLX can hold them: exactly by repacking, else quantised anew and said so."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import gguf
import numpy as np
import pytest
from steps import LogitTap
from tiny import hf_settings, quantize_affine, random_weights, tiny_config, write_folder, write_gguf

from bireme.backends.mlx.library import mx
from bireme.backends.mlx.linear import DenseLinear, QuantizedEmbedding, QuantizedLinear
from bireme.backends.mlx.repack import REPACKED, repack
from bireme.backends.mlx.weights import MlxLoader
from bireme.models.checkpoint import open_checkpoint
from bireme.models.mlx_affine import BITS, pack_codes, unpack_codes
from bireme.models.mlx_float import KIND_OF, MODES
from bireme.models.weight import Weight

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mlx_lm.utils import load_model, quantize_model, save_model

KEPT = {"mlx_weights": "quantized"}
#: Relative RMS error of the weights, measured, and a little: float32 scales, then float16.
ERRORS = {"Q4_0": (0, 0), "Q4_1": (0, 0), "Q5_0": (0, 0), "Q5_1": (0, 0), "Q8_0": (0, 0)}
ERRORS |= {"Q4_K": (1e-7, 5e-4), "Q5_K": (1e-7, 5e-4)}
IDS = [int(i) for i in np.random.default_rng(3).integers(0, 320, 60)]


def ggml_weight(kind: str, rows: int = 48, columns: int = 512) -> Weight:
    """Random blocks of any type, made of bytes with sane scales, and quantised values where gguf-py can."""
    rng = np.random.default_rng(11)
    values = rng.standard_normal((rows, columns)).astype(np.float32)
    quant = gguf.GGMLQuantizationType[kind]
    try:
        data = gguf.quants.quantize(values, quant)
    except NotImplementedError:
        block, size = gguf.GGML_QUANT_SIZES[quant]
        blocks = rng.integers(0, 256, (rows * columns // block, size), dtype=np.uint8)
        for at in {"Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "Q2_K": (80, 82), "Q3_K": (108,)}[kind]:
            blocks[:, at : at + 2] = rng.uniform(0.001, 0.01, (len(blocks), 1)).astype("<f2").view(np.uint8)
        data = blocks.reshape(rows, -1)
    return Weight(f"{kind}.weight", (rows, columns), kind, data)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.mark.parametrize("bits", BITS)
def test_packing_is_the_inverse_of_unpacking(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 96), dtype=np.uint8)
    np.testing.assert_array_equal(unpack_codes(pack_codes(codes, bits), bits), codes)


@pytest.mark.parametrize("kind", REPACKED)
def test_repacking_keeps_every_value(kind):
    """As MLX itself decodes it, against gguf-py's values; the errors are those that docs/mlx.md states."""
    weight = ggml_weight(kind)
    wanted = weight.dequantize()
    for dtype, limit in zip((np.float32, np.float16), ERRORS[kind], strict=True):
        packed = repack(weight, 0, 48, dtype)
        assert packed.scales.dtype == dtype
        scales, biases = (mx.array(part.astype(np.float32)) for part in (packed.scales, packed.biases))
        found = np.array(mx.dequantize(mx.array(packed.words), scales, biases, group_size=32, bits=REPACKED[kind]))
        assert relative_error(found, wanted) <= limit + 1e-7


@pytest.mark.parametrize("mode", MODES)
def test_float_modes_decode_as_mlx_decodes_them(mode):
    form = MODES[mode]
    values = mx.array(np.random.default_rng(1).standard_normal((8, 128)).astype(np.float32) * 3)
    words, scales = mx.quantize(values, group_size=form.group_size, bits=form.bits, mode=mode)
    wanted = mx.dequantize(words, scales, group_size=form.group_size, bits=form.bits, mode=mode, dtype=mx.float32)
    weight = Weight("w.weight", (8, 128), KIND_OF[mode], np.array(words), np.array(scales), None, 0, 0)
    np.testing.assert_array_equal(weight.dequantize(), np.array(wanted))


def mixed(name: str) -> str:
    """What a Q4_K_M-like file has: other types for v and down, another for the embedding."""
    if "embed" in name:
        return "Q8_0"
    return "Q5_0" if ".v_proj" in name else "Q5_1" if ".down_proj" in name else "Q4_0"


@pytest.mark.parametrize("tied", [False, True])
def test_a_gguf_stays_quantised_and_gives_its_own_logits(tmp_path, on_mlx, tied):
    config = tiny_config("llama", tie_embeddings=tied)
    path = write_gguf(tmp_path / "m.gguf", config, random_weights(config), type_of=mixed)
    dense, kept = on_mlx(path), on_mlx(path, KEPT)
    taps = LogitTap(dense), LogitTap(kept)
    for driver in (dense, kept):
        driver.generate([driver.add(IDS)], 6)
    np.testing.assert_allclose(np.concatenate(taps[1].logits), np.concatenate(taps[0].logits), atol=1e-4)
    layer = kept.backend._decoder.layers[0]
    assert isinstance(layer.gate_up, QuantizedLinear) and layer.gate_up.words.shape == (192, 8)
    assert len(layer.qkv.parts) == 2, "q and k together, v apart"
    assert isinstance(kept.backend._decoder.embed, QuantizedEmbedding)
    assert kept.backend.info.weight_bytes < dense.backend.info.weight_bytes / 3
    if tied:
        assert kept.backend._decoder.head is kept.backend._decoder.embed.table
    assert "requantised" not in kept.backend.info.quantization


@pytest.mark.parametrize("quantized", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_the_plan_says_what_loading_takes(tmp_path, dtype, quantized):
    config = tiny_config("qwen2", hidden_size=256, intermediate_size=256)
    kinds = {"q_proj": "Q4_0", "v_proj": "Q8_0", "down_proj": "Q5_1", "up_proj": "BF16"}
    path = write_gguf(
        tmp_path / "m.gguf",
        config,
        random_weights(config),
        type_of=lambda name: next((kind for part, kind in kinds.items() if part in name), "F16"),
    )
    from bireme.models.decoder import Decoder

    loader = MlxLoader(open_checkpoint(path), getattr(mx, dtype), quantized)
    planned = loader.planned_bytes()
    Decoder(config, loader)
    assert loader.nbytes == planned


@pytest.mark.parametrize("kind", ["Q6_K", "Q3_K", "Q2_K", "IQ4_NL"])
def test_other_types_are_requantised_and_named(kind):
    if kind == "IQ4_NL":
        rng = np.random.default_rng(2)
        blocks = rng.integers(0, 256, (48 * 16, 18), dtype=np.uint8)
        blocks[:, :2] = rng.uniform(0.01, 0.02, (len(blocks), 1)).astype("<f2").view(np.uint8)
        stored = Weight("w.weight", (48, 512), kind, blocks.reshape(48, -1))
    else:
        stored = ggml_weight(kind)

    class One:
        """A checkpoint of one matrix."""

        weight_bytes = 1

        def names(self):
            return iter(["w.weight"])

        weight = staticmethod(lambda name: stored)

    loader = MlxLoader(One(), mx.float32, True)
    handle = loader.linear("w")
    assert isinstance(handle, QuantizedLinear) and handle.packing.bits == 8 and loader.requantised == {kind: 1}
    x = np.random.default_rng(5).standard_normal((3, 512)).astype(np.float32)
    found, wanted = np.array(handle(mx.array(x))), x @ stored.dequantize().T
    assert 0 < relative_error(found, wanted) < 0.01


@pytest.mark.parametrize(("bits", "group"), [(2, 32), (3, 64), (4, 32), (5, 32), (6, 64), (8, 32), (4, 128), (4, 16)])
def test_affine_folders_keep_their_codes(tmp_path, on_mlx, bits, group):
    """Every width and group, with one layer's projection in another; groups of 16, which MLX lacks, at 8 bits."""
    config = tiny_config("qwen3", hidden_size=128, intermediate_size=256, num_heads=8)
    tensors = {}
    for name, values in random_weights(config).items():
        stem = name.removesuffix(".weight")
        if values.ndim == 1:
            tensors[name] = ("F32", values)
            continue
        form = (8, 32) if stem == "model.layers.1.mlp.down_proj" else (bits, group)
        words, scales, biases = quantize_affine(values, *form)
        tensors |= {name: ("U32", words), f"{stem}.scales": ("F32", scales), f"{stem}.biases": ("F32", biases)}
    override = {"model.layers.1.mlp.down_proj": {"bits": 8, "group_size": 32}}
    settings = hf_settings(config, quantization={"bits": bits, "group_size": group, **override})
    folder = write_folder(tmp_path / "m", settings, tensors)
    dense, kept = on_mlx(folder), on_mlx(folder, KEPT)
    taps = LogitTap(dense), LogitTap(kept)
    for driver in (dense, kept):
        driver.generate([driver.add(IDS)], 3)
    exact = group != 16
    np.testing.assert_allclose(taps[1].logits[0], taps[0].logits[0], atol=1e-4 if exact else 0.15)
    down = [layer.down for layer in kept.backend._decoder.layers]
    assert [each.packing.bits for each in down] == [bits if exact else 8, 8]


@pytest.mark.parametrize(
    ("mode", "bits", "group"), [("affine", 4, 32), *((m, f.bits, f.group_size) for m, f in MODES.items())]
)
def test_what_mlx_lm_quantises_it_and_we_run_alike(tiny, tmp_path, on_mlx, mode, bits, group):
    model, config = load_model(tiny("qwen3").folder)
    model, config = quantize_model(model, config, group, bits, mode=mode)
    save_model(tmp_path, model)
    (tmp_path / "config.json").write_text(json.dumps(config))
    wanted = np.array(model(mx.array([IDS])))[0]
    for options in (KEPT, {}):
        driver = on_mlx(tmp_path, options)
        tap = LogitTap(driver)
        for length in (1, 17, 60):
            driver.step([(driver.add(IDS[:length]), length)])
            np.testing.assert_allclose(tap.logits[-1][0], wanted[length - 1], atol=1e-4)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_half_precision_is_close_to_float32(tiny, on_mlx, name, dtype):
    """The arithmetic that Metal uses; a residual in float16 is kept in float32."""
    wide, half = on_mlx(tiny(name).folder), on_mlx(tiny(name).folder, {"mlx_dtype": dtype})
    taps = LogitTap(wide), LogitTap(half)
    for driver in (wide, half):
        driver.step([(driver.add(IDS), len(IDS))])
    error = relative_error(taps[1].logits[0], taps[0].logits[0])
    assert 0 < error < (0.01 if dtype == "float16" else 0.06)
    assert half.backend._kv.keys[0].dtype == getattr(mx, dtype)
    assert half.backend.info.kv_bytes_per_token * 2 == wide.backend.info.kv_bytes_per_token


def test_large_residuals_survive_float16(tmp_path, on_mlx):
    """An embedding of 60,000 and what the layers add leave float16's range; the logits are right all the same."""
    config = tiny_config("llama")
    weights = random_weights(config)
    weights["model.embed_tokens.weight"][:, 3] = 60_000.0
    weights["model.layers.0.self_attn.o_proj.weight"][3] = 40.0
    for part in ("input_layernorm", "post_attention_layernorm"):
        for layer in range(2):
            weights[f"model.layers.{layer}.{part}.weight"] *= 30
    folder = write_folder(
        tmp_path / "m", hf_settings(config), {name: ("F32", values) for name, values in weights.items()}
    )
    wide, half = on_mlx(folder), on_mlx(folder, {"mlx_dtype": "float16"})
    taps = LogitTap(wide), LogitTap(half)
    for driver in (wide, half):
        track = driver.add(IDS)
        driver.step([(track, len(IDS))])
        assert track.nan == [False]
    assert relative_error(taps[1].logits[0], taps[0].logits[0]) < 0.02


def test_dense_matrices_are_shared_with_a_tied_head(tiny, on_mlx):
    decoder = on_mlx(tiny("llama_tied").folder).backend._decoder
    assert isinstance(decoder.head, DenseLinear) and decoder.head.weight is decoder.embed.table


def test_demo_file_kept_quantised_is_planned_smaller(demo_model: Path):
    checkpoint = open_checkpoint(demo_model)
    kept = MlxLoader(checkpoint, mx.float16, True).planned_bytes()
    dense = MlxLoader(checkpoint, mx.float32, False).planned_bytes()
    assert kept < dense / 4 and kept < checkpoint.weight_bytes * 1.1
