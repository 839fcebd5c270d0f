"""A model split over two processes says what it says in one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from steps import Driver
from tiny import random_weights, tiny_config, write_gguf
from tiny_models import MIXTURES

from bireme.backends.cuda.road import Road
from bireme.backends.cuda.runner import TorchBackend
from bireme.backends.cuda.tensor_parallel.backend import ParallelBackend
from bireme.backends.cuda.tensor_parallel.link import DEFAULT_BUILDER
from bireme.backends.cuda.tensor_parallel.workers import WorkerError, WorkerLoadError, Workers
from bireme.backends.cuda.weights import DenseLoader
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine, EngineDeadError
from bireme.core.request import FinishReason, Request, SamplingParams
from bireme.models.checkpoint import open_checkpoint

TESTS = Path(__file__).parents[1]
CPU = torch.device("cpu")
WARM = SamplingParams(temperature=1.0, top_p=0.9, repetition_penalty=1.2, presence_penalty=0.3)
LOADED = 200.0  # seconds that a machine under load may take for what takes a few
SETTINGS = {"max_num_seqs": 8, "max_num_batched_tokens": 64, "kv_cache_memory": 1 << 20}


class Pair:
    """Two ranks, this process and another, kept for many models; a new pair after a failure."""

    def __init__(self) -> None:
        self.workers: Workers | None = None
        self.started = 0

    def __call__(self) -> Workers:
        if self.workers is None or self.workers.ranks is None:
            self.workers = Workers(2, threads=1, timeout=LOADED)
            self.started += 1
        return self.workers

    def close(self) -> None:
        if self.workers is not None:
            self.workers.close()


@pytest.fixture(scope="module")
def pair():
    threads, path = torch.get_num_threads(), os.environ.get("PYTHONPATH")
    torch.set_num_threads(1)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(TESTS), path)))
    made = Pair()
    yield made
    made.close()
    torch.set_num_threads(threads)
    os.environ.pop("PYTHONPATH") if path is None else os.environ.update(PYTHONPATH=path)


@pytest.fixture
def both(pair):
    """``both(path, **config)``: the model in one process, and in two."""
    made = []

    def build(path, builder=DEFAULT_BUILDER, **config):
        settings = EngineConfig(**{**SETTINGS, **config})
        checkpoint = open_checkpoint(path)
        made.append(ParallelBackend(checkpoint, settings, pair, 2, builder=builder, keep_workers=True))
        one = TorchBackend(checkpoint, settings, Road(DenseLoader(checkpoint, torch.float32, CPU)))
        return one, made[-1]

    yield build
    for each in made:
        each.close()


def talk(backend) -> list[list[int]]:
    """Chunks, decodes, draws with a seed, sequences that join later, and one in a row that another had."""
    drive = Driver(backend)
    tracks = [drive.add(range(40 + 3 * n, 46 + 5 * n), row=n) for n in range(3)]
    warm = drive.add([7, 8, 9], WARM, row=5, seed=11)
    drive.generate(tracks, 3, chunk=5)
    drive.generate([*tracks, warm], 9)
    late = drive.add(range(100, 123), row=tracks[0].row)
    drive.generate([late, warm], 15)
    return [track.made for track in (*tracks, warm, late)]


def logits(backend) -> np.ndarray:
    drive = Driver(backend)
    batch = drive._batch([(drive.add(range(50, 75), row=1), 25), (drive.add([5, 6], row=2), 2)], ())
    return backend.logits(batch).numpy()


def agree(one, two) -> None:
    np.testing.assert_allclose(logits(two), logits(one), rtol=0, atol=1e-4 * np.abs(logits(one)).max())
    assert talk(two) == talk(one)


ARCHITECTURES = [
    "llama", "llama_tied", "llama_mha_dim24", "llama3_rope", "mistral", "qwen2", "qwen3", "gemma3", *MIXTURES
]  # fmt: skip


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_architectures(tiny, both, name):
    """Heads in groups and alone, windows, biases on the projections, norms on heads, a head that is the embedding,
    experts."""
    one, two = both(tiny(name).folder)
    agree(one, two)
    assert two.info.ranks == 2 and one.info.ranks == 1
    assert two.info.kv_bytes_per_token * 2 == one.info.kv_bytes_per_token
    assert two.info.weight_bytes < 0.6 * one.info.weight_bytes
    assert two.info.vocab_size == one.info.vocab_size and two.info.end_ids == one.info.end_ids


@pytest.mark.parametrize("kept", ["int8", "fp8"])
def test_keys_in_codes(tiny, both, kept):
    one, two = both(tiny("qwen3").folder, kv_cache_dtype=kept)
    agree(one, two)
    assert two.info.kv_cache_dtype == one.info.kv_cache_dtype != "float32"


#: File types of matrices, and the heads' size: where o_proj is cut in the last, no block ends.
MIXES = {
    "Q4_0": (lambda name: "Q4_0", 16),
    "Q8_0 and Q5_1": (lambda name: "Q5_1" if "down" in name else "Q8_0", 16),
    "within blocks": (lambda name: "Q8_0", 24),
}


@pytest.mark.parametrize("kv_heads", [1, 2])
@pytest.mark.parametrize("mix", MIXES)
def test_blocks_stay_whole(tmp_path, both, caplog, mix, kv_heads):
    """For two ranks one key-value head, three blocks of feed-forward and 321 tokens; with biases."""
    type_of, dim = MIXES[mix]
    config = tiny_config("qwen2", num_kv_heads=kv_heads, vocab_size=321, head_dim=dim)
    path = write_gguf(tmp_path / "tiny.gguf", config, random_weights(config), type_of=type_of)
    one, two = both(path)
    agree(one, two)
    assert [layer.mlp.down.part.weight.shape[1] for layer in two._inner._decoder.layers] == [64] * 2
    assert two._inner._model.num_kv_heads == 1
    assert two.info.kv_bytes_per_token * kv_heads == one.info.kv_bytes_per_token
    assert ("2 matrices (model.layers.0.self_attn.o_proj.weight, ...) are decoded" in caplog.text) == (dim == 24)


def ahead(backend) -> list[list[int]]:
    """Each step is submitted before the tokens of the one before are known on the host."""
    drive = Driver(backend)
    tracks = [drive.add(range(40, 44), row=1), drive.add([5, 6], WARM, row=0, seed=3)]
    sent = [drive.submit([(track, track.pending) for track in tracks])]
    for _ in range(4):
        sent.append(drive.submit([(track, 1) for track in tracks]))
        drive.collect(sent.pop(0))
    drive.collect(sent.pop())
    return [track.made for track in tracks]


def test_all_go_on_with_what_rank_0_drew(tiny, both):
    one, two = both(tiny("llama").folder, "parallel_builders:drifts")
    assert ahead(two) == ahead(one)


def test_captured_steps(tiny, both):
    """The GPU's road: every size is captured at load, on all ranks; two steps in flight; the draw outside the graph."""
    one, two = both(tiny("llama").folder, "parallel_builders:graphs")
    agree(one, two)
    assert two._inner._graphs.captured == (8, 4, 2, 1) and two._inner._graphs.replays > 10
    assert two.info.max_in_flight == 2


def test_no_rank_replays_alone(tiny, both, caplog):
    one, two = both(tiny("llama").folder, "parallel_builders:refuses_graphs")
    assert two._inner._graphs.captured == (4, 2, 1)
    assert "decode steps of 8 sequences can't be captured and run without a graph: another rank can't" in caplog.text
    agree(one, two)


def test_four_ranks(tiny, pair):
    """Two for each key-value head."""
    pair.close()
    checkpoint, settings = open_checkpoint(tiny("llama").folder), EngineConfig(**SETTINGS)
    four = ParallelBackend(checkpoint, settings, lambda: Workers(4, threads=1, timeout=LOADED), 4)
    try:
        agree(TorchBackend(checkpoint, settings, Road(DenseLoader(checkpoint, torch.float32, CPU))), four)
        pids = four._workers.pids()
    finally:
        four.close()
    assert len(pids) == 3 and all(ended(pid) for pid in pids)


# the engine over it


def requests() -> dict[str, Request]:
    rng = np.random.default_rng(0)
    shared = tuple(int(i) for i in rng.integers(0, 320, 40))
    greedy = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
    warm = SamplingParams(temperature=1.0, seed=7, max_tokens=30, presence_penalty=0.5, ignore_eos=True)
    prompts = {f"r{n}": shared[: 40 - 3 * n] + tuple(range(60 + n, 70 + 4 * n)) for n in range(6)}
    return {name: Request(name, ids, warm if name == "r3" else greedy) for name, ids in prompts.items()}


def serve(engine: Engine, abort: str) -> dict[str, list[int]]:
    """All answers but that of ``abort``, which is given up after four tokens; requests join every other step."""
    waiting, tokens = list(requests().values()), {}
    for step in range(2000):
        if waiting and step % 2 == 0:
            engine.add(waiting.pop(0))
        for output in engine.step():
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
        if len(tokens.get(abort, ())) == 4:
            engine.abort(abort)
        if not waiting and not engine.has_work():
            del tokens[abort]
            return tokens
    raise AssertionError("never done")


@pytest.mark.parametrize("builder", [DEFAULT_BUILDER, "parallel_builders:graphs"])
def test_the_engine_notices_nothing(tiny, both, builder):
    """Joins, chunks, cached prefixes, copied blocks, preemptions and an abort, with and without steps in flight."""
    one, two = both(tiny("llama").folder, builder, max_num_seqs=4, kv_cache_memory=8 << 20)
    wanted = serve(Engine(one, one._config), "r2")
    blocks = 16 * two.info.kv_bytes_per_token * 14
    two.close()
    _, small = both(tiny("llama").folder, builder, max_num_seqs=4, kv_cache_memory=blocks)
    engine = Engine(small, one._config, check_every_step=True)
    assert small.info.num_blocks == 14
    assert serve(engine, "r2") == wanted and all(len(each) == 30 for each in wanted.values())
    assert engine.stats().preemptions > 0 and engine.stats().prompt_tokens_cached > 0


def test_pools_are_as_large_as_the_smallest(tiny, both):
    one, two = both(tiny("llama").folder, "parallel_builders:less_room")
    assert two.info.num_blocks == one.info.num_blocks  # half the bytes of half a token each
    talk(two)


# what goes wrong


def test_a_share_that_does_not_fit(tiny, both, pair):
    with pytest.raises(WorkerLoadError, match="rank 1: no room for the KV cache: 1 bytes, one block .* takes"):
        both(tiny("llama").folder, "parallel_builders:no_room")
    assert pair.workers.failed and pair.workers.pids() == []


def ended(pid: int) -> bool:
    """Whether a process is gone, soon."""
    deadline = time.monotonic() + LOADED
    while time.monotonic() < deadline:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
                return True
        except FileNotFoundError:
            return True
        time.sleep(0.05)
    return False


def test_a_rank_that_fails_says_why(tiny, both, pair):
    _, two = both(tiny("llama").folder, "parallel_builders:breaks")
    (pid,) = pair.workers.pids()
    drive = Driver(two)
    with pytest.raises(WorkerError, match="rank 1: RuntimeError: the third step is too much"):
        drive.generate([drive.add(range(9), row=0)], 9)
    two.close()
    assert ended(pid) and not torch.distributed.is_initialized()


def test_a_killed_rank_ends_the_engine(tiny, both, pair):
    """While it runs; the requests end with an error that says what happened, and nothing is left behind."""
    _, two = both(tiny("llama").folder)
    (pid,) = pair.workers.pids()
    engine = Engine(two, two._inner._config)
    for request in requests().values():
        engine.add(request)
    for _ in range(4):
        engine.step()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(EngineDeadError, match=rf"the process of rank 1 \(pid {pid}\) was ended by SIGKILL") as failure:
        engine.step()
    assert {output.finish_reason for output in failure.value.outputs} == {FinishReason.ERROR}
    engine.close()
    assert not torch.distributed.is_initialized()


def test_a_rank_that_hangs_is_not_waited_for(tiny, pair):
    """Its process is stopped, not gone: ending it needs more than a word."""
    pair.close()
    workers = Workers(2, threads=1, timeout=5.0)
    (pid,) = workers.pids()
    two = ParallelBackend(open_checkpoint(tiny("llama").folder), EngineConfig(**SETTINGS), lambda: workers, 2)
    drive = Driver(two)
    os.kill(pid, signal.SIGSTOP)
    try:
        with pytest.raises(WorkerError, match="a step has not ended after 5 s: some rank or its device hangs"):
            drive.generate([drive.add(range(9), row=1)], 2)
    finally:  # other tests of this process need its place among the ranks
        two.close()
    two.close()
    assert ended(pid)


def test_no_rank_outlives_rank_0(pair):
    script = (
        "import os, signal\n"
        "from bireme.backends.cuda.tensor_parallel.workers import Workers\n"
        "print(Workers(2, threads=1).pids()[0], flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, check=False, timeout=LOADED)
    assert done.returncode == -signal.SIGKILL
    assert ended(int(done.stdout))
