"""An int8 KV cache on MLX: the numbers that are stored, what they cost in quality, and what they save in memory."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from steps import LogitTap, ids

from bireme.backends.cuda import kv as reference
from bireme.backends.mlx import ops, step
from bireme.backends.mlx.kv import KVPool, quantise
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.rehearsal import extra_bytes
from bireme.core.memory import kv_bytes_per_token, kv_element_bytes
from bireme.models.config import ModelConfig

CONFIG = ModelConfig("llama", 10, 8, 8, 2, 6, 3, 24, 64, 1e-5)


def awkward() -> np.ndarray:
    """Rows of many magnitudes, ties, zeros, subnormals, and rows that have no scale."""
    random = np.random.default_rng(0)
    x = random.standard_normal((60, 24)).astype(np.float32) * np.logspace(-30, 30, 60, dtype=np.float32)[:, None]
    x[0], x[1] = 0, 1e-42
    x[2, :4] = 127, 0.5, 1.5, -2.5
    x[2, 4:] = 0
    x[3, 5], x[4, 5], x[5, 5] = np.nan, np.inf, -np.inf
    return x


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_codes_and_scales_are_those_of_the_definition(dtype):
    """Bit for bit, from every dtype that activations have."""
    x = mx.array(awkward()).astype(getattr(mx, dtype))
    given = np.array(x.astype(mx.float32))
    codes, scales = quantise(x)
    wanted_codes, wanted_scales = reference.quantise(torch.from_numpy(given))
    assert codes.dtype == mx.int8 and scales.dtype == mx.float32
    np.testing.assert_array_equal(np.array(codes), wanted_codes.numpy())
    np.testing.assert_array_equal(np.array(scales), wanted_scales.numpy())


@pytest.mark.parametrize("by_head", [False, True])
def test_what_is_read_is_what_the_codes_mean(by_head):
    kv = KVPool(CONFIG, 6, 4, mx.float32, quantized=True)
    kv.by_head = by_head
    random = np.random.default_rng(1)
    stored = random.standard_normal((2, 8, 3, 24)).astype(np.float32)
    at = np.array([16, 17, 18, 19, 4, 5, 6, 7])
    kv.store(1, mx.array(at // 4), mx.array(at % 4), mx.array(stored[0]), mx.array(stored[1]))
    found = kv.gather(1, kv.read(mx.array(at[None].astype(np.int32))))
    for values, wanted in zip(found, stored, strict=True):
        codes, scales = reference.quantise(torch.from_numpy(wanted))
        meant = (codes.float() * scales[..., None]).numpy()
        np.testing.assert_array_equal(np.array(values[0]), meant.swapaxes(0, 1))
    kv.copy_blocks(mx.array([4, 1]), mx.array([1, 0]))
    slots = np.array([[4, 5, 6, 7, 0, 1, 2, 3]], np.int32)
    for moved, values in zip(kv.gather(1, kv.read(mx.array(slots))), found, strict=True):
        np.testing.assert_array_equal(np.array(moved), np.array(values))


@pytest.mark.parametrize("dtype, quantized", [("float32", False), ("float16", False), ("float16", True)])
def test_bytes_are_the_plans(dtype, quantized):
    kind = getattr(mx, dtype)
    kv = KVPool(CONFIG, 5, 16, kind, quantized)
    name = "int8" if quantized else "auto"
    per_token = kv_bytes_per_token(CONFIG, kv_element_bytes(name, CONFIG.head_dim, kind.size))
    assert sum(pool.nbytes for pool in kv.arrays) == 5 * 16 * per_token
    assert kv.stored_dtype == ("int8" if quantized else dtype)


def test_the_same_memory_holds_about_twice_as_much(tiny, on_mlx):
    """In half precision, for heads of 16: 2 bytes an element against 1 + 4 / 16."""
    sizes = [
        on_mlx(tiny("llama").folder, {"mlx_dtype": "float16"}, kv_cache_dtype=name, kv_cache_memory=1 << 20)
        for name in ("auto", "int8")
    ]
    full, half = (driver.backend.info for driver in sizes)
    assert half.kv_cache_dtype == "int8" and full.kv_cache_dtype == "float16"
    assert full.kv_bytes_per_token / half.kv_bytes_per_token == 2 / (1 + 4 / 16)
    assert half.num_blocks / full.num_blocks == pytest.approx(1.6, rel=0.01)


def log_probabilities(driver, prompt: list[int], tokens: list[int]) -> np.ndarray:
    """float64 [positions, V] after the prompt and after each of ``tokens``, one step each, in a batch of three."""
    tap = LogitTap(driver)
    tracks = [driver.add(prompt, row=0), driver.add(ids(41), row=1), driver.add(ids(90), row=2)]
    driver.step([(track, track.pending) for track in tracks])
    for token in tokens:
        tracks[0].ids[-1] = token
        driver.step([(track, 1) for track in tracks])
    logits = np.stack([each[0] for each in tap.logits]).astype(np.float64)
    top = logits.max(-1, keepdims=True)
    return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3"])
def test_it_moves_little(tiny, on_mlx, name):
    """KL divergence to the full cache, over a prompt and what follows it."""
    full, found = (
        log_probabilities(on_mlx(tiny(name).folder, kv_cache_dtype=kind), ids(120), ids(20))
        for kind in ("auto", "int8")
    )
    divergence = (np.exp(full) * (full - found)).sum(-1)
    assert 0 < divergence.mean() < 0.002 and divergence.max() < 0.01


def test_the_demo_model_hardly_notices(demo_model, on_mlx):
    prompt, tokens = ids(100), ids(6)
    full, found = (
        log_probabilities(on_mlx(demo_model, kv_cache_dtype=kind), prompt, tokens) for kind in ("auto", "int8")
    )
    divergence = (np.exp(full) * (full - found)).sum(-1)
    assert 0 < divergence.mean() < 0.002 and divergence.max() < 0.01


POOL = 64 << 20
CODES = POOL * 16 // 20 // 6  # one layer's keys: three layers, K and V, four bytes of scale to sixteen codes


@pytest.mark.parametrize("in_flight", [1, 2])
def test_writing_copies_neither_codes_nor_scales(tiny, on_mlx, in_flight):
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL, kv_cache_dtype="int8", max_in_flight=in_flight)
    kv = driver.backend._kv
    assert kv.keys[0].nbytes > CODES * 0.99 and kv.key_scales[0].nbytes > CODES * 0.99 / 4
    tracks = [driver.add(ids(20 + n), row=n) for n in range(4)]
    driver.step([(track, track.pending) for track in tracks])
    half_of_a_layers_scales = CODES / 4 / 2
    assert extra_bytes(lambda: driver.decode(tracks, 10, in_flight)) < half_of_a_layers_scales
    copies = [(tracks[0].blocks[0], 900), (901, 902)]
    assert extra_bytes(lambda: driver.step([(tracks[0], 1)], copies=copies)) < half_of_a_layers_scales


def test_the_guard_would_see_a_copy_of_scales(tiny, on_mlx):
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL, kv_cache_dtype="int8")
    track = driver.add(ids(20))
    driver.step([(track, 20)])
    views = [pool[3:5] for pool in driver.backend._kv.key_scales]
    mx.eval(views)
    assert extra_bytes(lambda: driver.step([(track, 1)])) > CODES / 4 / 2


def test_a_read_decodes_its_group_and_no_more(tiny, on_mlx, monkeypatch):
    """Of a pool that would be 50 MB as float32, a step over 450 keys in pieces of 1,000 elements decodes no layer."""
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL, kv_cache_dtype="int8")
    tracks = [driver.add(ids(450 - n), row=n) for n in range(6)]
    for track in tracks:
        driver.step([(track, track.pending)])
    together = extra_bytes(lambda: driver.step([(track, 1) for track in tracks]))
    monkeypatch.setattr(step, "GROUP_ELEMENTS", 1000)
    monkeypatch.setattr(ops, "QUEUED_ELEMENTS", 1000)
    apart = extra_bytes(lambda: driver.step([(track, 1) for track in tracks]))
    assert together < CODES / 4 and apart < together / 1.5
