"""How far fast arithmetic moves the next-token distribution: ``make kl``.

The reference is Bireme's exact road (float32 throughout, over the file's own dequantised weights). For every position
of the text it takes KL(exact || other) in nats, for Bireme's fast road and for llama.cpp on the same GGUF file. The
text is that of ``bench.text``, cut into windows that each start a new sequence.

With ``--kv-cache-dtype int8`` the roads are Bireme's own over an int8 KV cache; "exact, int8 KV" shows what the cache
alone does.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from ..backends.options import BackendOptions
from ..backends.select import load_backend, usable_cores
from ..core.config import KV_CACHE_DTYPES, EngineConfig
from ..core.step import StepBatch
from ..models.checkpoint import open_checkpoint
from ..models.hub import resolve
from .llama_c import LlamaModel
from .machine import describe, line
from .percentile import percentile
from .text import load_tokenizer, real_text


class Road(Protocol):
    """Something that gives logits [T, V] for T tokens of a new sequence."""

    def logits(self, token_ids: list[int]) -> NDArray[np.float32]: ...

    def close(self) -> None: ...


class BiremeRoad:
    """Bireme's torch backend at one precision."""

    def __init__(self, model: Path, precision: str, window: int, threads: int, kv_cache_dtype: str = "auto") -> None:
        config = EngineConfig(
            max_model_len=window, max_num_seqs=1, max_num_batched_tokens=window, kv_cache_dtype=kv_cache_dtype
        )
        options = BackendOptions(cpu_precision=precision, threads=threads)
        self._backend: Any = load_backend("cpu", open_checkpoint(model), config, options)
        self._size = config.block_size

    def logits(self, token_ids: list[int]) -> NDArray[np.float32]:
        count = len(token_ids)
        positions = np.arange(count, dtype=np.int32)
        batch = StepBatch(
            step_id=0,
            token_ids=np.array(token_ids, np.int32),
            positions=positions,
            slots=positions.astype(np.int64),
            query_start=np.array([0, count], np.int32),
            context_lens=np.array([count], np.int32),
            block_tables=np.arange(-(-count // self._size), dtype=np.int32)[None],
            rows=np.zeros(1, np.int32),
            samples=np.zeros(1, np.bool_),
            copies=np.zeros((0, 2), np.int32),
        )
        return cast(NDArray[np.float32], self._backend.logits(batch).float().cpu().numpy())

    def close(self) -> None:
        self._backend.close()


@dataclass(frozen=True, slots=True)
class Divergence:
    """One road against the exact one, over all positions."""

    road: str
    tokens: int
    mean: float  # nats
    p99: float
    same_top: float  # share of positions whose most likely token is the same
    perplexity: float  # of the text's own next tokens; the exact road's stands beside it
    exact_perplexity: float


class Compared:
    """Divergences of one road, gathered window by window."""

    def __init__(self, road: str) -> None:
        self.road = road
        self.kl: list[float] = []
        self._same = self._next = 0
        self._loss = self._exact_loss = 0.0

    def add(self, exact: NDArray[np.float32], other: NDArray[np.float32], token_ids: list[int]) -> None:
        """``exact`` and ``other`` are log-probabilities [T, V] after each of ``token_ids``."""
        divergence = np.asarray(np.sum(np.exp(exact) * (exact - other), axis=1, dtype=np.float64))
        self.kl += [float(value) for value in divergence]
        self._same += int((exact.argmax(axis=1) == other.argmax(axis=1)).sum())
        at = np.arange(len(token_ids) - 1)
        self._loss -= float(other[at, token_ids[1:]].sum(dtype=np.float64))
        self._exact_loss -= float(exact[at, token_ids[1:]].sum(dtype=np.float64))
        self._next += len(at)

    def result(self) -> Divergence:
        count = len(self.kl)
        return Divergence(
            road=self.road,
            tokens=count,
            mean=float(np.mean(self.kl)),
            p99=percentile(self.kl, 99) or 0.0,
            same_top=self._same / count,
            perplexity=float(np.exp(self._loss / self._next)),
            exact_perplexity=float(np.exp(self._exact_loss / self._next)),
        )


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Natural log-probabilities over the last axis."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    return cast(NDArray[np.float32], shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True)))


def compare(exact: Road, others: dict[str, Road], windows: list[list[int]]) -> list[Divergence]:
    """Run every window on every road."""
    compared = {name: Compared(name) for name in others}
    for number, window in enumerate(windows):
        reference = log_softmax(exact.logits(window))
        for name, road in others.items():
            compared[name].add(reference, log_softmax(road.logits(window)), window)
        means = ", ".join(f"{name} {np.mean(found.kl):.5f}" for name, found in compared.items())
        print(f"{number + 1} of {len(windows)} windows, mean KL so far: {means}", file=sys.stderr, flush=True)
    return [found.result() for found in compared.values()]


def windows_of(token_ids: list[int], size: int) -> Iterator[list[int]]:
    """Consecutive windows of ``size`` tokens; a rest of fewer is left out."""
    for start in range(0, len(token_ids) - size + 1, size):
        yield token_ids[start : start + size]


def main() -> int:
    parser = argparse.ArgumentParser(prog="bireme.bench.quality", description=__doc__)
    parser.add_argument("--model", default="demo", help="a GGUF file, or a name for one")
    parser.add_argument("--tokens", type=int, default=20_480)
    parser.add_argument("--window", type=int, default=512)
    parser.add_argument("--threads", type=int, default=usable_cores())
    parser.add_argument("--kv-cache-dtype", choices=KV_CACHE_DTYPES, default=EngineConfig().kv_cache_dtype)
    parser.add_argument("--json", help="also write the figures to this file")
    asked = parser.parse_args()
    model, machine = resolve(asked.model), describe()
    ids = load_tokenizer(model).encode(real_text(asked.tokens * 5), add_special_tokens=False)[: asked.tokens]
    windows = list(windows_of(ids, asked.window))
    exact = BiremeRoad(model, "exact", asked.window, asked.threads)
    others = roads(model, asked)
    found = compare(exact, others, windows)
    for road in (exact, *others.values()):
        road.close()
    digest = hashlib.sha256(np.array(ids, np.int32).tobytes()).hexdigest()[:16]
    print(markdown(line(machine), found, asked.window, digest))
    if asked.json:
        content = {
            "machine": machine,
            "text_sha256": digest,
            "window": asked.window,
            "roads": [asdict(f) for f in found],
        }
        Path(asked.json).write_text(json.dumps(content, indent=1), encoding="utf-8")
    if asked.kv_cache_dtype != "auto":
        return 0
    ours, theirs = (next(f for f in found if f.road == name) for name in others)
    good = ours.mean <= 2 * theirs.mean
    verdict = "kept" if good else "BROKEN"
    print(f"Bireme's mean is {ours.mean / theirs.mean:.2f} times llama.cpp's; the bound is 2: {verdict}")
    return not good


def roads(model: Path, asked: argparse.Namespace) -> dict[str, Road]:
    """What is compared with the exact road."""

    def bireme(precision: str, kv_cache_dtype: str) -> Road:
        return BiremeRoad(model, precision, asked.window, asked.threads, kv_cache_dtype)

    if (kept := asked.kv_cache_dtype) != "auto":
        return {
            f"Bireme, exact, {kept} KV": bireme("exact", kept),
            f"Bireme, fast, {kept} KV": bireme("fast", kept),
            "Bireme, fast": bireme("fast", "auto"),
        }
    return {"Bireme, fast": bireme("fast", "auto"), "llama.cpp": LlamaModel(model, asked.window, asked.threads)}


def markdown(machine: str, found: list[Divergence], window: int, digest: str) -> str:
    """The figures as a table, with what they were measured on."""
    lines = [
        machine,
        "",
        f"{found[0].tokens} positions in windows of {window}; text (token ids) SHA-256 {digest}; "
        f"perplexity of the exact road {found[0].exact_perplexity:.4f}",
        "",
        "| road | KL mean | KL p99 | same top token | perplexity |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {f.road} | {f.mean:.5f} | {f.p99:.4f} | {f.same_top:.1%} | {f.perplexity:.4f} |"
        for f in sorted(found, key=lambda f: f.mean)
    ]
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
