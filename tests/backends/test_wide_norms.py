"""Gemma's norms are 1 plus what the file holds, and 16 bits would round the sum: loaders keep them in float32."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from backend_kinds import NO_MLX

from bireme.backends.cuda.memory import planned_weights
from bireme.backends.cuda.road import gpu_dtype
from bireme.backends.cuda.weights import DenseLoader
from bireme.models.checkpoint import open_checkpoint
from bireme.models.decoder import Decoder


@pytest.mark.parametrize("name, wide", [("gemma3", True), ("qwen3", False)])
def test_in_torch(tiny, name, wide):
    checkpoint = open_checkpoint(tiny(name).folder)
    loader = DenseLoader(checkpoint, torch.bfloat16, torch.device("cpu"))
    decoder = Decoder(checkpoint.config, loader)
    first = decoder.layers[0]
    assert first.qkv.weight.dtype == torch.bfloat16
    for norm in (first.input_norm, first.q_norm, decoder.norm):
        assert norm.dtype == (torch.float32 if wide else torch.bfloat16)
    if wide:
        np.testing.assert_array_equal(decoder.norm, checkpoint.weight("model.norm.weight").data)
    assert loader.nbytes == planned_weights(checkpoint, 2, quantized=False)


@NO_MLX
@pytest.mark.mlx
@pytest.mark.parametrize("name, wide", [("gemma3", True), ("qwen3", False)])
def test_in_mlx(tiny, name, wide):
    from bireme.backends.mlx.library import mx
    from bireme.backends.mlx.weights import MlxLoader

    checkpoint = open_checkpoint(tiny(name).folder)
    loader = MlxLoader(checkpoint, mx.bfloat16, quantized=False)
    decoder = Decoder(checkpoint.config, loader)
    assert decoder.layers[0].input_norm.dtype == (mx.float32 if wide else mx.bfloat16)
    assert loader.nbytes == loader.planned_bytes()


def test_a_gpu_without_bfloat16_computes_in_what_holds_the_model(tiny):
    gemma, qwen = (open_checkpoint(tiny(name).folder).config for name in ("gemma3", "qwen3"))
    assert [gpu_dtype(config, True) for config in (gemma, qwen)] == [torch.bfloat16] * 2
    assert [gpu_dtype(config, False) for config in (gemma, qwen)] == [torch.float32, torch.float16]
