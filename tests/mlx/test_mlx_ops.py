"""What only Metal runs of level 0, and parity with mlx-lm's own models."""

from __future__ import annotations

import json
import shutil
import warnings

import numpy as np
import pytest
from steps import LogitTap

from bireme.backends.mlx import kv, ops
from bireme.backends.mlx.library import mx
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
    """The gather by head and the sigmoid that a Mac uses, on a CPU: one flat batch of decodes and chunks."""
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
        return ops._swiglu(*arrays)

    fast_turn, fast_swiglu = mx.compile(counted_turn, shapeless=True), mx.compile(counted_swiglu, shapeless=True)
    table = RotaryTable(RopeConfig(), 16)
    rng = np.random.default_rng(1)
    for tokens in (1, 7, 64, 300):
        rotation = table.at(np.arange(tokens, dtype=np.int32))
        x = mx.array(rng.standard_normal((tokens, 6, 16)).astype(np.float32))
        np.testing.assert_allclose(np.array(rotation(x, fast_turn)), np.array(rotation(x, turn)), atol=1e-6)
        gate, up = mx.split(mx.array(rng.standard_normal((tokens, 96)).astype(np.float32)), 2, axis=-1)
        np.testing.assert_allclose(np.array(fast_swiglu(gate, up)), np.array(ops._swiglu(gate, up)), atol=1e-6)
        np.testing.assert_allclose(np.array(ops._swiglu_cpu(gate, up)), np.array(ops._swiglu(gate, up)), atol=1e-6)
    assert traced == {"turn": 1, "swiglu": 1}


def test_angles_are_exact_far_out():
    """At position 1,000,000 a float32 angle of the fastest pair would be off by hundredths of a radian."""
    positions = np.array([999_983, 1_000_000], np.int32)
    rotation = RotaryTable(RopeConfig(), 4).at(positions)
    wanted = np.cos(positions.astype(np.float64)[:, None] * 10000.0 ** -np.array([0, 0.5]))
    np.testing.assert_allclose(np.array(rotation.cos)[:, 0, :2], wanted, atol=1e-7)
