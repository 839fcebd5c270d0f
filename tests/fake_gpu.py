"""A device that keeps a GPU's order of things and computes on the CPU: what is fetched is copied late, a captured graph
runs the same work on the same memory, and what a graph left is spoiled by the next one's replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from bireme.backends.cuda.device import Clock, Device, Fetch, Graph, Mark, Tensors

CPU = torch.device("cpu")
SPOILT = float("nan")


class FakeGpu(Device):
    """Fetches and marks complete when somebody waits, or after ``behind`` more events have been put behind them."""

    asynchronous = True
    captures = True

    def __init__(self, *, free: int = 64 << 20, total: int = 80 << 20, behind: int = 1000) -> None:
        super().__init__(CPU)
        self.free, self.total, self.behind = free, total, behind
        self.graphs: list[FakeGraph] = []
        self.events: list[Event] = []
        self.refuse: Callable[[], bool] = lambda: False  # whether the next capture fails
        self.may_wait = True

    def mark(self) -> Mark:
        return self._put(Event(self))

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetch:
        return self._put(FakeFetch(self, tuple(tensors)))

    def clock(self) -> Clock:
        return FakeClock(self)

    def capture(self, work: Callable[[], Tensors]) -> Graph:
        if self.refuse():
            raise RuntimeError("operation not permitted when stream is capturing")
        self.graphs.append(FakeGraph(self, work, tuple(each.clone() for each in work())))
        return self.graphs[-1]

    @property
    def graph_bytes(self) -> int:
        return sum(each.nbytes for graph in self.graphs for each in graph.outputs)

    def free_bytes(self) -> int:
        return self.free

    def total_bytes(self) -> int:
        return self.total

    def peak_bytes(self, work: Callable[[], object]) -> int:
        work()
        return 1 << 20

    def _put(self, event):
        self.events.append(event)
        for old in self.events[: -self.behind]:
            old.complete()
        del self.events[: -self.behind]
        return event


class Event:
    """Something in the stream, not there yet."""

    def __init__(self, device: FakeGpu) -> None:
        self.device, self.over = device, False

    def complete(self) -> None:
        self.over = True

    def reached(self) -> bool:
        return self.over

    def wait(self) -> None:
        assert self.device.may_wait, "the host waits for the device"
        for event in self.device.events:  # all that lies before it is over too
            event.complete()
            if event is self:
                break
        self.complete()


class FakeFetch(Event):
    """Copies when it completes, as late as it may."""

    def __init__(self, device: FakeGpu, tensors: Tensors) -> None:
        super().__init__(device)
        self.tensors, self.copies = tensors, ()

    def complete(self) -> None:
        if not self.over:
            self.copies = tuple(each.clone() for each in self.tensors)
        super().complete()

    def done(self) -> bool:
        return self.over

    def wait(self) -> Tensors:
        super().wait()
        return self.copies


class FakeClock:
    def __init__(self, device: FakeGpu) -> None:
        self.device, self.end = device, None

    def stop(self) -> None:
        self.end = self.device.mark()

    def passed(self) -> bool:
        return self.end.reached()

    def elapsed(self) -> float:
        self.end.wait()
        return 0.001


@dataclass
class FakeGraph:
    device: FakeGpu
    work: Callable[[], Tensors]
    outputs: Tensors
    replays: int = field(default=0)

    def replay(self) -> None:
        self.replays += 1
        for graph in self.device.graphs:
            for each in graph.outputs:
                each.fill_(SPOILT if each.is_floating_point() else 99)
        for output, value in zip(self.outputs, self.work(), strict=True):
            output.copy_(value)
