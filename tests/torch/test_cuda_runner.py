"""The runner's road on a GPU, over a device that keeps a GPU's order and computes on the CPU."""

from __future__ import annotations

import logging

import numpy as np
import pytest
import torch
from fake_gpu import CPU, FakeGpu
from steps import Driver
from torch.utils._python_dispatch import TorchDispatchMode

from bireme.backends.cuda.buffers import ALIGNMENT, DecodeInputs, Sender, layout
from bireme.backends.cuda.graphs import batch_sizes
from bireme.backends.cuda.memory import GRAPH_BYTES, planned_weights
from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.trial import small_step
from bireme.backends.cuda.weights import DenseLoader
from bireme.bench.gpu_models import checkpoint
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import Request, SamplingParams
from bireme.models.checkpoint import open_checkpoint

WARM = SamplingParams(temperature=1.0)


class Loader(DenseLoader):
    """In float32 on the CPU."""

    def __init__(self, checkpoint):
        torch.set_num_threads(1)
        super().__init__(checkpoint, torch.float32, CPU)


def backend(tiny, device=None, *, name="llama", captures=True, capture_seconds=0.0, loader=Loader, **config):
    source = open_checkpoint(tiny(name).folder)
    settings = EngineConfig(**{"max_num_seqs": 8, "max_num_batched_tokens": 64, **config})
    return TorchBackend(source, settings, Road(loader(source), captures=captures), device, capture_seconds)


def driver(tiny, device=None, **config) -> Driver:
    return Driver(backend(tiny, device, **{"kv_cache_memory": 1 << 20, **config}))


def prompts(to: Driver, count: int):
    return [to.add(range(40 + 3 * n, 45 + 5 * n), row=(3 * n + 1) % 8) for n in range(count)]


def test_sizes_are_few_and_reach_the_most():
    assert batch_sizes(64) == (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64)
    assert batch_sizes(256)[11:] == (80, 96, 112, 128, 160, 192, 224, 256)
    assert batch_sizes(5) == (1, 2, 4, 5) and batch_sizes(1) == (1,) and batch_sizes(70)[-2:] == (64, 70)


def test_sequences_come_and_go(tiny):
    """Sizes change from step to step, and rows are taken over."""
    made = []
    for device in (None, FakeGpu()):
        drive = driver(tiny, device)
        tracks = prompts(drive, 5)
        drive.generate(tracks[:2], 3)
        drive.generate(tracks, 6)
        late = [drive.add([7, 8], row=tracks[1].row), drive.add([9], WARM, row=tracks[2].row)]
        drive.generate([tracks[0], *late], 9)
        made.append([track.made for track in [*tracks, *late]])
    assert made[0] == made[1]
    assert sorted(drive.backend._graphs.captured) == [2, 4, 8]
    assert sum(graph.replays for graph in device.graphs) == drive.backend._graphs.replays > 10


@pytest.mark.parametrize("name", ["mistral", "qwen3", "gemma3"])
@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8", "fp8"])
def test_windows_norms_and_codes(tiny, name, kv_cache_dtype):
    made = []
    for device in (None, FakeGpu()):
        drive = driver(tiny, device, name=name, kv_cache_dtype=kv_cache_dtype)
        made.append(drive.generate(prompts(drive, 3), 40))
    assert made[0] == made[1]


def test_two_steps_in_flight(tiny):
    """The second takes its tokens from the first on the device; the first's results are copied after it has run."""
    wanted = driver(tiny)
    wanted = wanted.generate(prompts(wanted, 3), 9)
    drive = driver(tiny, FakeGpu())
    tracks = prompts(drive, 3)
    sent = [drive.submit([(track, track.pending) for track in tracks])]
    for _ in range(8):
        sent.append(drive.submit([(track, 1) for track in tracks]))
        if len(sent) == 2:
            assert not sent[0].ticket.done()
            drive.collect(sent.pop(0))
    for each in sent:
        drive.collect(each)
    assert [track.made for track in tracks] == wanted


def test_padding_writes_nothing(tiny):
    drive = driver(tiny, FakeGpu())
    tracks = prompts(drive, 3)
    drive.generate(tracks, 1)
    pools = drive.backend._ops.kv.arrays
    mine = sorted({block for track in tracks for block in track.blocks})
    null = drive.backend.info.num_blocks
    others = [n for n in range(null) if n not in mine]
    for pool in pools:
        assert len(pool) == null + 1
        pool[others] = 7
    before = drive.backend._last_tokens.clone()
    drive.generate(tracks, 7)
    assert drive.backend._graphs.captured == (8, 4)
    assert len({block for track in tracks for block in track.blocks}) == len(mine), "nobody needed another block"
    assert all((pool[others] == 7).all() for pool in pools)
    rows = [n for n in range(8) if n not in {track.row for track in tracks}]
    assert torch.equal(drive.backend._last_tokens[rows], before[rows])


def test_copies_of_blocks_come_before_the_replay(tiny):
    drive = driver(tiny, FakeGpu())
    first = drive.add(range(40, 50), row=0)
    drive.generate([first], 1)
    other = drive.add(range(40, 50), row=1)
    other.ids, other.computed, other.begun = [*first.ids], 10, False
    other.blocks = [drive.free.pop()]
    drive.step([(first, 1), (other, 1)], copies=[(first.blocks[0], other.blocks[0])])
    drive.generate([first, other], 6)
    assert first.made == other.made
    assert drive.backend._graphs.replays == 5


def test_the_largest_is_captured_first(tiny):
    device = FakeGpu()
    made = backend(tiny, device, kv_cache_memory=1 << 20, capture_seconds=60.0)
    assert made._graphs.captured == (8, 4, 2, 1)
    assert [len(graph.outputs[0]) for graph in device.graphs] == [8, 4, 2, 1]
    lazy = driver(tiny, FakeGpu())
    assert lazy.backend._graphs.captured == ()
    lazy.generate(prompts(lazy, 2), 3)
    assert lazy.backend._graphs.captured == (8, 2)


def test_capturing_while_serving_disturbs_nobody(tiny):
    """A size is captured between two steps, over inputs that still hold the last step's rows."""
    wanted = driver(tiny)
    wanted = wanted.generate(prompts(wanted, 5), 8)
    drive = driver(tiny, FakeGpu())
    tracks = prompts(drive, 5)
    drive.generate(tracks[:3], 2)
    drive.generate(tracks[:1], 3)
    drive.generate(tracks, 8)
    assert [track.made for track in tracks] == wanted


def test_what_cannot_be_captured_runs_without(tiny, caplog):
    wanted = driver(tiny)
    wanted = wanted.generate(prompts(wanted, 3), 6)
    device = FakeGpu()
    refused = iter([True, True, False])
    device.refuse = lambda: next(refused, True)
    with caplog.at_level(logging.WARNING):
        drive = driver(tiny, device)
        assert drive.generate(prompts(drive, 3), 6) == wanted
    assert drive.backend._graphs.replays == 0 and drive.backend._graphs.captured == ()
    lines = [record.message for record in caplog.records if "without a graph" in record.message]
    assert len(lines) == 2, "each size is tried once"
    assert lines[0] == "decode steps of 8 sequences can't be captured and run without a graph: operation not " \
        "permitted when stream is capturing"  # fmt: skip


def test_more_sequences_than_rows_or_chunks_are_not_replayed(tiny):
    drive = driver(tiny, FakeGpu())
    tracks = prompts(drive, 2)
    drive.generate(tracks, 2)
    before = drive.backend._graphs.replays
    long = drive.add(range(60, 80), row=7)
    drive.step([(tracks[0], 1), (long, 1)])  # one token of a prompt, which samples nothing
    drive.step([(tracks[0], 1), (long, 5)])
    assert drive.backend._graphs.replays == before


class NoSync(TorchDispatchMode):
    """Refuses what would make a GPU's host wait: values read back, and shapes that depend on them."""

    FORBIDDEN = ("_local_scalar_dense", "nonzero", "masked_select", "unique", "is_nonzero", "equal")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        assert name not in self.FORBIDDEN, f"{name} waits for the device"
        if name in ("index", "index_put", "index_put_"):
            assert all(each is None or each.dtype != torch.bool for each in args[1]), "a mask as an index waits"
        return func(*args, **(kwargs or {}))


def test_the_guard_notices():
    x = torch.arange(4)
    for bad in (lambda: x[1].item(), lambda: x[x > 1], lambda: x.nonzero(), lambda: int(x.sum()), lambda: bool(x[0])):
        with pytest.raises(AssertionError, match="waits"), NoSync():
            bad()


def test_nothing_waits_for_the_device(tiny, monkeypatch):
    def forbidden(self, *args, **kwargs):
        raise AssertionError("a tensor is read back")

    device = FakeGpu()
    drive = driver(tiny, device)
    tracks = [*prompts(drive, 3), drive.add([4, 5], WARM, row=0)]
    drive.generate(tracks, 2)
    late = drive.add(range(80, 99), row=5)
    for work in ([(track, 1) for track in tracks], [*((track, 1) for track in tracks), (late, 19)]):
        device.may_wait = False
        with monkeypatch.context() as patch, NoSync():
            for name in ("cpu", "tolist", "item"):
                patch.setattr(torch.Tensor, name, forbidden)
            sent = drive.submit(work)
            assert not sent.ticket.done()
        device.may_wait = True
        drive.collect(sent)


def test_a_step_goes_up_in_one_copy(tiny):
    drive = driver(tiny, FakeGpu())
    tracks = prompts(drive, 3)
    drive.generate(tracks, 2)
    sender = drive.backend._sender
    before = sender.copies
    drive.step([(track, 1) for track in tracks])
    drive.step([(drive.add(range(80, 99), row=0), 19), (tracks[0], 1)])
    assert sender.copies == before + 2 and sender.waits == 0


def test_a_buffer_that_is_still_read_is_not_written():
    device = FakeGpu()
    sender = Sender(device, turns=3)
    arrays = [{"a": np.full(5, n, np.int32), "b": np.arange(n, dtype=np.int64).reshape(-1, 1)} for n in range(1, 6)]
    for n, each in enumerate(arrays, 1):
        sent = sender.send(each)
        assert sent["a"].tolist() == [n] * 5 and sent["b"].tolist() == [[i] for i in range(n)]
        assert sent["b"].dtype == torch.int64 and sent["b"].storage_offset() * 8 % ALIGNMENT == 0
        assert sender.waits == max(0, n - 3)
    assert layout(arrays[0])[1] == 2 * ALIGNMENT
    free = Sender(FakeGpu(behind=1))
    for each in arrays:
        free.send(each)
    assert free.waits == 0, "the copies were over"


def test_padding_belongs_to_nobody():
    inputs = DecodeInputs(Sender(FakeGpu()), CPU, most=4, width=3, block_size=2, null_block=9)
    batch = small_step(2)
    one = type(batch)(
        **{name: getattr(batch, name) for name in ("step_id", "new_rows")},
        token_ids=np.array([-1], np.int32),
        positions=np.array([4], np.int32),
        slots=np.array([6]),
        query_start=np.array([0, 1], np.int32),
        context_lens=np.array([5], np.int32),
        block_tables=np.array([[8, 1, 3, -1, -1]], np.int32),
        rows=np.array([2], np.int32),
        samples=np.ones(1, bool),
        copies=np.zeros((0, 2), np.int32),
    )
    inputs.fill(one, 2)
    assert inputs.token_ids.tolist() == [-1, 0, 0, 0] and inputs.positions.tolist() == [4, 0, 0, 0]
    assert inputs.slots.tolist() == [6, 19, 18, 19] and inputs.context_lens.tolist() == [5, 1, 1, 1]
    assert inputs.rows.tolist() == [2, 4, 4, 4]
    assert inputs.tables.tolist() == [[8, 1, 3], [9, 9, 9], [9, 9, 9], [9, 9, 9]]
    inputs.clear()
    assert inputs.slots.tolist() == [18, 19, 18, 19] and inputs.tables[:, 0].tolist() == [9] * 4


# memory


@pytest.mark.parametrize("fraction", [1.0, 0.98])
def test_the_pool_takes_what_is_left(tiny, caplog, fraction):
    """Of the free memory's share: weights, measured work and graphs come first, the pool has the rest but a block."""
    free, mib = 36 << 20, 1 << 20
    with caplog.at_level(logging.INFO):
        made = backend(tiny, FakeGpu(free=free), gpu_memory_fraction=fraction)
    info = made.info
    graphs = mib + 4 * GRAPH_BYTES + 2 * 4 * 8 * 32  # a decode step in their own memory, their lists, two tables
    taken = info.weight_bytes + mib + graphs
    block = info.block_size * info.kv_bytes_per_token
    assert 0 <= int(free * fraction) - taken - info.num_blocks * block < block
    assert f"({info.num_blocks * 16:,} tokens, 0 conversations of 4,096)" in caplog.text
    assert f"{fraction:.0%} of the 0.04 GiB that were free of 0.08 GiB" in caplog.text
    assert "graphs: decode steps of no number of sequences, 0.00 GiB of memory" in caplog.text


def test_without_graphs_their_memory_is_the_pools(tiny):
    with_graphs = backend(tiny, FakeGpu(free=36 << 20), gpu_memory_fraction=1.0)
    without = backend(tiny, FakeGpu(free=36 << 20), gpu_memory_fraction=1.0, captures=False)
    assert without._graphs is None and without.info.num_blocks > with_graphs.info.num_blocks
    plain = Driver(without)
    assert plain.generate(prompts(plain, 2), 4)


def test_what_does_not_fit_is_refused_before_it_is_loaded(tiny):
    class Untouched(Loader):
        def linear(self, *names):
            raise AssertionError("loaded")

        embedding = norm = linear

    with pytest.raises(ValueError, match="does not fit: its weights take .* of the 0.00 GiB that were free of"):
        backend(tiny, FakeGpu(free=1 << 16), loader=Untouched)
    with pytest.raises(ValueError, match="kv_cache_memory is 1.00 GiB, .* are left .* raise gpu_memory_fraction"):
        backend(tiny, FakeGpu(), loader=Untouched, kv_cache_memory=1 << 30)


# the engine over it


def test_an_abort_in_flight_disturbs_nobody(tiny):
    """Its row and blocks are given to the next at once, while a step with it is still under way."""
    params = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
    asked = {name: Request(name, tuple(range(30 + n, 60 + 3 * n)), params) for n, name in enumerate("abcd")}
    found = {}
    for device in (None, FakeGpu()):
        made = backend(tiny, device, max_num_seqs=3, kv_cache_memory=200 << 10)
        engine = Engine(made, made._config, check_every_step=True)
        for request in asked.values():
            engine.add(request)
        tokens = {name: [] for name in asked}
        while engine.has_work():
            for output in engine.step():
                tokens[output.request_id] += output.token_ids
            if len(tokens["b"]) == 3:
                engine.abort("b")
        del tokens["b"]
        found[device is None] = tokens
        assert device is None or made._graphs.replays > 5
    assert found[True] == found[False] and all(len(each) == 12 for each in found[True].values())


def test_what_is_quantised_is_counted_as_it_stays():
    """Llama-3.1-8B as Q4_K_M: 8.03 billion weights in 4.91 GB, 16.06 GB where they are decoded."""
    source = checkpoint("Llama-3.1-8B", True)
    assert planned_weights(source, 2, quantized=True) == pytest.approx(4.91e9, rel=0.01)
    assert planned_weights(source, 2, quantized=False) == pytest.approx(16.06e9, rel=0.01)
    assert planned_weights(checkpoint("Llama-3.1-8B", False), 2, quantized=True) == pytest.approx(16.06e9, rel=0.01)
