"""Choosing a device, and refusing one that isn't there."""

from __future__ import annotations

import platform

import pytest
import torch

from bireme.backends import host_memory, select
from bireme.backends.options import BackendOptions
from bireme.backends.select import DeviceUnavailableError, load_backend, resolve_device
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint


def test_auto_prefers_what_the_machine_has(monkeypatch):
    monkeypatch.setattr(select, "_cuda_problem", lambda: "none here")
    monkeypatch.setattr(select, "_mlx_problem", lambda: None)
    monkeypatch.setattr(platform, "system", lambda: "Linux")
    assert resolve_device("auto") == "cpu"
    monkeypatch.setattr(select, "_cuda_problem", lambda: None)
    assert resolve_device("auto") == "cuda"
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    assert resolve_device("auto") == "mlx"


def test_an_unknown_device_names_the_known_ones():
    with pytest.raises(ValueError, match="device is 'tpu'; it must be one of auto, mlx, cuda, cpu"):
        resolve_device("tpu")


def test_cuda_without_a_gpu_says_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(DeviceUnavailableError, match="'cuda' can't be used: .*use --device cpu"):
        resolve_device("cuda")


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"cpu_precision": "int4"}, "cpu_precision is 'int4'; it must be 'fast' or 'exact'"),
        ({"threads": 0}, "threads is 0; it must be at least 1"),
    ],
)
def test_bad_options_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        BackendOptions(**changes)


def test_the_pool_is_what_the_configuration_says(tiny):
    checkpoint = open_checkpoint(tiny("llama").folder)
    exact = BackendOptions(cpu_precision="exact", threads=1)
    per_token = 2 * 3 * 2 * 16 * 4  # K and V, layers, heads, dims, bytes
    info = load_backend("cpu", checkpoint, EngineConfig(kv_cache_memory=1_000_000, block_size=8), exact).info
    assert info.kv_bytes_per_token == per_token and info.num_blocks == 1_000_000 // (8 * per_token)
    info = load_backend("cpu", checkpoint, EngineConfig(max_num_seqs=3, max_model_len=100), exact).info
    assert info.num_blocks == -(-3 * 100 // 16), "never more than all sequences could use"
    assert info.max_model_len == 512 and info.vocab_size == 320 and info.device == "cpu"
    with pytest.raises(ValueError, match="no room for the KV cache"):
        load_backend("cpu", checkpoint, EngineConfig(kv_cache_memory=100), exact)


def test_progress_reaches_its_end(tiny):
    seen = []
    checkpoint = open_checkpoint(tiny("llama_tied").gguf)
    options = BackendOptions(cpu_precision="exact", threads=1)
    load_backend("cpu", checkpoint, EngineConfig(), options, lambda done, total: seen.append((done, total)))
    assert seen == sorted(seen) and seen[-1] == (checkpoint.weight_bytes, checkpoint.weight_bytes)


def test_free_memory_knows_the_containers_limit(tmp_path):
    plain = host_memory.free_bytes(tmp_path)
    assert plain > 0
    (tmp_path / "memory.max").write_text("5000\n")
    (tmp_path / "memory.current").write_text("3000\n")
    (tmp_path / "memory.stat").write_text("anon 1000\ninactive_file 500\n")
    assert host_memory.free_bytes(tmp_path) == 2500
    (tmp_path / "memory.max").write_text("max\n")
    assert host_memory.free_bytes(tmp_path) > 5000
