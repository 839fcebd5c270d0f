"""The engine on a GPU: decoding at several batch sizes, a mixed load, and what the host spends on a step."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ..backends.cuda.runner import TorchBackend
from ..core.config import EngineConfig
from ..core.engine import Engine
from ..core.request import Request, SamplingParams
from ..models.names import EMBEDDING
from .gpu_models import MODELS, checkpoint
from .gpu_setting import Row, Setting

CONTEXT = 1000
BATCHES = (1, 8, 32, 128, 256)
#: (model, quantised), the ones that matter most first: what the time does not reach is left out.
DECODED = (
    ("Llama-3.1-8B", False),
    ("Llama-3.1-8B", True),
    ("Qwen3-0.6B", False),
    ("Qwen3-8B", True),
    ("Qwen3-8B", False),
    ("Qwen3-30B-A3B, dense parts", False),
    ("Qwen3-30B-A3B, dense parts", True),
)
MIXED_MODEL = "Qwen3-0.6B"
STEPS = 100  # measured at each batch size
WARM_STEPS = 10


def requests(setting: Setting) -> list[tuple[tuple[int, ...], int]]:
    """The mixed load: 256 prompts of 100 to 1,024 random tokens, each with 100 to 1,024 tokens to make."""
    random = np.random.default_rng(0)
    count, low, high = (4, 3, 9) if setting.tiny else (64 if setting.quick else 256, 100, 1024)
    vocab = MODELS[setting.model(MIXED_MODEL)].vocab_size
    lengths = random.integers(low, high + 1, (count, 2)).tolist()
    return [(tuple(random.integers(0, vocab, n).tolist()), out) for n, out in lengths]


def engine(setting: Setting, model: str, quantized: bool, most: int, context: int) -> Engine:
    config = EngineConfig(
        max_num_seqs=most,
        max_num_batched_tokens=max(most, 64 if setting.tiny else 8192),
        max_model_len=context,
        kv_cache_memory=(8 << 20) if setting.tiny else None,
        max_stall_ms=10_000.0,
        max_queue=1 << 20,
        enable_prefix_caching=False,
    )
    return Engine(setting.backend(model, quantized, config), config)


class Decoding:
    """Sequences that decode without end; more of them join."""

    def __init__(self, made: Engine, context: int) -> None:
        self.engine, self.context = made, context
        self.lengths: dict[str, int] = {}  # tokens of each sequence so far
        self._random = np.random.default_rng(1)

    def grow(self, batch: int) -> None:
        """Until ``batch`` sequences decode."""
        vocab = self.engine.backend.info.vocab_size
        while len(self.lengths) < batch:
            name = f"r{len(self.lengths)}"
            prompt = tuple(self._random.integers(0, vocab, self.context).tolist())
            params = SamplingParams(temperature=0.0, max_tokens=1 << 30, ignore_eos=True)
            self.engine.add(Request(name, prompt, params))
            self.lengths[name] = self.context
        while min(self.lengths.values()) <= self.context:
            self.step()

    def step(self) -> int:
        """Tokens that a step gave."""
        made = 0
        for output in self.engine.step():
            if output.finish_reason is not None:
                raise RuntimeError(f"a sequence ended: {output.finish_reason}, {output.error}")
            self.lengths[output.request_id] += len(output.token_ids)
            made += len(output.token_ids)
        return made

    @property
    def tokens(self) -> int:
        """In all contexts together."""
        return sum(self.lengths.values())


def decode(setting: Setting) -> Iterator[Row]:
    """Tokens per second at each batch size, as a share of what the memory's bandwidth allows."""
    most = setting.bandwidth  # measured while there is room for it
    for model, quantized in DECODED[:2] if setting.tiny or setting.quick else DECODED:
        if quantized and not setting.kernels:
            continue
        context = 9 if setting.tiny else CONTEXT
        batches = ((1,) if quantized else (1, 2)) if setting.tiny else (1, 32) if setting.quick else BATCHES
        steps = 1 if setting.tiny else STEPS
        room = context + (2 * steps + WARM_STEPS) * len(batches) + 256
        made = engine(setting, model, quantized, max(batches), min(room, MODELS[setting.model(model)].max_position))
        try:
            name = f"{model} {'Q4_K_M' if quantized else 'dense'}"
            yield from _decode(setting, made, name, batches, context, steps, most)
        finally:
            made.close()


def _decode(
    setting: Setting,
    made: Engine,
    name: str,
    batches: tuple[int, ...],
    context: int,
    steps: int,
    bandwidth: float,
) -> Iterator[Row]:
    info, work = made.backend.info, Decoding(made, context)
    read = info.weight_bytes - unread_bytes(setting, made)
    for batch in batches:
        needed = batch * (context + len(batches) * 2 * steps)
        if needed > info.num_blocks * info.block_size:
            yield Row("decode", f"{name}, batch {batch}", 0.0, "tok/s", note="does not fit this GPU's memory")
            continue
        work.grow(batch)
        for _ in range(1 if setting.tiny else WARM_STEPS):
            work.step()
        before, start, tokens = work.tokens, time.perf_counter(), 0
        for _ in range(steps):
            tokens += work.step()
        rate = tokens / (time.perf_counter() - start)
        held = (before + work.tokens) / 2
        most = batch * bandwidth / (read + held * info.kv_bytes_per_token)
        note = f"mean context {held / batch:.0f}"
        yield Row("decode", f"{name}, batch {batch}", rate, "tok/s", rate / most, "the roofline", note)


def unread_bytes(setting: Setting, made: Engine) -> int:
    """Of the weights: an embedding that is no head as well, of which a step reads a few rows."""
    source = checkpoint(made.backend.info.model_name, "Q" in made.backend.info.quantization)
    stored = source.stored(EMBEDDING)
    if source.config.tie_embeddings:
        return 0
    return stored.nbytes if stored.kind != "BF16" else stored.nbytes // 2 * setting.dtype.itemsize


def mixed(setting: Setting) -> Iterator[Row]:
    """All requests at once; tokens per second until the last has ended."""
    asked = requests(setting)
    made = engine(setting, MIXED_MODEL, False, min(256, len(asked)), 2304 if not setting.tiny else 64)
    try:
        _drain(made, [((1, 2, 3), 4)], "warm")
        start = time.perf_counter()
        tokens = _drain(made, asked, "r")
        seconds = time.perf_counter() - start
        stats = made.stats()
    finally:
        made.close()
    note = f"{tokens:,} tokens in {seconds:.2f} s, {stats.steps:,} steps, {stats.preemptions} preemptions"
    yield Row("mixed", f"{MIXED_MODEL}, {len(asked)} requests", tokens / seconds, "tok/s", note=note)


def _drain(made: Engine, asked: list[tuple[tuple[int, ...], int]], prefix: str) -> int:
    """Serve all of ``asked``; the tokens made."""
    for n, (prompt, out) in enumerate(asked):
        params = SamplingParams(temperature=0.0, max_tokens=out, ignore_eos=True)
        made.add(Request(f"{prefix}{n}", prompt, params))
    tokens = 0
    while made.has_work():
        tokens += sum(len(output.token_ids) for output in made.step())
    return tokens


def host(setting: Setting) -> Iterator[Row]:
    """The host's part of a decode step, median microseconds, beside what the device takes."""
    batches = (1, 2) if setting.tiny else (1, 32, 256)
    context = 9 if setting.tiny else 100
    steps = 3 if setting.tiny else 200
    made = engine(setting, MIXED_MODEL, False, max(batches), context + 4 * steps * len(batches))
    work, parts = Decoding(made, context), _Parts(made)
    try:
        for batch in batches:
            work.grow(batch)
            for _ in range(2):
                work.step()
            parts.clear()
            for _ in range(steps):
                work.step()
            for what, micros in parts.medians().items():
                yield Row("host", f"{MIXED_MODEL}, batch {batch}: {what}", micros, "us")
    finally:
        made.close()


class _Parts:
    """Times the parts of an engine's step."""

    def __init__(self, made: Engine) -> None:
        self._seconds: dict[str, list[float]] = {}
        scheduler: Any = made.scheduler
        backend: Any = made.backend
        assert isinstance(backend, TorchBackend)
        scheduler.schedule = self._timed("schedule and build", scheduler.schedule)
        scheduler.commit = self._timed("commit", scheduler.commit)
        scheduler.cost.observe = self._device(scheduler.cost.observe)
        backend.submit = self._timed("submit", backend.submit)  # type: ignore[method-assign]

    def clear(self) -> None:
        self._seconds.clear()

    def medians(self) -> dict[str, float]:
        return {what: statistics.median(each) * 1e6 for what, each in self._seconds.items()}

    def _timed(self, what: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*args: Any) -> Any:
            start = time.perf_counter()
            result = call(*args)
            self._seconds.setdefault(what, []).append(time.perf_counter() - start)
            return result

        return timed

    def _device(self, call: Callable[..., Any]) -> Callable[..., Any]:
        def observed(tokens: int, pairs: int, elapsed: float) -> Any:
            self._seconds.setdefault("the device's step", []).append(elapsed)
            return call(tokens, pairs, elapsed)

        return observed
