"""An engine for tests that misbehaves on demand: a prompt's last character says how. It simulates: its text is noise.

``Z`` sleeps in the prefill, ``N`` gives NaN logits for that row, ``K`` raises in the third step of the row, ``W`` never
returns. Loading takes ``BIREME_TEST_LOAD_S`` seconds longer, and each step ``BIREME_TEST_STEP_S``.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bireme.backends.base import Backend, BackendInfo, Ticket
from bireme.core.engine import Engine
from bireme.core.step import StepBatch, StepResult
from bireme.server.loading import load_engine
from bireme.server.settings import EngineSpec

SLEEP_S = 2.0


class HookedBackend:
    """A backend in front of a real one."""

    def __init__(self, inner: Backend) -> None:
        self._inner = inner
        self._hooks: dict[int, str] = {}  # row -> hook
        self._steps: dict[int, int] = {}  # row -> steps seen

    @property
    def info(self) -> BackendInfo:
        return self._inner.info

    def submit(self, batch: StepBatch) -> Ticket:
        time.sleep(float(os.environ["BIREME_TEST_STEP_S"]))
        for init in batch.new_rows:
            self._hooks[init.row] = chr(init.prompt_ids[-1]) if init.prompt_ids[-1] < 128 else ""
            self._steps[init.row] = 0
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
        return HookedTicket(self._inner.submit(batch), poisoned)

    def close(self) -> None:
        self._inner.close()


class HookedTicket:
    """A ticket that marks rows as NaN."""

    def __init__(self, inner: Ticket, poisoned: Any) -> None:
        self._inner = inner
        self._poisoned = poisoned

    def wait(self) -> StepResult:
        result = self._inner.wait()
        return dataclasses.replace(result, nan=result.nan | self._poisoned)

    def done(self) -> bool:
        return self._inner.done()


def load_hooked(spec: EngineSpec, progress: Callable[[int, int], None]) -> Engine:
    time.sleep(float(os.environ.get("BIREME_TEST_LOAD_S", "0")))
    engine = load_engine(spec, progress)
    return Engine(HookedBackend(engine.backend), engine.config)
