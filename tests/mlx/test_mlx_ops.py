"""What only Metal runs of level 0, and parity with mlx-lm's own models."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from steps import LogitTap
from tiny import tiny_config

from bireme.backends.mlx import cpu, kv, ops
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.linear import DenseLinear
from bireme.backends.mlx.rope import RotaryTable, turn
from bireme.models.config import RopeConfig

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mlx_lm.utils import load_model

IDS = [int(i) for i in np.random.default_rng(3).integers(0, 320, 80)]


@pytest.mark.parametrize("name", ["llama", "llama_tied", "llama3_rope", "llama_linear", "qwen2", "qwen3"])
def test_logits_equal_mlx_lms(tiny, on_mlx, name):
    """Alone, and two prompts of other lengths beside it in one flat batch."""
    rope = json.loads((tiny(name).folder / "config.json").read_text())["rope_parameters"]  # mlx-lm reads older keys
    older = {"rope_theta": rope["rope_theta"], "rope_scaling": None if rope["rope_type"] == "default" else rope}
    model, _ = load_model(tiny(name).folder, model_config=older)
    wanted = [np.array(model(mx.array([IDS[:length]])))[0, -1] for length in (1, 33, 80)]
    driver = on_mlx(tiny(name).folder)
    tap = LogitTap(driver)
    tracks = [driver.add(IDS[:length], row=row) for row, length in enumerate((1, 33, 80))]
    driver.step([(track, track.pending) for track in tracks])
    np.testing.assert_allclose(tap.logits[0], np.stack(wanted), atol=1e-4)


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_metals_ways_give_the_same(tiny, on_mlx, monkeypatch, name):
    """The attention and the sigmoid that a Mac uses, on a CPU: one flat batch of decodes and chunks."""
    prompts = [IDS[n : n + 11 * n + 3] for n in range(6)]

    def run() -> list[list[int]]:
        driver = on_mlx(tiny(name).folder)
        tracks = [driver.add(prompt, row=row) for row, prompt in enumerate(prompts)]
        return driver.generate(tracks, 12, chunk=17)

    wanted = run()
    monkeypatch.setattr(kv, "on_metal", lambda: True)
    monkeypatch.setattr(ops, "on_metal", lambda: True)
    if shutil.which("g++") is None:  # MLX compiles elementwise chains with it on a CPU
        monkeypatch.setattr(mx, "compile", lambda function, shapeless: function)
    assert run() == wanted


@pytest.mark.skipif(shutil.which("g++") is None, reason="MLX compiles with g++ on a CPU, and there is none")
def test_compiled_chains_serve_every_length():
    """Shapes are left open: one trace serves all numbers of tokens, and gives what the plain functions give."""
    traced = {"turn": 0, "swiglu": 0}

    def counted_turn(*arrays):
        traced["turn"] += 1
        return turn(*arrays)

    def counted_swiglu(*arrays):
        traced["swiglu"] += 1
        return ops.swiglu(*arrays)

    fast_turn, fast_swiglu = mx.compile(counted_turn, shapeless=True), mx.compile(counted_swiglu, shapeless=True)
    table = RotaryTable(RopeConfig(), 16)
    rng = np.random.default_rng(1)
    for tokens in (1, 7, 64, 300):
        rotation = table.at(np.arange(tokens, dtype=np.int32))
        x = mx.array(rng.standard_normal((tokens, 6, 16)).astype(np.float32))
        np.testing.assert_allclose(np.array(rotation(x, fast_turn)), np.array(rotation(x, turn)), atol=1e-6)
        gate, up = mx.split(mx.array(rng.standard_normal((tokens, 96)).astype(np.float32)), 2, axis=-1)
        np.testing.assert_allclose(np.array(fast_swiglu(gate, up)), np.array(ops.swiglu(gate, up)), atol=1e-6)
    assert traced == {"turn": 1, "swiglu": 1}


def test_angles_are_exact_far_out():
    """At position 1,000,000 a float32 angle of the fastest pair would be off by hundredths of a radian."""
    positions = np.array([999_983, 1_000_000], np.int32)
    rotation = RotaryTable(RopeConfig(), 4).at(positions)
    wanted = np.cos(positions.astype(np.float64)[:, None] * 10000.0 ** -np.array([0, 0.5]))
    np.testing.assert_allclose(np.array(rotation.cos)[:, 0, :2], wanted, atol=1e-7)


@pytest.fixture(params=["few", "many"])
def size_of_arrays(request, monkeypatch):
    """Both of the CPU's ways to an exponential, whatever the size."""
    monkeypatch.setattr(cpu, "FEW", 1 << 40 if request.param == "few" else 0)
    return request.param


def test_powers_of_two_on_a_cpu(size_of_arrays):
    x = np.concatenate([np.linspace(-126, 127, 100_001), np.linspace(-1, 1, 10_001)]).astype(np.float32)
    np.testing.assert_allclose(np.array(cpu.exp2(mx.array(x))), np.exp2(x.astype(np.float64)), rtol=4e-7)
    odd = np.array(cpu.exp2(mx.array([-1e30, -np.inf, -127.0, np.nan])))
    assert (odd[:3] < 1.2e-38).all() and (odd[:3] >= 0).all() and np.isnan(odd[3])


@pytest.mark.parametrize("name", ["swiglu", "geglu"])
def test_gates_on_a_cpu(size_of_arrays, name):
    gate = np.concatenate([np.linspace(-100, 100, 9_999), [-3e4, 3e4, np.nan]]).astype(np.float32)
    up = np.random.default_rng(0).standard_normal(len(gate)).astype(np.float32)
    plain, ours = (np.array(getattr(module, name)(mx.array(gate), mx.array(up))) for module in (ops, cpu))
    np.testing.assert_allclose(ours, plain, rtol=2e-6, atol=1e-30 if name == "swiglu" else 1e-8)
    assert np.isnan(plain[-1])
    if name == "geglu":
        gate = gate[:-1].astype(np.float64)
        inner = np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)
        np.testing.assert_allclose(ours[:-1], gate / 2 * (1 + np.tanh(inner)) * up[:-1], rtol=2e-6, atol=1e-6)


def test_a_norm_before_the_sum_may_leave_float16():
    """In Gemma 3 270M such norms give 33,883, and the residual stream reaches 104,049; float16 ends at 65,504."""
    half = ops.MlxOps(tiny_config("gemma3"), None, mx.float16)
    x = mx.array(np.random.default_rng(1).standard_normal((3, 8)).astype(np.float16))
    residual, own = mx.full((3, 8), 30_000.0, mx.float32), mx.full((8,), 50_000.0, mx.float32)
    normed, total = half.add_rms_norm(x, residual, mx.full((8,), 2.0, mx.float32), 1e-6, own)
    wide = np.array(x).astype(np.float64)
    wanted = 30_000 + 50_000 * wide / np.sqrt((wide**2).mean(-1, keepdims=True) + 1e-6)
    assert total.dtype == mx.float32 and normed.dtype == mx.float16 and np.abs(wanted).max() > 65_504
    np.testing.assert_allclose(np.array(total), wanted, rtol=1e-6)
    np.testing.assert_allclose(np.array(normed), 2 * wanted / np.sqrt((wanted**2).mean(-1, keepdims=True)), rtol=1e-3)


def heads_of(rng, *shape):
    return mx.array(rng.standard_normal(shape).astype(np.float32))


def test_decodes_on_a_cpu_attend_as_mlx_does(size_of_arrays):
    rng = np.random.default_rng(2)
    q, k, v = heads_of(rng, 5, 6, 16), heads_of(rng, 5, 2, 70, 16), heads_of(rng, 5, 2, 70, 16)
    seen = mx.array(np.arange(70) < np.array([70, 1, 33, 64, 69])[:, None])[:, None, None, :]
    for mask in (None, seen):
        wanted = mx.fast.scaled_dot_product_attention(q[:, :, None], k, v, scale=0.3, mask=mask)[:, :, 0]
        found = cpu.attend_decodes(q, k, v, 0.3, mask)
        np.testing.assert_allclose(np.array(found).reshape(5, 6, 16), np.array(wanted), atol=2e-6)


@pytest.mark.parametrize("tile", [1, 16, 1000])
@pytest.mark.parametrize("window", [None, 1, 7, 64])
def test_a_chunk_on_a_cpu_attends_as_mlx_does(size_of_arrays, monkeypatch, tile, window):
    monkeypatch.setattr(cpu, "TILE_SCORES", 0)
    monkeypatch.setattr(cpu, "FEWEST", tile)
    monkeypatch.setattr(cpu, "MOST", tile)
    rng, (queries, keys) = np.random.default_rng(3), (37, 90)
    q, k, v = heads_of(rng, queries, 4, 8), heads_of(rng, 1, 2, keys, 8), heads_of(rng, 1, 2, keys, 8)
    query, key = np.arange(keys - queries, keys)[:, None], np.arange(keys)
    seen = (key <= query) & (key > query - (window or keys))
    wanted = mx.fast.scaled_dot_product_attention(q.swapaxes(0, 1)[None], k, v, scale=0.5, mask=mx.array(seen))
    found = np.array(cpu.attend_chunk(q, k, v, 0.5, window)).reshape(queries, 4, 8)
    np.testing.assert_allclose(found, np.array(wanted)[0].swapaxes(0, 1), atol=2e-6)


@pytest.mark.parametrize("core, fewest", [("Haswell", 4), ("SkylakeX", 9), ("", 4)])
def test_rows_of_zeros_change_no_product(monkeypatch, core, fewest):
    monkeypatch.setattr(cpu, "openblas_core", lambda: core)
    rng = np.random.default_rng(4)
    weight = DenseLinear(mx.array(rng.standard_normal((24, 40)).astype(np.float32)), mx.array(np.ones(24, np.float32)))
    asked = []
    for count in range(1, 40):
        x = mx.array(rng.standard_normal((count, 40)).astype(np.float32))
        found = cpu.multiply(x, lambda rows: (asked.append(len(rows)), weight(rows))[1])
        assert found.shape == (count, 24)
        np.testing.assert_allclose(np.array(found), np.array(weight(x)), atol=1e-5)
    assert asked == [n if n % 16 < fewest else -(-n // 16) * 16 for n in range(1, 40)]
