"""What a backend compiles, it compiles at load: no step of any size needs another kernel."""

from __future__ import annotations

import importlib.util
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from metal_harness import Tensor, signature

if importlib.util.find_spec("mlx") is None:
    pytest.skip("mlx is not installed: pip install 'mlx[cpu]'", allow_module_level=True)

from steps import Driver
from tiny import random_weights, tiny_config, write_gguf

from bireme.backends.mlx import kv, ops, packing, rehearsal
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.metal import linear
from bireme.backends.mlx.metal.kernel import Launch, dtype_name
from bireme.backends.mlx.runner import MlxBackend
from bireme.backends.options import BackendOptions
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.models.names import gguf_from_canonical

pytestmark = pytest.mark.mlx

Sources = dict[str, set[str]]


@pytest.fixture
def sources(monkeypatch: pytest.MonkeyPatch) -> Iterator[Sources]:
    """As if Metal were here: by kernel's name, every head of a function that MLX would write for it. Results are 0."""
    seen: Sources = defaultdict(set)

    def nothing(launch: Launch, *inputs: Any) -> list[Any]:
        given = [Tensor(np.empty(array.shape, np.uint8), dtype_name(array.dtype)) for array in inputs]
        seen[launch.kernel.name].add(signature(launch, given))
        return [mx.zeros(shape, getattr(mx, dtype)) for shape, dtype in launch.outputs]

    monkeypatch.setattr(Launch, "run", nothing)
    for module in (kv, ops, packing, rehearsal):
        monkeypatch.setattr(module, "available", lambda: True)
    monkeypatch.setattr(linear, "affine_pays", lambda: True)
    yield seen


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Q4_0, but for the embedding and one layer's last matrix, which are Q6_K as llama.cpp's mixtures have them."""
    config = tiny_config("qwen3", hidden_size=256, intermediate_size=256, num_heads=6)
    tensors = random_weights(config)
    mixed = {
        name: tensors.pop(name).shape for name in ("model.embed_tokens.weight", "model.layers.1.mlp.down_proj.weight")
    }
    random = np.random.default_rng(0)

    def add(writer: gguf.GGUFWriter) -> None:
        for name, (rows, columns) in mixed.items():
            blocks = random.integers(0, 256, (rows, columns // 256, 210), np.uint8)
            blocks[:, :, 208:] = np.full(1, 1e-4, "<f2").view(np.uint8)
            kind = gguf.GGMLQuantizationType.Q6_K
            writer.add_tensor(gguf_from_canonical(name), blocks.reshape(rows, -1), raw_dtype=kind)

    path = tmp_path_factory.mktemp("rehearsal") / "model.gguf"
    return write_gguf(path, config, tensors, type_of=lambda name: "Q4_0", edit=add)


def load(model: Path, kv_cache_dtype: str = "auto", max_num_seqs: int = 18) -> Driver:
    settings = EngineConfig(
        max_num_seqs=max_num_seqs, max_num_batched_tokens=150, kv_cache_memory=8 << 20, kv_cache_dtype=kv_cache_dtype
    )
    options = BackendOptions(mlx_weights="quantized", mlx_dtype="float32")
    return Driver(MlxBackend(open_checkpoint(model), settings, options))


def serve(driver: Driver, most: int) -> None:
    """Steps of many sizes: joins, chunks, decodes near and far, up to ``most`` sequences."""
    tracks: list[Any] = []
    for row in range(most):
        tracks.append(driver.add([row] * (300 if row in (0, 4) else row + 1), row=row))
        while tracks[-1].pending > 1:
            driver.step([*((track, 1) for track in tracks[:-1]), (tracks[-1], min(tracks[-1].pending, 130))])
    for count in range(1, most + 1):
        driver.step([(track, 1) for track in tracks[:count]])


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_no_step_needs_a_kernel_that_was_not_compiled_at_load(model, sources, kv_cache_dtype):
    driver = load(model, kv_cache_dtype)
    at_load = {name: set(heads) for name, heads in sources.items()}
    serve(driver, 18)
    assert sources == at_load
    assert all(len(heads) == 1 for heads in sources.values()), "a source that changes under its name is compiled anew"
    used = {name.partition("__T_")[0] for name in sources}
    expected = {"paged_attention", "paged_attention_reduce", "norm_rope", "affine_matmul", "block__q6_k__block_matmul"}
    assert expected | {"block__q6_k__block_dequantize"} <= used and ("quantise" in used) == (kv_cache_dtype == "int8")
    driver.backend.close()


def test_with_few_rows_few_kernels_are_compiled(model, sources):
    driver = load(model, max_num_seqs=2)
    at_load = {name: set(heads) for name, heads in sources.items()}
    serve(driver, 2)
    assert sources == at_load
    driver.backend.close()


def test_without_the_rehearsal_requests_would_wait(model, sources, monkeypatch):
    monkeypatch.setattr(rehearsal, "small_steps", lambda model, engine: iter(()))
    driver = load(model)
    at_load = set(sources)
    serve(driver, 5)
    assert len(set(sources) - at_load) > 8
    driver.backend.close()
