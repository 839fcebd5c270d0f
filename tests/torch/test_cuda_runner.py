"""The runner's road on a GPU, over a device that keeps a GPU's order and computes on the CPU."""

from __future__ import annotations

import torch
from fake_gpu import CPU, FakeGpu
from steps import Driver

from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.weights import DenseLoader
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint


def backend(tiny, name="llama", device=None, **config):
    checkpoint = open_checkpoint(tiny(name).folder)
    settings = EngineConfig(**{"max_num_seqs": 8, "kv_cache_memory": 4 << 20, **config})
    return TorchBackend(checkpoint, settings, DenseLoader(checkpoint, torch.float32, CPU), device=device)


def test_it(tiny):
    made = []
    for device in (None, FakeGpu()):
        b = backend(tiny, device=device)
        driver = Driver(b)
        tracks = [driver.add(range(40, 58), row=0), driver.add([5, 6, 7], row=1), driver.add([9], row=5)]
        made.append(driver.generate(tracks, 9, chunk=16))
    assert made[0] == made[1]
    assert b._graphs.replays
