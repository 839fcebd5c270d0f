"""An engine for tests that misbehaves on demand: a prompt's last character says how. On the device it has by itself,
sim, its text is noise.

``Z`` sleeps in the prefill, ``N`` gives NaN logits for that row, ``K`` raises in the third step of the row, ``W`` never
returns, ``L`` writes the letter l without end. A prompt that holds ``say:1,2,3;`` is answered with these tokens.
Loading takes ``BIREME_TEST_LOAD_S`` seconds longer, and each step ``BIREME_TEST_STEP_S``.
"""

from __future__ import annotations

import dataclasses
import os
import re
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.backends.base import Backend, BackendInfo, Ticket
from bireme.core.engine import Engine
from bireme.core.step import StepBatch, StepResult
from bireme.models.checkpoint import OpenCheckpoint
from bireme.server.loading import load_engine
from bireme.server.settings import EngineSpec

SLEEP_S = 2.0
_SAY = re.compile(rb"say:([0-9,]+);")


class HookedBackend:
    """A backend in front of a real one."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._hooks: dict[int, str] = {}  # row -> hook
        self._steps: dict[int, int] = {}  # row -> steps seen
        self._said: dict[int, list[int]] = {}  # row -> tokens to say, the next one last

    @property
    def info(self) -> BackendInfo:
        return self._inner.info

    def submit(self, batch: StepBatch) -> Ticket:
        time.sleep(float(os.environ["BIREME_TEST_STEP_S"]))
        for init in batch.new_rows:
            self._hooks[init.row] = chr(init.prompt_ids[-1]) if init.prompt_ids[-1] < 128 else ""
            self._steps[init.row] = 0
            said = _SAY.findall(bytes(token for token in init.prompt_ids if token < 128))
            self._said[init.row] = [int(token) for token in said[-1].split(b",")][::-1] if said else []
        hooks = [self._hooks.get(row, "") for row in batch.rows.tolist()]
        for row, hook in zip(batch.rows.tolist(), hooks, strict=True):
            self._steps[row] += 1
            if hook == "Z" and self._steps[row] == 1:
                time.sleep(SLEEP_S)
            if hook == "K" and self._steps[row] == 3:
                raise RuntimeError("the hook failed this step")
            if hook == "W":
                time.sleep(3600)
        poisoned = np.array([hook == "N" for hook in hooks], np.bool_)[batch.samples]
        said = [self._say(row) for row in batch.rows[batch.samples].tolist()]
        return HookedTicket(self._inner.submit(batch), poisoned, np.array(said, np.int32))

    def _say(self, row: int) -> int:
        """The token in the place of the row's own, or -1."""
        if self._hooks.get(row) == "L":
            return ord("l")
        return self._said[row].pop() if self._said[row] else -1

    def close(self) -> None:
        self._inner.close()


class HookedTicket:
    """A ticket that marks rows as NaN, and puts tokens in the place of others where they are not -1."""

    def __init__(self, inner: Ticket, poisoned: Any, said: Any) -> None:
        self._inner = inner
        self._poisoned = poisoned
        self._said = said

    def wait(self) -> StepResult:
        result = self._inner.wait()
        tokens = np.where(self._said >= 0, self._said, result.tokens)
        return dataclasses.replace(result, nan=result.nan | self._poisoned, tokens=tokens)

    def done(self) -> bool:
        return self._inner.done()


def load_hooked(spec: EngineSpec, checkpoint: OpenCheckpoint, progress: Callable[[int, int], None]) -> Engine:
    time.sleep(float(os.environ.get("BIREME_TEST_LOAD_S", "0")))
    engine = load_engine(spec, checkpoint, progress)
    return Engine(HookedBackend(engine.backend), engine.config)
