"""Several devices that run as one: what must be the same on all of them is agreed on, and nobody waits for the dead."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Protocol

import torch

from ..device import Clock, Device, Fetch, Graph, Mark, Tensors

#: Seconds between looks at a result that isn't there, and between looks at who is still there.
POLL_S = 50e-6
CHECK_S = 0.05


class Control(Protocol):
    """What the ranks settle beside their steps, over a road that no device is part of."""

    def least(self, value: int) -> int:
        """The least of all ranks' values; waits for all of them."""
        ...

    def check(self, waited: float = 0.0) -> None:
        """Raises ``WorkerError`` if some rank is gone, or if a step that was ``waited`` seconds for takes too long."""
        ...


class ParallelDevice(Device):
    """``inner``, as one rank of a group."""

    def __init__(self, inner: Device, control: Control) -> None:
        super().__init__(inner.device)
        self._inner, self._control = inner, control
        self.asynchronous, self.captures = inner.asynchronous, inner.captures

    def pinned(self, nbytes: int) -> torch.Tensor:
        return self._inner.pinned(nbytes)

    def mark(self) -> Mark:
        return self._inner.mark()

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetch:
        return _WatchedFetch(self._inner.fetch(tensors), self._wait_for)

    def clock(self) -> Clock:
        return _WatchedClock(self._inner.clock(), self._wait_for)

    def capture(self, work: Callable[[], Tensors]) -> Graph:
        """A graph, if every rank has one: ranks that replay and ranks that don't would not meet."""
        try:
            graph, problem = self._inner.capture(work), None
        except (RuntimeError, NotImplementedError) as error:
            graph, problem = None, error
        if not self._control.least(int(graph is not None)) or graph is None:
            raise RuntimeError("another rank can't" if problem is None else str(problem)) from problem
        return graph

    @property
    def graph_bytes(self) -> int:
        return self._inner.graph_bytes

    def free_bytes(self) -> int:
        return self._inner.free_bytes()

    def total_bytes(self) -> int:
        return self._inner.total_bytes()

    def peak_bytes(self, work: Callable[[], object]) -> int:
        self._control.least(0)  # all are loaded, and none waits on a device for one that isn't
        return self._inner.peak_bytes(work)

    def agree(self, num_blocks: int) -> int:
        return self._control.least(num_blocks)

    def release(self) -> None:
        self._inner.release()

    def _wait_for(self, done: Callable[[], bool]) -> None:
        """Until ``done``; raises as ``Control.check``."""
        start = checked = time.monotonic()
        while not done():
            now = time.monotonic()
            if now - checked > CHECK_S:
                checked = now
                self._control.check(now - start)
            time.sleep(POLL_S)


class _WatchedFetch:
    def __init__(self, inner: Fetch, wait_for: Callable[[Callable[[], bool]], None]) -> None:
        self._inner, self._wait_for = inner, wait_for

    def done(self) -> bool:
        return self._inner.done()

    def wait(self) -> Tensors:
        self._wait_for(self._inner.done)
        return self._inner.wait()


class _WatchedClock:
    def __init__(self, inner: Clock, wait_for: Callable[[Callable[[], bool]], None]) -> None:
        self._inner, self._wait_for = inner, wait_for

    def stop(self) -> None:
        self._inner.stop()

    def passed(self) -> bool:
        return self._inner.passed()

    def elapsed(self) -> float:
        self._wait_for(self._inner.passed)
        return self._inner.elapsed()
