"""What each rank holds of a model: together all of it, nothing twice, and in the file's own encoding."""

from __future__ import annotations

import dataclasses
import itertools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from cpu_weights import random_weight
from quantised_folders import CASES, make_folder
from tiny import random_weights, tiny_config, write_gguf

from bireme.backends.cuda.device import Device
from bireme.backends.cuda.memory import planned_weights
from bireme.backends.cuda.tensor_parallel.checkpoint import RankCheckpoint
from bireme.backends.cuda.tensor_parallel.device import ParallelDevice
from bireme.backends.cuda.tensor_parallel.ranks import Ranks
from bireme.backends.cuda.tensor_parallel.shares import COLUMNS, FIRST, Shares
from bireme.backends.cuda.tensor_parallel.slices import cut_columns
from bireme.backends.cuda.tensor_parallel.workers import Workers
from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint
from bireme.models.ggml_types import BY_NAME, DECODABLE
from bireme.models.weight import CheckpointError
from bireme.server.loading import load_engine
from bireme.server.settings import EngineSpec

RNG = np.random.default_rng(0)


def joined(checkpoint, size: int) -> dict[str, np.ndarray]:
    """Every tensor put together from what the ranks hold."""
    shares = Shares.of(checkpoint, size)
    ranks = [RankCheckpoint(checkpoint, shares, rank) for rank in range(size)]
    found = {}
    for name in checkpoint.names():
        cut = shares.cut(name, 0)
        parts = [rank.weight(name).dequantize() for rank in ranks if name in set(rank.names())]
        if cut is None or cut.axis == FIRST:
            assert len(parts) == (size if cut is None else 1)
            found[name] = parts[0]
        else:
            spans = dict.fromkeys(shares.cut(name, rank).span for rank in range(size))  # of repeated heads, one
            chosen = [parts[[shares.cut(name, rank).span for rank in range(size)].index(span)] for span in spans]
            found[name] = np.concatenate(chosen, 1 if cut.axis == COLUMNS else 0)
    return found


@pytest.mark.parametrize("case", CASES)
def test_quantised_folders(tmp_path, case):
    folder = make_folder(case, tmp_path)
    checkpoint = open_checkpoint(folder.path)
    found = joined(checkpoint, 2)
    assert found.keys() == folder.values.keys()
    for name, values in folder.values.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
def test_files(tmp_path, size, kind):
    config = tiny_config("qwen2", num_heads=8, num_kv_heads=2, vocab_size=323, intermediate_size=160)
    weights = random_weights(config) | {"model.layers.0.self_attn.o_proj.bias": np.arange(64, dtype=np.float32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf", config, weights, type_of=lambda name: kind))
    for name, values in joined(checkpoint, size).items():
        np.testing.assert_array_equal(values, checkpoint.weight(name).dequantize(), err_msg=name)


def test_what_the_headers_say_of_a_share(tmp_path):
    """Sizes that memory is planned by are those that come; another rank's tensor is nobody else's."""
    config = tiny_config("qwen2", num_heads=8, num_kv_heads=2)
    weights = random_weights(config) | {"model.layers.0.self_attn.o_proj.bias": np.zeros(64, np.float32)}
    checkpoint = open_checkpoint(write_gguf(tmp_path / "a.gguf", config, weights, type_of=lambda name: "Q8_0"))
    shares = Shares.of(checkpoint, 2)
    ranks = [RankCheckpoint(checkpoint, shares, rank) for rank in range(2)]
    for rank in ranks:
        for name in rank.names():
            weight, stored = rank.weight(name), rank.stored(name)
            assert (weight.shape, weight.kind, weight.data.nbytes) == (stored.shape, stored.kind, stored.nbytes), name
    assert sum(planned_weights(rank, 4, True) for rank in ranks) < 1.02 * planned_weights(checkpoint, 4, True)
    with pytest.raises(CheckpointError, match="rank 1 holds nothing of tensor model.layers.0.self_attn.o_proj.bias"):
        ranks[1].weight("model.layers.0.self_attn.o_proj.bias")
    assert ranks[0].config.num_heads == 4 and ranks[0].config.hidden_size == 64


@pytest.mark.parametrize("kind", sorted(DECODABLE))
def test_columns_of_every_type(kind):
    block = BY_NAME[kind].block
    weight = random_weight(kind, 5, 4 * max(block, 8), RNG)
    whole = weight.dequantize()
    for start, stop in ((0, 2 * block), (2 * block, 4 * block), (block, 3 * block)):
        part = cut_columns(weight, start, stop)
        assert part.kind == kind and part.data.flags.c_contiguous
        np.testing.assert_array_equal(part.dequantize(), whole[:, start:stop])
    if block > 1:
        part = cut_columns(weight, block // 2, 2 * block)
        assert part.kind == "F32" and part.shape == (5, 2 * block - block // 2)
        np.testing.assert_array_equal(part.dequantize(), whole[:, block // 2 : 2 * block])
    assert cut_columns(weight, 0, weight.shape[1]) is weight


@pytest.mark.parametrize("heads, kv_heads, inner, unit", [(32, 8, 14336, 256), (28, 4, 18944, 256), (40, 8, 13824, 32)])
def test_shares_tile_the_model(heads, kv_heads, inner, unit):
    """Every rank's query heads find their key-value head with it, and no two hold one column."""
    config = tiny_config(num_heads=heads, num_kv_heads=kv_heads, intermediate_size=inner, vocab_size=32001)
    for size in (n for n in range(1, heads + 1) if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)):
        shares = Shares(config, size, unit)
        for spans, end in ((shares.heads, heads), (shares.inner, inner), (shares.vocabulary, 32001)):
            bounds = [spans(rank) for rank in range(size)]
            assert bounds[0][0] == 0 and bounds[-1][1] == end
            assert all(one[1] == two[0] for one, two in itertools.pairwise(bounds))
        widths = [stop - start for start, stop in map(shares.inner, range(size))]
        assert max(widths) - min(widths) <= unit and not any(width % unit for width in widths)
        for rank in range(size):
            first, last = shares.kv_heads(rank)
            used = {head * kv_heads // heads for head in range(*shares.heads(rank))}
            assert used == set(range(first, last)), (size, rank)
            mine = shares.config_of(rank)
            assert mine.num_heads // mine.num_kv_heads == (heads // kv_heads if kv_heads >= size else heads // size)


@pytest.mark.parametrize(
    "changes, size, message",
    [
        (
            {"intermediate_size": 512}, 3,
            "tensor_parallel is 3, and tiny has 4 attention heads, which 3 devices can't share evenly; it .* 1, 2, 4$",
        ),
        (
            {"num_heads": 12, "num_kv_heads": 4, "intermediate_size": 512}, 6,
            "tiny has 4 key-value heads, which 6 devices can neither share evenly nor repeat evenly; .* 1, 2, 4, 12$",
        ),
        (
            {"num_heads": 8, "intermediate_size": 96}, 4,
            r"tiny has 3 blocks of 32 columns in its feed-forward \(96\), too few for 4 devices; it can be 1, 2$",
        ),
    ],
)  # fmt: skip
def test_what_divides_badly_is_refused_before_loading(tmp_path, changes, size, message):
    config = tiny_config(**changes)
    path = write_gguf(tmp_path / "tiny.gguf", config, random_weights(config), type_of=lambda name: "Q8_0")
    options = BackendOptions(cpu_precision="exact", tensor_parallel=size)
    with pytest.raises(ValueError, match=message):
        load_backend("cpu", open_checkpoint(path), EngineConfig(), options)


def test_where_it_is_refused(tiny, monkeypatch):
    checkpoint, config = open_checkpoint(tiny("llama").folder), EngineConfig()
    with pytest.raises(ValueError, match="tensor_parallel is 0; it must be at least 1"):
        BackendOptions(tensor_parallel=0)
    with pytest.raises(ValueError, match="tensor_parallel is 2; on a CPU it works with cpu_precision 'exact' only"):
        load_backend("cpu", checkpoint, config, BackendOptions(tensor_parallel=2))
    monkeypatch.setattr("bireme.backends.select.resolve_device", lambda device: device)
    with pytest.raises(ValueError, match="tensor_parallel is 2, which the device here, mlx, can't do"):
        load_backend("mlx", checkpoint, config, BackendOptions(tensor_parallel=2))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match="tensor_parallel is 2, and PyTorch sees 1 GPU here"):
        load_backend("cuda", checkpoint, config, BackendOptions(tensor_parallel=2))
    spec = EngineSpec(str(tiny("llama").folder), "sim", tensor_parallel=2)
    with pytest.raises(ValueError, match="tensor_parallel is 2, which the device here, sim, can't do"):
        load_engine(spec, checkpoint, lambda done, total: None)


def test_threads_are_dealt_out_where_they_were_asked_for(tiny, monkeypatch):
    """On a GPU too, for what the ranks do on the CPU; without being asked torch has its own way there."""
    seen = []

    def workers(*given):
        seen.append(given)
        raise RuntimeError("far enough")

    checkpoint, before = open_checkpoint(tiny("llama").folder), torch.get_num_threads()
    monkeypatch.setattr("bireme.backends.select.resolve_device", lambda device: device)
    monkeypatch.setattr("bireme.backends.cuda.tensor_parallel.workers.Workers", workers)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    for device, options in (
        ("cuda", BackendOptions(tensor_parallel=2)),
        ("cuda", BackendOptions(tensor_parallel=2, threads=6)),
        ("cpu", BackendOptions("exact", tensor_parallel=2, threads=6)),
    ):
        with pytest.raises(RuntimeError, match="far enough"):
            load_backend(device, checkpoint, EngineConfig(), options)
    torch.set_num_threads(before)
    assert seen == [(2, "cuda", None), (2, "cuda", 3), (2, "cpu", 3)]


def test_a_group_within_a_group_is_refused(monkeypatch):
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    with pytest.raises(RuntimeError, match="part of a torch.distributed group already; use a process of its own"):
        Ranks.join(0, 2, torch.device("cpu"), "nowhere", 1.0)


class Alone:
    """A control that answers as told."""

    def __init__(self, least=None, gone=None) -> None:
        self.answer, self.gone, self.waited = least, gone, []

    def least(self, value):
        return value if self.answer is None else min(value, self.answer)

    def check(self, waited=0.0):
        self.waited.append(waited)
        if self.gone is not None:
            raise self.gone


class Never(Device):
    """A GPU whose work never ends."""

    captures = True

    def fetch(self, tensors):
        return SimpleNamespace(done=lambda: False, wait=lambda: pytest.fail("waited for the device"))

    def clock(self):
        return SimpleNamespace(stop=lambda: None, passed=lambda: False, elapsed=lambda: pytest.fail("waited"))

    def capture(self, work):
        return SimpleNamespace(outputs=work())


def test_nobody_waits_for_the_dead():
    gone = RuntimeError("rank 1 is gone")
    device = ParallelDevice(Never(torch.device("cpu")), Alone(gone=gone))
    clock = device.clock()
    clock.stop()
    for wait in (device.fetch(()).wait, clock.elapsed):
        with pytest.raises(RuntimeError, match="rank 1 is gone"):
            wait()


def test_what_ranks_agree_on():
    device = ParallelDevice(Never(torch.device("cpu")), Alone(least=5))
    assert device.agree(9) == 5 and device.agree(3) == 3
    assert device.capture(lambda: ()).outputs == ()
    alone = ParallelDevice(Never(torch.device("cpu")), Alone(least=0))
    with pytest.raises(RuntimeError, match="another rank can't"):
        alone.capture(lambda: ())


def test_a_step_that_takes_too_long():
    workers = Workers.__new__(Workers)
    workers._workers, workers._timeout, workers.failed = [], 2.0, False
    workers.check(1.9)
    with pytest.raises(RuntimeError, match="a step has not ended after 2 s: some rank or its device hangs"):
        workers.check(2.1)
    assert workers.failed


def test_the_info_says_how_many(tiny):
    info = load_backend("cpu", open_checkpoint(tiny("llama").folder), EngineConfig(), BackendOptions("exact", 1)).info
    assert dataclasses.asdict(info)["ranks"] == 1
