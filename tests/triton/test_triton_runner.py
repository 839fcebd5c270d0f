"""The GPU's road with its own kernels: steps captured with sampling inside, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch
from steps import Driver

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from fake_gpu import CPU, FakeGpu

from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.triton_ops import TritonOps
from bireme.backends.cuda.triton_sampler import TritonSampler
from bireme.backends.cuda.weights import DenseLoader
from bireme.core.config import EngineConfig
from bireme.core.request import SamplingParams
from bireme.models.checkpoint import open_checkpoint

CONFIG = EngineConfig(max_num_seqs=2, max_num_batched_tokens=2, max_model_len=64, kv_cache_memory=1 << 19)
KERNELS = {"ops": TritonOps, "sampler": TritonSampler, "captures": True}
WARM = SamplingParams(temperature=1.0, top_k=40, repetition_penalty=1.2, logprobs=2)


def run(tiny, device=None, **how):
    """Two sequences, of which one asks much of the sampler; then one."""
    torch.set_num_threads(1)
    checkpoint = open_checkpoint(tiny("llama").folder)
    road = Road(DenseLoader(checkpoint, torch.float32, CPU), **how)
    drive = Driver(TorchBackend(checkpoint, CONFIG, road, device, capture_seconds=0.0))
    tracks = [drive.add(range(40, 46), row=1), drive.add([5, 6, 7], WARM, row=0, seed=3)]
    drive.generate(tracks, 4)
    drive.generate(tracks[1:], 6)
    return drive, tracks


def test_captured_steps_say_the_same(tiny):
    _, wanted = run(tiny)
    drive, tracks = run(tiny, device=FakeGpu(), **KERNELS)
    assert [track.made for track in tracks] == [track.made for track in wanted]
    found, expected = tracks[1].logprobs, wanted[1].logprobs
    assert [each.logprob for each in found] == pytest.approx([each.logprob for each in expected], rel=1e-4)
    graphs = drive.backend._graphs
    assert graphs.captured == (2, 1) and graphs.replays == 3 + 2
    inside = [cell.cell_contents for work in graphs._work for cell in work.__closure__]
    steps = [each for each in inside if type(each).__name__ == "TorchStep"]
    # the launches' own arrays live with the graph, and grids and splits come from the longest context that may be
    assert [step.memo["attention"].singles.tolist() for step in steps] == [[0, 1], [0]]
    assert {length for step in steps for length in step.host.context_lens.tolist()} == {64}
