"""Two ranks on the GPU's own road: planes of some of the blocks, kernels over some of the heads, the draw in graphs."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from steps import Driver
from tiny import random_weights, tiny_config, write_gguf

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda.quantized import QuantizedLinear
from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.tensor_parallel.backend import ParallelBackend
from bireme.backends.cuda.tensor_parallel.workers import Workers
from bireme.backends.cuda.weights import DenseLoader
from bireme.core.config import EngineConfig
from bireme.core.request import SamplingParams
from bireme.models.checkpoint import open_checkpoint

TESTS = Path(__file__).parents[1]
CONFIG = EngineConfig(max_num_seqs=1, max_num_batched_tokens=2, max_model_len=32, kv_cache_memory=1 << 18)
WARM = SamplingParams(temperature=1.0, top_k=40, repetition_penalty=1.2)


def talk(backend):
    """A greedy sequence, then one that asks much of the sampler, for which graphs are captured anew."""
    drive = Driver(backend)
    tracks = [drive.add(range(40, 43), row=0), drive.add([5], WARM, row=0, seed=3)]
    for track in tracks:
        drive.generate([track], 1, chunk=2)
        # two in flight: only the devices know what the second goes on from
        first, second = (drive.submit([(track, 1)]) for _ in range(2))
        drive.collect(first)
        drive.collect(second)
    return [track.made for track in tracks]


@pytest.mark.slow
def test_kernels_on_two_ranks(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))))
    torch.set_num_threads(1)
    config = tiny_config("qwen3", num_layers=1, vocab_size=129, tie_embeddings=True)
    path = write_gguf(tmp_path / "tiny.gguf", config, random_weights(config), type_of=lambda name: "Q8_0")
    checkpoint = open_checkpoint(path)
    wanted = talk(TorchBackend(checkpoint, CONFIG, Road(DenseLoader(checkpoint, torch.float32, torch.device("cpu")))))
    workers = Workers(2, threads=1, timeout=200.0)
    two = ParallelBackend(checkpoint, CONFIG, lambda: workers, 2, builder="parallel_builders:kernels")
    try:
        decoder, graphs = two._inner._decoder, two._inner._graphs
        assert isinstance(decoder.head.part, QuantizedLinear) and decoder.head.part.parts[0].rows == 65
        assert decoder.head.part.parts[0] is decoder.embed.part.table
        assert talk(two) == wanted
        assert graphs.captured == (1,) and graphs.replays >= 4
    finally:
        two.close()
