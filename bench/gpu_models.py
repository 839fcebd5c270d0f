"""Models of known shapes with random weights, made where they are used: for measuring, with nothing to download.

They come as any checkpoint does: a ``TensorSource`` of random tensors behind ``OpenCheckpoint``, dense or with GGUF's
Q4_K_M mixture of types.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from ..backends.cuda.weights import DenseLoader
from ..models.checkpoint import OpenCheckpoint
from ..models.config import ModelConfig, RopeConfig
from ..models.ggml_types import BY_NAME
from ..models.names import EMBEDDING, HEAD, expected_shapes
from ..models.source import StoredTensor
from ..models.weight import TokenizerFiles, Weight

_LLAMA3 = RopeConfig(500000.0, "llama3", 8.0, 8192, 1.0, 4.0)
_QWEN3 = RopeConfig(1000000.0)


def _qwen3(hidden: int, feed_forward: int, layers: int, heads: int, kv_heads: int, tied: bool = False) -> ModelConfig:
    return ModelConfig(
        "qwen3", 151936, hidden, feed_forward, layers, heads, kv_heads, 128, 40960, 1e-6, _QWEN3, tied, qk_norm=True
    )


MODELS = {
    "Llama-3.1-8B": ModelConfig("llama", 128256, 4096, 14336, 32, 32, 8, 128, 131072, 1e-5, _LLAMA3),
    "Qwen3-8B": _qwen3(4096, 12288, 36, 32, 8),
    "Qwen3-0.6B": _qwen3(1024, 3072, 28, 16, 8, tied=True),
    # attention, norms and head as they are; eight active experts of 768 as one dense layer of their width
    "Qwen3-30B-A3B, dense parts": _qwen3(2048, 8 * 768, 48, 32, 4),
    "tiny": ModelConfig("llama", 256, 256, 256, 1, 4, 1, 64, 512, 1e-5),
}
ROWS = 256  # different random rows of a quantised matrix; they repeat after that
#: By type: where a block's float16 scale lies, where its minimum, and what the scale is to bring the values near 1.
_SCALES = {"Q4_K": (0, 2, 1 / 257), "Q6_K": (208, None, 1 / 1370)}


def kind_of(name: str, config: ModelConfig) -> str:
    """The type that llama.cpp's Q4_K_M gives a tensor: Q6_K for the head, and in half of the layers for v and down."""
    if len(expected_shapes(config)[name]) == 1:
        return "F32"
    if name == HEAD or (name == EMBEDDING and config.tie_embeddings):
        return "Q6_K"
    if "v_proj" in name or "down_proj" in name:
        layer, eighth = int(name.split(".")[2]), config.num_layers // 8
        if layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2:
            return "Q6_K"
    return "Q4_K"


class RandomSource:
    """A ``TensorSource`` (see ``models/source.py``). Dense tensors carry no values: ``RandomLoader`` makes them."""

    def __init__(self, config: ModelConfig, quantized: bool) -> None:
        self.path = "random weights"
        self.tensors: Mapping[str, StoredTensor] = {
            name: _stored(name, shape, kind_of(name, config) if quantized else "BF16")
            for name, shape in expected_shapes(config).items()
        }

    def load(self, name: str) -> Weight:
        stored = self.tensors[name]
        if stored.kind in ("BF16", "F32"):
            nothing = np.zeros((), np.uint16 if stored.kind == "BF16" else np.float32)
            return Weight(name, stored.shape, stored.kind, np.broadcast_to(nothing, stored.shape))
        return block_weight(name, stored.shape, stored.kind)

    def file_name(self, name: str) -> str:
        return name

    def advise(self, done: bool) -> None:
        pass

    def close(self) -> None:
        pass


def block_weight(name: str, shape: tuple[int, ...], kind: str, seed: int = 0) -> Weight:
    """A matrix of random blocks whose values spread as those of a trained one do: by one over the root of the width."""
    rows, columns = shape
    block, (scale_at, least_at, scale) = BY_NAME[kind], _SCALES[kind]
    count = columns // block.block
    made = np.random.default_rng(seed).integers(0, 256, (min(rows, ROWS) * count, block.size), dtype=np.uint8)
    d = scale * columns**-0.5
    made[:, scale_at : scale_at + 2] = np.array([d], "<f2").view(np.uint8)
    if least_at is not None:
        made[:, least_at : least_at + 2] = np.array([d * 7.5], "<f2").view(np.uint8)  # half of the largest code
    return Weight(name, shape, kind, np.resize(made.reshape(min(rows, ROWS), -1), (rows, count * block.size)))


def _stored(name: str, shape: tuple[int, ...], kind: str) -> StoredTensor:
    block = BY_NAME[kind]
    return StoredTensor(name, shape, kind, int(np.prod(shape)) // block.block * block.size)


def checkpoint(model: str, quantized: bool) -> OpenCheckpoint:
    """``model`` of MODELS with random weights."""
    config = MODELS[model]
    return OpenCheckpoint(RandomSource(config, quantized), model, config, TokenizerFiles(), frozenset(), {})


def loader(source: OpenCheckpoint, quantized: bool, dtype: torch.dtype, device: torch.device) -> DenseLoader:
    """A loader that fills dense tensors at random on the device; quantised ones it takes as from any file."""
    base: type[DenseLoader] = DenseLoader
    if quantized:
        from ..backends.cuda.quantized import PlanarLoader

        base = PlanarLoader
    made: Any = type("RandomLoader", (_RandomDense, base), {})(source, dtype, device)
    return made  # type: ignore[no-any-return]


class _RandomDense(DenseLoader):
    def _decode(self, weight: Weight) -> torch.Tensor:
        self.count(weight)
        values = torch.randn(weight.shape, dtype=self.dtype, device=self.device)
        return values * weight.shape[1] ** -0.5 if values.ndim == 2 else 1 + 0.1 * values
