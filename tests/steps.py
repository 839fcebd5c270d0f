"""Drives a backend by hand: builds StepBatches for a few sequences, without the engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from tiny_models import VOCAB

from bireme.backends.base import Backend, Ticket
from bireme.core.request import SamplingParams, TokenLogprob
from bireme.core.step import PLACEHOLDER, RowInit, StepBatch

GREEDY = SamplingParams(temperature=0.0)


def ids(count: int) -> list[int]:
    """Random tokens of the tiny models, the same for the same count."""
    return [int(i) for i in np.random.default_rng(count).integers(0, VOCAB, count)]


@dataclass(eq=False)
class Track:
    """One sequence: its tokens (PLACEHOLDER while only the backend knows one) and how far they were computed."""

    row: int
    ids: list[int]
    init: RowInit
    blocks: list[int] = field(default_factory=list)
    computed: int = 0
    begun: bool = False
    nan: list[bool] = field(default_factory=list)  # one per sampled token, as below
    logprobs: list[TokenLogprob | None] = field(default_factory=list)

    @property
    def pending(self) -> int:
        return len(self.ids) - self.computed

    @property
    def made(self) -> list[int]:
        return self.ids[len(self.init.prompt_ids) :]


@dataclass(frozen=True)
class Sent:
    """A submitted step and where its tokens go: (sequence, index into its ids)."""

    ticket: Ticket
    targets: list[tuple[Track, int]]


class Driver:
    """Hands out blocks in a scattered order, so that nothing works by luck of their being contiguous."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.size = backend.info.block_size
        blocks = list(range(min(backend.info.num_blocks, 4096)))
        self.free = blocks[1::2] + blocks[0::2]
        self.steps = 0

    def add(self, ids: Sequence[int], params: SamplingParams = GREEDY, row: int = 0, **init: Any) -> Track:
        start = RowInit(row=row, params=params, prompt_ids=tuple(ids), **{"seed": 0, **init})
        return Track(row, [*ids, *start.output_ids], start)

    def submit(self, work: Sequence[tuple[Track, int]], copies: Sequence[tuple[int, int]] = ()) -> Sent:
        """Run the next ``count`` tokens of each sequence; those that reach their end sample."""
        batch = self._batch(work, copies)
        targets = []
        for (track, count), samples in zip(work, batch.samples, strict=True):
            track.computed += count
            track.begun = True
            if samples:
                targets.append((track, len(track.ids)))
                track.ids.append(PLACEHOLDER)
        return Sent(self.backend.submit(batch), targets)

    def collect(self, sent: Sent) -> None:
        """Wait for a step and fill in its tokens."""
        result = sent.ticket.wait()
        assert len(result.tokens) == len(result.nan) == len(sent.targets)
        for n, (track, index) in enumerate(sent.targets):
            track.ids[index] = int(result.tokens[n])
            track.nan.append(bool(result.nan[n]))
            found = result.logprobs
            track.logprobs.append(
                found and TokenLogprob(found.chosen[n], tuple(found.top_ids[n]), tuple(found.top_logprobs[n]))
            )

    def step(self, work: Sequence[tuple[Track, int]], copies: Sequence[tuple[int, int]] = ()) -> None:
        self.collect(self.submit(work, copies))

    def generate(self, tracks: Sequence[Track], tokens: int, chunk: int = 1 << 30) -> list[list[int]]:
        """Prefill in chunks and decode, all sequences together, until each has made ``tokens``."""
        while work := [(t, min(t.pending, chunk)) for t in tracks if len(t.made) < tokens]:
            self.step(work)
        return [track.made for track in tracks]

    def decode(self, tracks: Sequence[Track], steps: int, in_flight: int) -> None:
        """So many steps of one token each; the oldest is collected where ``in_flight`` are under way."""
        sent: list[Sent] = []
        for _ in range(steps):
            sent.append(self.submit([(track, 1) for track in tracks]))
            if len(sent) == in_flight:
                self.collect(sent.pop(0))
        for one in sent:
            self.collect(one)

    def release(self, track: Track) -> None:
        self.free += track.blocks

    def _batch(self, work: Sequence[tuple[Track, int]], copies: Sequence[tuple[int, int]]) -> StepBatch:
        for track, count in work:
            while len(track.blocks) * self.size < track.computed + count:
                track.blocks.append(self.free.pop(0))
        spans = [(track, np.arange(track.computed, track.computed + count)) for track, count in work]
        tables = np.full((len(work), max(len(track.blocks) for track, _ in work)), -1, np.int32)
        for line, (track, _) in zip(tables, work, strict=True):
            line[: len(track.blocks)] = track.blocks
        slots = [np.array(track.blocks)[at // self.size] * self.size + at % self.size for track, at in spans]
        self.steps += 1
        return StepBatch(
            step_id=self.steps,
            token_ids=np.concatenate([np.array(track.ids)[at] for track, at in spans]).astype(np.int32),
            positions=np.concatenate([at for _, at in spans]).astype(np.int32),
            slots=np.concatenate(slots).astype(np.int64),
            query_start=np.cumsum([0] + [count for _, count in work]).astype(np.int32),
            context_lens=np.array([track.computed + count for track, count in work], np.int32),
            block_tables=tables,
            rows=np.array([track.row for track, _ in work], np.int32),
            samples=np.array([track.computed + count == len(track.ids) for track, count in work]),
            copies=np.array(copies, np.int32).reshape(-1, 2),
            new_rows=tuple(track.init for track, _ in work if not track.begun),
        )


class LogitTap:
    """Stands before a backend's sampler and keeps the logits that it is given."""

    def __init__(self, driver: Driver) -> None:
        backend: Any = driver.backend
        self._driver = driver
        self.logits: list[np.ndarray] = []  # one [N, V] per sampling step
        self._sampler = backend._sampler
        backend._sampler = self

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)

    def of(self, prompts: Sequence[Sequence[int]], tokens: int, chunk: int = 1 << 30) -> np.ndarray:
        """[prompt, token, V], of ``prompts`` that are gone on with together; several must be read in as many chunks."""
        self.logits.clear()
        self._driver.generate([self._driver.add(ids, row=row) for row, ids in enumerate(prompts)], tokens, chunk)
        return np.stack(self.logits, axis=1)

    def sample(self, logits: Any, rows: Any, positions: Any, *masks: Any) -> Any:
        if hasattr(logits, "detach"):  # torch's
            on_host = logits.detach().numpy()
        else:
            on_host = logits.astype(sys.modules["mlx.core"].float32)
        self.logits.append(np.array(on_host, np.float32))
        return self._sampler.sample(logits, rows, positions, *masks)
