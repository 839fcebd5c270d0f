"""The MLX backend with its Metal kernels in use, each launch run by the harness: level 0 is the oracle."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from metal_harness import NEEDS_COMPILER, Tensor, run

if importlib.util.find_spec("mlx") is None:
    pytest.skip("mlx is not installed: pip install 'mlx[cpu]'", allow_module_level=True)

from steps import Driver, LogitTap
from tiny import random_weights, tiny_config, write_gguf

from bireme.backends.mlx import kv, ops, packing
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.metal import linear
from bireme.backends.mlx.metal.kernel import Launch, available, dtype_name
from bireme.backends.mlx.metal.linear import BlockEmbedding, BlockLinear
from bireme.backends.mlx.metal.matmul import MOST_BLOCK
from bireme.backends.mlx.runner import MlxBackend
from bireme.backends.mlx.weights import MlxLoader
from bireme.backends.options import BackendOptions
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.models.weight import Weight

pytestmark = [NEEDS_COMPILER, pytest.mark.mlx]


def as_tensor(array: Any) -> Tensor:
    name = dtype_name(array.dtype)
    return Tensor(np.array(array.view(mx.uint16) if name == "bfloat16" else array), name)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The kernels' names as they are launched; they run in the harness, as if Metal were here."""
    names: list[str] = []

    def on_cpu(launch: Launch, *inputs: Any) -> list[Any]:
        names.append(launch.kernel.files[-1])
        found = run(launch, *(as_tensor(array) for array in inputs))
        kinds = [getattr(mx, kind) for _, kind in launch.outputs]
        return [mx.array(each).astype(kind) for each, kind in zip(found, kinds, strict=True)]

    monkeypatch.setattr(Launch, "run", on_cpu)
    for module in (kv, ops, packing):
        monkeypatch.setattr(module, "available", lambda: True)
    monkeypatch.setattr(linear, "affine_pays", lambda: True)
    yield names


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three query heads to a KV head, normed."""
    config = tiny_config("qwen3", num_heads=6, num_kv_heads=2)
    path = tmp_path_factory.mktemp("metal") / "model.gguf"
    return write_gguf(path, config, random_weights(config), type_of=lambda name: "Q4_0")


def logits(path: Path, kv_cache_dtype: str) -> list[np.ndarray]:
    """Of a mixed batch: a prompt whole, in chunks, decodes, joins; a window on one of two layers."""
    checkpoint = open_checkpoint(path)
    checkpoint.config = replace(checkpoint.config, windows=(None, 20))
    options = BackendOptions(mlx_weights="quantized", mlx_dtype="float32")
    settings = EngineConfig(max_num_seqs=8, kv_cache_memory=4 << 20, kv_cache_dtype=kv_cache_dtype)
    backend = MlxBackend(checkpoint, settings, options)
    try:
        driver = Driver(backend)
        tap = LogitTap(driver)
        random = np.random.default_rng(0)
        first, second, third = (
            driver.add([int(i) for i in random.integers(0, 300, n)], row=row) for row, n in enumerate((30, 41, 5))
        )
        driver.step([(first, 30)])
        driver.step([(second, 36), (first, 1)])
        driver.step([(first, 1), (third, 5), (second, 3)])
        driver.step([(second, 2), (first, 1), (third, 1)])
        for _ in range(3):
            driver.step([(third, 1), (second, 1), (first, 1)])
        return tap.logits
    finally:
        backend.close()
        checkpoint.close()


@pytest.mark.parametrize("kv_cache_dtype, rounding", [("auto", 2e-5), ("int8", 2e-2)])
def test_steps_through_the_kernels_are_level_0(model, launched, monkeypatch, kv_cache_dtype, rounding):
    """A key whose last bits differ may become another code: one in 127 of a few elements."""
    with_kernels = logits(model, kv_cache_dtype)
    assert {"paged_attention", "affine_matmul", "norm_rope"} <= set(launched)
    assert ("quantise" in launched) == (kv_cache_dtype == "int8")
    monkeypatch.undo()
    assert not available()
    for found, wanted in zip(with_kernels, logits(model, kv_cache_dtype), strict=True):
        np.testing.assert_allclose(found, wanted, atol=rounding, rtol=0)


class OneMatrix:
    """A checkpoint of one Q6_K matrix, and no biases."""

    weight_bytes = 1

    def __init__(self, rows: int) -> None:
        random = np.random.default_rng(0)
        blocks = random.integers(0, 256, (rows, 2, 210), np.uint8)
        blocks[:, :, 208:] = random.uniform(1e-4, 2e-4, (rows, 2, 1)).astype("<f2").view(np.uint8)
        self.only = Weight("w.weight", (rows, 512), "Q6_K", blocks.reshape(rows, -1))

    def names(self) -> Iterator[str]:
        return iter(["w.weight"])

    def weight(self, name: str) -> Weight:
        return self.only


@pytest.mark.parametrize("tokens", [1, MOST_BLOCK, MOST_BLOCK + 1])
def test_blocks_stay_as_the_file_has_them(launched, monkeypatch, tokens):
    monkeypatch.setattr(linear, "DENSE_ELEMENTS", 512 * 16)  # several dense pieces
    checkpoint = OneMatrix(40)
    loader = MlxLoader(checkpoint, mx.float32, True)
    handle = loader.linear("w")
    assert isinstance(handle, BlockLinear)
    assert loader.nbytes == checkpoint.only.data.nbytes and not loader.requantised
    values = checkpoint.only.dequantize()
    x = np.random.default_rng(1).standard_normal((tokens, 512)).astype(np.float32)
    np.testing.assert_allclose(np.array(handle(mx.array(x))), x @ values.T, atol=2e-5, rtol=1e-4)
    assert set(launched) == {"block_matmul" if tokens <= MOST_BLOCK else "block_dequantize"}


def test_a_table_decodes_only_rows_asked_for(launched):
    checkpoint = OneMatrix(300)
    table = MlxLoader(checkpoint, mx.float32, True).embedding("w")
    assert isinstance(table, BlockEmbedding)
    index = [7, 299, 0, 7]
    np.testing.assert_array_equal(np.array(table(mx.array(index))), checkpoint.only.dequantize()[index])
