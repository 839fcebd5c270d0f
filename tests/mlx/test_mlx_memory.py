"""The memory plan: what is promised, refused and told to MLX."""

from __future__ import annotations

import logging

import numpy as np
import pytest

from bireme.backends.mlx import memory
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.runner import MlxBackend
from bireme.backends.mlx.weights import MlxLoader
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint

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
    config = EngineConfig(max_num_seqs=1024)
    found = memory.Planner(checkpoint, config, loader).plan()
    assert found.weight_bytes == loader.planned_bytes()
    left = int(2 * GIB * 0.85) - found.weight_bytes - found.buffer_bytes
    most = 1024 * 512 // 16
    assert found.num_blocks == min(left // (16 * found.kv_bytes_per_token), most) == most
    mac(GIB // 2)
    squeezed = memory.Planner(checkpoint, config, loader).plan()
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


def test_the_numbers_are_printed(tiny, on_mlx, caplog):
    with caplog.at_level(logging.INFO):
        driver = on_mlx(tiny("llama").folder, kv_cache_memory=1 << 20)
    lines = [record.getMessage() for record in caplog.records if "mlx" in record.name]
    assert any(line.startswith("memory: 0.00 GiB of weights") and "1,360 tokens" in line for line in lines)
    assert driver.backend.info.num_blocks == (1 << 20) // (16 * 768)


def test_a_step_stays_within_its_work_memory(tiny, on_mlx):
    """The largest step there can be: a full chunk behind a long context, beside decodes."""
    driver = on_mlx(tiny("llama").folder, max_num_batched_tokens=400)
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=400)
    planned = memory.work_bytes(open_checkpoint(tiny("llama").folder).config, config, 4)
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
