"""A submitted step of the torch backend, and its results on their way to the host."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.step import StepLogprobs, StepResult
from .device import Clock, Device, Tensors
from .reading import Reading
from .sampler import Sampled


class TorchTicket:
    """See ``base.Ticket``. The results are fetched beside the stream of steps; asking for them holds up no step."""

    def __init__(
        self, step_id: int, sampled: Sampled | None, clock: Clock, device: Device, reading: Reading | None = None
    ) -> None:
        """``sampled`` and ``reading`` are written by nobody any more."""
        self._step_id, self._clock = step_id, clock
        self._logprobs = None if sampled is None else sampled.logprobs
        self._fetch = None if sampled is None else device.fetch(_tensors(sampled))
        self._reading = reading
        self._read = None if reading is None else device.fetch(reading.tensors)

    def done(self) -> bool:
        if self._read is not None and not self._read.done():
            return False
        return self._clock.passed() if self._fetch is None else self._fetch.done()

    def wait(self) -> StepResult:
        read: tuple[Any, StepLogprobs | None] = (None, None)
        if self._reading is not None and self._read is not None:
            read = self._reading.on_host(self._read.wait())
        if self._fetch is None:
            elapsed = self._clock.elapsed()
            return StepResult(self._step_id, np.zeros(0, np.int32), np.zeros(0, np.bool_), None, elapsed, *read)
        tokens, nan, *logprobs = self._fetch.wait()
        found = tokens.numpy().astype(np.int32)
        spread = self._spread(tuple(logprobs), len(found))
        return StepResult(self._step_id, found, nan.numpy(), spread, self._clock.elapsed(), *read)

    def _spread(self, fetched: Tensors, count: int) -> StepLogprobs | None:
        """Log-probabilities as [N] arrays: zero and -1 for the rows that didn't ask."""
        if self._logprobs is None:
            return None
        asked, (found, ids, values) = self._logprobs.asked, fetched
        chosen = np.zeros(count, np.float32)
        top_ids = np.full((count, ids.shape[1]), -1, np.int32)
        top_logprobs = np.zeros((count, ids.shape[1]), np.float32)
        chosen[asked], top_ids[asked], top_logprobs[asked] = found.numpy(), ids.numpy(), values.numpy()
        return StepLogprobs(chosen, top_ids, top_logprobs)


def _tensors(sampled: Sampled) -> Tensors:
    logprobs = sampled.logprobs
    if logprobs is None:
        return sampled.tokens, sampled.nan
    return sampled.tokens, sampled.nan, logprobs.chosen, logprobs.top_ids, logprobs.top_logprobs
