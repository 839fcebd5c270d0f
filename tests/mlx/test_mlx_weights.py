"""Weights stay quantised where MLX can hold them: exactly by repacking, else quantised anew and said so."""

from __future__ import annotations

import json
import re
import warnings
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from steps import LogitTap
from tiny import hf_settings, quantize_affine, random_weights, tiny_config, write_folder, write_gguf

import bireme
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.linear import DenseLinear, Packing, QuantizedEmbedding, QuantizedLinear
from bireme.backends.mlx.repack import repack
from bireme.backends.mlx.weights import MlxLoader
from bireme.models import fp8
from bireme.models.checkpoint import open_checkpoint
from bireme.models.ggml_types import BY_NAME, DECODABLE, DENSE
from bireme.models.mlx_affine import BITS, pack_codes, unpack_codes
from bireme.models.mlx_float import KIND_OF, MODES
from bireme.models.weight import Weight

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mlx_lm.utils import load_model, quantize_model, save_model

KEPT = {"mlx_weights": "quantized"}
IDS = [int(i) for i in np.random.default_rng(3).integers(0, 320, 60)]
BY_GGUF_PY = gguf.quants.quantize
#: Where the float16 scales lie in blocks that gguf-py can't make.
HALVES = {
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
}
#: In docs/mlx.md: a type, its error with scales in each of ``DTYPES``, and the bits it takes with float16 ones.
STATED_ROW = re.compile(r"\| (?P<kind>\w+)(?P<how>[^|]*) \| (\S+) \| (\S+) \| (\S+) \| (?P<bits>[\d.]+) \|")
DOCS = Path(bireme.__file__).parent / "docs" / "mlx.md"
STATED = {found["kind"]: found for found in STATED_ROW.finditer(DOCS.read_text(encoding="utf-8"))}
DTYPES = ("float32", "float16", "bfloat16")


def ggml_blocks(values: np.ndarray, kind: str) -> np.ndarray:
    """``values`` [rows, columns] as uint8 blocks of ``kind``; random ones with sane scales where gguf-py makes none."""
    quant = gguf.GGMLQuantizationType[kind]
    if kind not in HALVES:
        return BY_GGUF_PY(values, quant)
    rng = np.random.default_rng(11)
    block, size = gguf.GGML_QUANT_SIZES[quant]
    blocks = rng.integers(0, 256, (values.size // block, size), dtype=np.uint8)
    for at in HALVES[kind]:
        blocks[:, at : at + 2] = rng.uniform(0.001, 0.01, (len(blocks), 1)).astype("<f2").view(np.uint8)
    return blocks.reshape(len(values), -1)


def ggml_blocks_or_dense(values: np.ndarray, quant: gguf.GGMLQuantizationType) -> np.ndarray:
    return values if quant.name == "F32" else ggml_blocks(values, quant.name)


def stored(kind: str, rows: int = 48, columns: int = 512) -> Weight:
    """A matrix of a GGML type, or of an MLX mode as MLX makes it: "affine", "mxfp4" and so on."""
    values = np.random.default_rng(11).standard_normal((rows, columns)).astype(np.float32)
    if kind == "affine":
        parts = [np.array(part) for part in mx.quantize(mx.array(values).astype(mx.float16), group_size=64, bits=4)]
        return Weight("w.weight", values.shape, "MLX", *parts, 4, 64)
    if kind in MODES:
        words, scales = mx.quantize(mx.array(values), MODES[kind].group_size, MODES[kind].bits, mode=kind)
        form = MODES[kind]
        return Weight(
            "w.weight", values.shape, KIND_OF[kind], np.array(words), np.array(scales), None, form.bits, form.group_size
        )
    if kind == fp8.KIND:
        scales = np.abs(values).max(axis=1, keepdims=True) / 448
        data = np.array(mx.to_fp8(mx.array(values / scales)))
        return Weight("w.weight", values.shape, kind, data, scales, None, 8, columns)
    return Weight("w.weight", values.shape, kind, ggml_blocks(values, kind))


class One:
    """A checkpoint of one matrix."""

    weight_bytes = 1

    def __init__(self, weight: Weight) -> None:
        self._weight = weight

    def names(self):
        return iter([self._weight.name])

    def weight(self, name: str) -> Weight:
        return self._weight


def decoded(handle: QuantizedLinear) -> np.ndarray:
    """What MLX makes of a matrix as it is held, multiplied out in float32."""
    how, scales, biases, kind = handle.packing, handle.scales, handle.biases, {"dtype": mx.float32}
    if biases is not None:
        scales, biases, kind = scales.astype(mx.float32), biases.astype(mx.float32), {}
    values = mx.dequantize(handle.words, scales, biases, how.group_size, how.bits, mode=how.mode, **kind)
    return np.array(values)


def relative_error(found: np.ndarray, wanted: np.ndarray) -> float:
    return float(np.sqrt(((found - wanted) ** 2).mean() / (wanted**2).mean()))


@pytest.fixture
def level_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """MLX's own operations, whatever kernels of ours could run here."""
    monkeypatch.setattr("bireme.backends.mlx.packing.available", lambda: False)


@pytest.mark.parametrize("bits", BITS)
def test_packing_is_the_inverse_of_unpacking(bits):
    codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 96), dtype=np.uint8)
    np.testing.assert_array_equal(unpack_codes(pack_codes(codes, bits), bits), codes)


@pytest.mark.usefixtures("level_0")
@pytest.mark.parametrize("kind", STATED)
def test_errors_are_those_stated(kind):
    """Every row of the table in docs/mlx.md, as MLX decodes what is held."""
    weight, row = stored(kind, 256, 2048), STATED[kind]
    if kind in BY_NAME:
        wanted = gguf.quants.dequantize(weight.data, gguf.GGMLQuantizationType[kind])
    else:
        wanted = weight.dequantize()
    for dtype, error in zip(DTYPES, row.groups()[2:5], strict=True):
        loader = MlxLoader(One(weight), getattr(mx, dtype), True)
        handle = loader.linear("w")
        assert relative_error(decoded(handle), wanted) == pytest.approx(float(error), rel=0.05, abs=1e-7)
        assert loader.requantised == ({kind: 1} if "anew" in row["how"] else {})
        assert handle.biases is None or handle.biases.dtype == handle.scales.dtype == getattr(mx, dtype)
        if dtype == "float16":
            assert loader.nbytes * 8 / wanted.size == float(row["bits"])


def test_every_type_has_its_row():
    assert set(STATED) == (DECODABLE - set(DENSE)) | {"affine", fp8.KIND, *MODES}


def test_mxfp4_keeps_codes_and_scale_bytes():
    """The same nibbles, put in order: GGUF has values 0 to 15 of a block in the low halves of its bytes."""
    packed = repack(stored("MXFP4", 1, 64), 0, 1)
    blocks = stored("MXFP4", 1, 64).data.reshape(2, 17)
    codes = np.concatenate((blocks[:, 1:] & 15, blocks[:, 1:] >> 4), axis=1)
    np.testing.assert_array_equal(unpack_codes(packed.words, 4).reshape(2, 32), codes)
    np.testing.assert_array_equal(packed.scales, blocks[:, 0][None])


@pytest.mark.parametrize("mode", MODES)
def test_float_modes_decode_as_mlx_decodes_them(mode):
    weight = stored(mode)
    wanted = decoded(MlxLoader(One(weight), mx.float32, True).linear("w"))
    np.testing.assert_array_equal(weight.dequantize(), wanted)


def mixed(name: str) -> str:
    """What a Q4_K_M-like file has: other types for v and down, another for the embedding."""
    if "embed" in name:
        return "Q8_0"
    kinds = {"v_proj": "Q5_0", "down_proj": "Q5_1", "o_proj": "MXFP4"}
    return next((kind for part, kind in kinds.items() if part in name), "Q4_0")


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
    assert isinstance(layer.mlp.gate_up, QuantizedLinear) and layer.mlp.gate_up.words.shape == (192, 8)
    assert len(layer.qkv.parts) == 2, "q and k together, v apart"
    assert isinstance(kept.backend._decoder.embed, QuantizedEmbedding)
    assert kept.backend.info.weight_bytes < dense.backend.info.weight_bytes / 3
    if tied:
        assert kept.backend._decoder.head is kept.backend._decoder.embed.table
    assert layer.output.packing.mode == "mxfp4"
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


@pytest.mark.usefixtures("level_0")
def test_the_load_summary_names_what_was_requantised(tmp_path, on_mlx, monkeypatch, caplog):
    """A whole model with types that MLX has no form for: counted by type, and its logits are near the file's own."""
    monkeypatch.setattr(gguf.quants, "quantize", lambda values, kind: ggml_blocks_or_dense(values, kind))
    kinds = {"v_proj": "Q6_K", "down_proj": "Q6_K", "up_proj": "Q3_K", "gate_proj": "IQ4_XS", "o_proj": "IQ4_NL"}
    config = tiny_config("llama", hidden_size=256, intermediate_size=256)
    path = write_gguf(
        tmp_path / "m.gguf",
        config,
        random_weights(config),
        type_of=lambda name: next((kind for part, kind in kinds.items() if part in name), "Q4_0"),
    )
    caplog.set_level("INFO", "bireme.backends.mlx")
    dense, kept = on_mlx(path), on_mlx(path, KEPT)
    named = "2 IQ4_NL, 2 IQ4_XS, 2 Q3_K, 4 Q6_K matrices requantised to 8 bits in groups of 32"
    assert named in kept.backend.info.quantization and named in caplog.text
    assert "decoded to float32" in dense.backend.info.quantization
    taps = LogitTap(dense), LogitTap(kept)
    for driver in (dense, kept):
        driver.step([(driver.add(IDS), len(IDS))])
    assert 0 < relative_error(taps[1].logits[0], taps[0].logits[0]) < 0.02


@pytest.mark.parametrize(("bits", "group"), [(3, 64), (4, 16)])
def test_affine_folders_keep_their_codes(tmp_path, on_mlx, bits, group):
    """One layer's projection in another width than the rest; groups of 16, which MLX lacks, at 8 bits."""
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
    down = [layer.mlp.down for layer in kept.backend._decoder.layers]
    assert [each.packing.bits for each in down] == [bits if exact else 8, 8]


def overrides(path: str, module: Any) -> bool | dict[str, Any]:
    """What mlx-lm's mixed recipes do: some layers in another width, in another mode, or not at all."""
    if "layers.0.self_attn.o_proj" in path:
        return False
    if "down_proj" in path:
        return {"bits": 8, "group_size": 32}
    return {"bits": 4, "group_size": 32, "mode": "mxfp4"} if "v_proj" in path else True


@pytest.fixture(scope="module")
def plain_folder(tmp_path_factory):
    config = tiny_config("qwen3", hidden_size=128, intermediate_size=256, num_heads=8)
    tensors = {name: ("F32", values) for name, values in random_weights(config).items()}
    return write_folder(tmp_path_factory.mktemp("plain"), hf_settings(config), tensors)


@pytest.mark.parametrize(
    ("mode", "bits", "group", "predicate"),
    [
        *(("affine", bits, group, None) for bits in BITS for group in (32, 64, 128)),
        *((mode, form.bits, form.group_size, None) for mode, form in MODES.items()),
        ("affine", 4, 64, overrides),
        ("nvfp4", 4, 16, overrides),
    ],
)
def test_what_mlx_lm_quantises_it_and_we_run_alike(plain_folder, tmp_path, on_mlx, mode, bits, group, predicate):
    model, config = load_model(plain_folder)
    model, config = quantize_model(model, config, group, bits, mode=mode, quant_predicate=predicate)
    save_model(tmp_path, model)
    (tmp_path / "config.json").write_text(json.dumps(config))
    wanted = np.array(model(mx.array([IDS])))[0]
    for options in (KEPT, {}) if mode != "affine" or predicate else (KEPT,):  # decoding of affine codes: tests/files
        driver = on_mlx(tmp_path, options)
        if options:
            assert driver.backend._decoder.layers[1].mlp.gate_up.packing == Packing(bits, group, mode)
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
