"""``TritonOps`` and planar weights as the backend uses them, in Triton's interpreter."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from steps import Driver
from triton_setup import CPU, block_weight, close, fill, reference_ops, shape, step_of

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda import quantized as layers
from bireme.backends.cuda.quantized import PlanarLoader
from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.triton_ops import TritonOps
from bireme.backends.cuda.triton_sampler import TritonSampler
from bireme.backends.cuda.weights import DenseLinear, DenseLoader
from bireme.core.config import EngineConfig
from bireme.core.request import SamplingParams
from bireme.models.checkpoint import open_checkpoint
from bireme.models.weight import Weight


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8, torch.float8_e4m3fn])
def test_a_mixed_step(dtype):
    config = shape(4, 2, 64)
    reference, step = reference_ops(config, dtype), step_of([(33, 1), (20, 5), (0, 1)])
    fill(reference.kv, step)
    ops = TritonOps(config, reference.kv, *reference.ropes)
    q = torch.randn(7, 4, 64)
    close(ops.attention(q, reference.layer(), step), reference.attention(q, reference.layer(), step), 8)
    windowed = reference.layer(9)
    close(ops.attention(q, windowed, step), reference.attention(q, windowed, step), 8)


@pytest.mark.parametrize("name", ["qwen3", "gemma3"])
def test_a_model_says_the_same(tiny, name):
    """A chunked prompt and decodes beside it, one of them drawn by chance."""
    made = []
    for parts in ({}, {"ops": TritonOps, "sampler": TritonSampler}):
        checkpoint = open_checkpoint(tiny(name).folder)
        road = Road(DenseLoader(checkpoint, torch.float32, CPU), **parts)
        backend = TorchBackend(checkpoint, EngineConfig(block_size=16), road)
        driver = Driver(backend)
        tracks = [driver.add(range(40, 58), row=0), driver.add([5, 6, 7], SamplingParams(seed=4), row=1)]
        made.append(driver.generate(tracks, 2, chunk=16))
    assert made[0] == made[1]


def fake_checkpoint(kinds: dict[str, str]) -> SimpleNamespace:
    weights = {name + ".weight": block_weight(kind, 9, 256)[0] for name, kind in kinds.items()}
    return SimpleNamespace(names=lambda: iter(weights), weight=weights.__getitem__, weight_bytes=1)


def test_layers_of_mixed_types():
    """Fused parts may differ in type; few, some and many rows agree with the decoded weights."""
    kinds = {"q": "Q4_K", "v": "Q6_K", "k": "Q4_0"}
    checkpoint = fake_checkpoint(kinds)
    layer = PlanarLoader(checkpoint, torch.float32, CPU).linear("q", "k", "v")
    weights = np.concatenate([block_weight(kinds[name], 9, 256)[1] for name in "qkv"])
    dense = torch.from_numpy(weights)
    assert isinstance(layer, layers.QuantizedLinear)
    for count in (0, 1, 5, 130):
        x = torch.randn(count, 256) / 16
        assert torch.allclose(layer(x), x @ dense.T, atol=1e-3, rtol=1e-4), count


def test_a_large_weight_is_decoded_in_parts(monkeypatch):
    monkeypatch.setattr(layers, "SCRATCH_ELEMENTS", 1000)
    layer = PlanarLoader(fake_checkpoint({"w": "Q8_0"}), torch.float32, CPU).linear("w")
    x = torch.randn(130, 256) / 16
    wanted = x @ torch.from_numpy(block_weight("Q8_0", 9, 256)[1]).T
    assert torch.allclose(layer(x), wanted, atol=1e-3, rtol=1e-4)


def test_a_tied_head_shares_the_embeddings_planes():
    loader = PlanarLoader(fake_checkpoint({"embed": "Q6_K"}), torch.float32, CPU)
    embedding = loader.embedding("embed")
    held = loader.nbytes
    head = loader.linear("embed")
    assert loader.nbytes == held and head.parts[0] is embedding.table
    values = block_weight("Q6_K", 9, 256)[1]
    assert (embedding(torch.tensor([8, 0])).numpy() == values[[8, 0]]).all()


def test_what_has_no_planes_is_dense():
    checkpoint = fake_checkpoint({"b": "Q4_0"})
    dense = Weight("a", (9, 256), "F16", np.ones((9, 256), np.float16))
    stored = checkpoint.weight
    checkpoint.weight = lambda name: dense if name == "a.weight" else stored(name)
    layer = PlanarLoader(checkpoint, torch.float32, CPU).linear("a", "b")
    assert isinstance(layer, DenseLinear) and layer.weight.shape == (18, 256)
