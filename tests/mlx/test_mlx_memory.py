"""The memory plan: what is promised, refused and told to MLX."""

from __future__ import annotations

import logging
from dataclasses import replace

import numpy as np
import pytest
from steps import Driver
from tiny import random_weights, tiny_config, write_gguf

from bireme.backends.mlx import memory, rehearsal, step
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.runner import MlxBackend
from bireme.backends.mlx.weights import MlxLoader
from bireme.backends.trial_steps import GREEDY, WIDEST, trial_step
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.models.config import ModelConfig

GIB = 1 << 30


@pytest.fixture
def mac(monkeypatch):
    """``mac(bytes)``: memory is planned as on a Mac whose Metal recommends so much; what MLX is told is recorded."""
    told: dict[str, int] = {}

    def pretend(recommended: int) -> dict[str, int]:
        monkeypatch.setattr(memory, "on_metal", lambda: True)
        monkeypatch.setattr(mx, "device_info", lambda: {"max_recommended_working_set_size": recommended})
        for name in ("set_wired_limit", "set_memory_limit", "set_cache_limit"):
            monkeypatch.setattr(mx, name, lambda size, name=name: told.__setitem__(name, size))
        return told

    return pretend


def never_read(*names: str) -> None:
    raise AssertionError("a weight was read")


def test_a_model_that_does_not_fit_is_refused_before_it_is_read(tiny, mac, monkeypatch):
    mac(1 << 20)
    checkpoint = open_checkpoint(tiny("llama").folder)
    monkeypatch.setattr(checkpoint, "weight", never_read)
    with pytest.raises(
        ValueError, match=r"does not fit: its weights take .*85% of the 0.00 GiB that Metal.*smaller quant"
    ):
        MlxBackend(checkpoint, EngineConfig())


def test_a_pool_that_does_not_fit_is_refused_with_what_is_left(tiny, mac):
    mac(4 * GIB)
    with pytest.raises(ValueError, match=r"kv_cache_memory is 8.00 GiB, and .* GiB are left of 3.40 GiB .* smaller"):
        MlxBackend(open_checkpoint(tiny("llama").folder), EngineConfig(kv_cache_memory=8 * GIB))


def test_the_pool_takes_what_is_left(tiny, mac):
    """On a Mac: all that the share of the working set leaves, but never more than all sequences could use."""
    mac(2 * GIB)
    checkpoint = open_checkpoint(tiny("llama").folder)
    loader = MlxLoader(checkpoint, mx.float32, False)
    settings = EngineConfig(max_num_seqs=1024)
    found = memory.Planner(checkpoint, settings, loader).plan()
    assert found.weight_bytes == loader.planned_bytes()
    left = int(2 * GIB * 0.85) - found.weight_bytes - found.buffer_bytes
    most = 1024 * 512 // 16
    assert found.num_blocks == min(left // (16 * found.kv_bytes_per_token), most) == most
    mac(GIB // 2)
    squeezed = memory.Planner(checkpoint, settings, loader).plan()
    assert 0 < squeezed.num_blocks < most and squeezed.total_bytes <= GIB // 2 * 0.85


def test_mlx_is_told_the_plan(tiny, mac):
    told = mac(2 * GIB)
    checkpoint = open_checkpoint(tiny("llama").folder)
    found = memory.Planner(checkpoint, EngineConfig(), MlxLoader(checkpoint, mx.float32, False)).plan()
    memory.set_limits(found)
    assert told == {
        "set_cache_limit": found.buffer_bytes,
        "set_memory_limit": found.total_bytes,
        "set_wired_limit": found.total_bytes,
    }


def printed(caplog, tiny, on_mlx, **config) -> tuple[str, Driver]:
    with caplog.at_level(logging.INFO):
        driver = on_mlx(tiny("llama").folder, **config)
    return next(text for text in map(logging.LogRecord.getMessage, caplog.records) if "of weights" in text), driver


def test_the_numbers_are_printed(tiny, on_mlx, caplog):
    line, driver = printed(caplog, tiny, on_mlx, kv_cache_memory=1 << 20)
    assert line.startswith("memory: 0.00 GiB of weights") and "1,360 tokens" in line
    assert driver.backend.info.num_blocks == (1 << 20) // (16 * 768)
    assert "0.27 GiB of work memory (derived)" in line, "on a CPU a step of 2,048 tokens is not run at load"


def test_both_figures_are_printed_where_the_step_was_measured(tiny, on_mlx, caplog, monkeypatch):
    monkeypatch.setattr(rehearsal, "extra_bytes", lambda work: work() and 3 << 30)
    line, _ = printed(caplog, tiny, on_mlx, max_num_batched_tokens=128)
    assert "3.75 GiB of work memory (the largest step took 3.00 GiB; derived before loading: 0.02 GiB)" in line


def test_a_pool_shorter_than_a_context_is_told(tiny, on_mlx, caplog):
    on_mlx(tiny("llama").folder, kv_cache_memory=1 << 18)
    assert "the KV cache holds 336 tokens, fewer than one context of 512" in caplog.text
    assert "a shorter max_model_len, kv_cache_dtype 'int8', or more kv_cache_memory" in caplog.text


def test_a_named_pool_may_be_larger_than_the_modest_one(tiny, monkeypatch):
    monkeypatch.setattr(memory, "LINUX_POOL", 1 << 20)
    checkpoint = open_checkpoint(tiny("llama").folder)
    for wanted, found in ((None, 1 << 20), (3 << 20, 3 << 20)):
        planner = memory.Planner(
            checkpoint, EngineConfig(kv_cache_memory=wanted), MlxLoader(checkpoint, mx.float32, False)
        )
        assert found - 16 * 768 < planner.plan().kv_bytes <= found


def test_the_pool_is_sized_by_what_was_measured(tiny, mac):
    """A smaller step leaves more blocks, a larger one fewer; one that leaves none is refused."""
    mac(GIB)
    checkpoint = open_checkpoint(tiny("llama").folder)
    planner = memory.Planner(checkpoint, EngineConfig(max_num_seqs=2048), MlxLoader(checkpoint, mx.float32, False))
    derived = planner.plan()
    for measured in (planner.derived // 2, planner.derived * 2):
        found = planner.plan(measured)
        assert found.buffer_bytes == round(measured * memory.MEASURED_MARGIN)
        freed = derived.buffer_bytes - found.buffer_bytes
        assert abs(found.kv_bytes - derived.kv_bytes - freed) <= 16 * planner.kv_bytes_per_token
    with pytest.raises(ValueError, match=r"does not fit: .* work memory 1.25 GiB, and there are 0.85 GiB"):
        planner.plan(GIB)


def spans(random: np.random.Generator, tokens: int, sequences: int) -> list[tuple[int, int]]:
    """So many tokens in so many sequences, chunks and decodes, over contexts of any length."""
    cuts = np.sort(random.choice(np.arange(1, tokens), sequences - 1, replace=False)) if sequences > 1 else []
    counts = np.diff([0, *cuts, tokens])
    counts = [1 if n and random.random() < 0.5 else int(count) for n, count in enumerate(counts)]
    return [(count, int(random.integers(count, 513))) for count in counts]


@pytest.mark.parametrize("name, kv_cache_dtype", [("llama", "auto"), ("mistral", "auto"), ("llama", "int8")])
def test_the_measured_step_bounds_every_other(tiny, on_mlx, monkeypatch, name, kv_cache_dtype):
    """What was reserved for the largest step holds for steps of every composition, whatever is sampled."""
    measured: list[int] = []
    extra = rehearsal.extra_bytes
    monkeypatch.setattr(rehearsal, "extra_bytes", lambda work: measured.append(extra(work)) or measured[0])
    driver = on_mlx(tiny(name).folder, max_num_batched_tokens=256, kv_cache_dtype=kv_cache_dtype)
    random = np.random.default_rng(0)
    for params in (WIDEST, GREEDY):
        for sequences in (1, 3, 8):
            batch = trial_step(spans(random, 256, sequences), 16, params)
            taken = extra(lambda batch=batch: driver.backend.submit(batch).wait())
            assert 0 < taken < measured[0] * memory.MEASURED_MARGIN
    assert len(measured) == 1


def test_more_layers_and_blocks_take_no_more(tmp_path, on_mlx):
    """So the largest step may be measured on a few layers over one block."""
    model = tiny_config(num_layers=16)
    path = write_gguf(tmp_path / "model.gguf", model, random_weights(model))
    settings = {"max_num_batched_tokens": 256, "max_num_seqs": 8}
    backend = on_mlx(path, max_model_len=256, **settings).backend
    largest = rehearsal.largest_step(model, EngineConfig(max_model_len=256, **settings))
    run = lambda: backend.submit(largest).wait()  # noqa: E731
    run()
    every = rehearsal.extra_bytes(run)
    assert backend.info.num_blocks > 1
    whole, backend._decoder = backend._decoder, rehearsal.few_layers(backend._decoder)
    assert [layer.index for layer in backend._decoder.layers] == [0, 5, 10, 15]
    few = rehearsal.extra_bytes(run)
    assert every < few * memory.MEASURED_MARGIN
    whole.layers = tuple(replace(layer, window=20) if layer.index == 9 else layer for layer in whole.layers)
    assert [layer.index for layer in rehearsal.few_layers(whole).layers] == [0, 5, 9, 10, 15], "one of each window"


def test_a_long_context_is_planned_for():
    """Llama 3.1 8B over 131,072 tokens: sixteen queries gather all of a layer's keys and values, half a gigabyte."""
    model = ModelConfig("llama", 128256, 4096, 14336, 32, 32, 8, 128, 131072, 1e-5)
    whole, short = (memory.work_bytes(model, EngineConfig(max_model_len=most), 2) for most in (None, 4096))
    gathered = 131072 * 2 * 8 * 128 * 2
    assert whole - short > gathered - step.GROUP_ELEMENTS * 2 and gathered == 512 << 20
    windowed = replace(model, windows=(4096,) * 32)
    assert memory.work_bytes(windowed, EngineConfig(), 2) == short
    int8 = memory.work_bytes(model, EngineConfig(kv_cache_dtype="int8"), 2)
    assert gathered / 2 < int8 - whole < gathered, "codes lie beside what is made of them"


def test_a_step_stays_within_its_work_memory(tiny, on_mlx):
    """The largest step there can be: a full chunk behind a long context, beside decodes."""
    driver = on_mlx(tiny("llama").folder, max_num_batched_tokens=400)
    settings = EngineConfig(max_num_seqs=8, max_num_batched_tokens=400)
    planned = memory.work_bytes(open_checkpoint(tiny("llama").folder).config, settings, 4)
    rng = np.random.default_rng(0)
    tracks = [driver.add([int(i) for i in rng.integers(0, 320, 60)], row=n) for n in range(7)]
    driver.step([(track, 50) for track in tracks])
    long = driver.add([int(i) for i in rng.integers(0, 320, 490)], row=7)
    driver.step([(long, 100)])
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    driver.step([(long, 390), *((track, 10) for track in tracks[:1])])
    assert 0 < mx.get_peak_memory() - before < planned
