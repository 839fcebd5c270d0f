"""Greedy texts of one engine, and what another engine's text looks like to it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..backends.options import BackendOptions
from ..backends.select import load_backend
from ..core.config import EngineConfig
from ..core.engine import Engine
from ..core.request import Request, SamplingParams
from ..models.checkpoint import open_checkpoint
from .llama_c import LlamaModel
from .quality import BiremeRoad, Road

CONTEXT = 512


@dataclass(frozen=True, slots=True)
class Way:
    """One way of computing: an engine, a file and its settings."""

    name: str
    engine: str  # "bireme" or "llama.cpp"
    model: Path
    precision: str = "fast"  # Bireme's
    float32_attention: bool = False  # llama.cpp's
    chunk: int = CONTEXT  # prompt tokens computed at once
    together: bool = False  # all prompts at once; else one after the other


@dataclass(frozen=True, slots=True)
class Followed:
    """What an engine makes of given texts, position by position."""

    top: NDArray[np.int64]  # [P]: its most likely token
    gap: NDArray[np.float64]  # [P]: the logit of the first of two given tokens less that of the second


class Running:
    """A ``Way`` that is open: ``texts`` by its usual decoding, ``logits`` for any ids."""

    def __init__(self, way: Way, threads: int) -> None:
        self.way = way
        self._threads = threads
        self._road: Road | None = None

    def texts(self, prompts: Sequence[Sequence[int]], tokens: int, ends: frozenset[int]) -> list[list[int]]:
        """The greedy output ids of each prompt: ``tokens`` of them, or fewer where one of ``ends`` comes first."""
        if self.way.engine == "bireme":
            return _bireme_texts(self.way, self._threads, prompts, tokens)
        llama = self._llama()
        return [list(_llama_text(llama, prompt, tokens, ends)) for prompt in prompts]

    def logits(self, ids: Sequence[int]) -> NDArray[np.float32]:
        """[T, V]: the logits after each of ``ids``, a sequence of its own."""
        if self.way.engine != "bireme":
            return self._llama().logits(list(ids))
        if self._road is None:
            self._road = BiremeRoad(self.way.model, self.way.precision, CONTEXT, self._threads)
        return self._road.logits(list(ids))

    def close(self) -> None:
        if self._road is not None:
            self._road.close()
        self._road = None

    def _llama(self) -> LlamaModel:
        if not isinstance(self._road, LlamaModel):
            way = self.way
            self._road = LlamaModel(
                way.model, CONTEXT, self._threads, chunk=way.chunk, float32_attention=way.float32_attention
            )
        return self._road


def follow(
    running: Running, prompts: Sequence[Sequence[int]], texts: Sequence[Sequence[int]], pairs: NDArray[np.int64] | None
) -> tuple[Followed, NDArray[np.int64]]:
    """``running``'s view of every position of ``texts``; gaps are between ``pairs`` [P, 2], None: its own top two."""
    tops, gaps, own = [], [], []
    done = 0
    for prompt, text in zip(prompts, texts, strict=True):
        logits = running.logits([*prompt, *text[:-1]])[len(prompt) - 1 :]
        rows = np.arange(len(text))
        best = np.argpartition(logits, -2, axis=1)[:, -2:]
        order = np.argsort(-np.take_along_axis(logits, best, axis=1), axis=1)
        best = np.take_along_axis(best, order, axis=1)
        between = best if pairs is None else pairs[done : done + len(text)]
        tops.append(logits.argmax(axis=1))
        gaps.append(logits[rows, between[:, 0]].astype(np.float64) - logits[rows, between[:, 1]])
        own.append(best)
        done += len(text)
    return Followed(np.concatenate(tops), np.concatenate(gaps)), np.concatenate(own)


def _llama_text(llama: LlamaModel, prompt: Sequence[int], tokens: int, ends: frozenset[int]) -> Iterator[int]:
    logits = llama.logits(prompt)
    for count in range(tokens):
        token = int(logits[-1].argmax())
        yield token
        if token in ends or count + 1 == tokens:
            return
        logits = llama.extend([token], len(prompt) + count)


def _bireme_texts(way: Way, threads: int, prompts: Sequence[Sequence[int]], tokens: int) -> list[list[int]]:
    """Through the engine, as the server runs it."""
    rows = len(prompts) if way.together else 1
    config = EngineConfig(
        max_num_seqs=rows,
        max_model_len=CONTEXT,
        max_num_batched_tokens=max(way.chunk, rows),
        enable_prefix_caching=False,
    )
    checkpoint: Any = open_checkpoint(way.model)
    engine = Engine(load_backend("cpu", checkpoint, config, BackendOptions(way.precision, threads)), config)
    params = SamplingParams(max_tokens=tokens, temperature=0.0)
    texts: list[list[int]] = [[] for _ in prompts]
    for number, ids in enumerate(prompts):
        engine.add(Request(str(number), tuple(ids), params))
    while engine.has_work():
        for output in engine.step():
            if output.error:
                raise RuntimeError(output.error)
            texts[int(output.request_id)] += output.token_ids
    engine.close()
    return texts
