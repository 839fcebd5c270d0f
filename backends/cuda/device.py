"""What a runner asks of a device besides arithmetic: marks in its stream, results fetched beside it, graphs, memory.

``Device`` is a CPU, where work is done when a call returns. ``CudaDevice`` is a GPU. Whatever depends on the order of
things asks only through this door, so that it can be tested with a device that keeps the order and computes on a CPU.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from ..host_memory import free_bytes

Tensors = tuple[torch.Tensor, ...]


class Mark(Protocol):
    """A place in the stream of work."""

    def reached(self) -> bool: ...

    def wait(self) -> None: ...


class Fetch(Protocol):
    """Tensors on their way to the host."""

    def done(self) -> bool: ...

    def wait(self) -> Tensors: ...


class Clock(Protocol):
    """Times what is submitted between its making and ``stop``."""

    def stop(self) -> None: ...

    def passed(self) -> bool:
        """Whether the device is past ``stop``."""
        ...

    def elapsed(self) -> float:
        """Seconds; waits for the device."""
        ...


class Graph(Protocol):
    """Captured work. ``outputs`` are written by each replay; another graph's replay may overwrite them."""

    outputs: Tensors

    def replay(self) -> None: ...


class Device:
    """A CPU."""

    asynchronous = False  # whether work goes on after the call that submits it
    captures = False  # whether ``capture`` can be used

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def pinned(self, nbytes: int) -> torch.Tensor:
        """Host memory uint8 [nbytes] that the device can read while the host goes on."""
        return torch.empty(nbytes, dtype=torch.uint8)

    def mark(self) -> Mark:
        """A mark after all that was submitted so far."""
        return _Reached()

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetch:
        """Start copying ``tensors``, which nobody may write any more, to the host."""
        return Fetched(tuple(tensors))

    def clock(self) -> Clock:
        return _HostClock()

    def capture(self, work: Callable[[], Tensors]) -> Graph:
        """Record what ``work`` submits, to be replayed on the same memory. ``work`` has run before, on the same shapes.

        Raises:
            RuntimeError: it does something that can't be recorded.
        """
        raise NotImplementedError(f"{self.device} records no graphs")

    @property
    def graph_bytes(self) -> int:
        """Device memory that captured graphs hold beside their inputs."""
        return 0

    def free_bytes(self) -> int:
        """Memory that can be had, what the allocator keeps unused included."""
        return free_bytes()

    def total_bytes(self) -> int:
        return free_bytes()

    def peak_bytes(self, work: Callable[[], object]) -> int:
        """The most that ``work`` holds at any moment beside what is held when it has ended; 0 where nobody counts.

        So a table that ``work`` makes and leaves is no part of it, if that is made before the moment comes.
        """
        work()
        return 0

    def agree(self, num_blocks: int) -> int:
        """How many KV blocks to make, where this device has room for ``num_blocks``."""
        return num_blocks

    def release(self) -> None:
        """Give back what the allocator keeps unused."""


class Fetched:
    """Tensors that are on the host."""

    def __init__(self, tensors: Tensors) -> None:
        self._tensors = tensors

    def done(self) -> bool:
        return True

    def wait(self) -> Tensors:
        return self._tensors


class _Reached:
    def reached(self) -> bool:
        return True

    def wait(self) -> None:
        pass


class _HostClock:
    """Times on the host, which on a CPU is where the work is done."""

    def __init__(self) -> None:
        self._start = self._end = time.perf_counter()

    def stop(self) -> None:
        self._end = time.perf_counter()

    def passed(self) -> bool:
        return True

    def elapsed(self) -> float:
        return self._end - self._start


class CudaDevice(Device):
    """An NVIDIA GPU: work goes to the current stream, results come back on a second one."""

    asynchronous = True
    captures = True

    def __init__(self, device: torch.device) -> None:
        super().__init__(device)
        self._results = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None  # the memory that all graphs share
        self._graph_bytes = 0

    def pinned(self, nbytes: int) -> torch.Tensor:
        return torch.empty(nbytes, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> Mark:
        return _CudaMark(torch.cuda.current_stream(self.device))

    def fetch(self, tensors: Sequence[torch.Tensor]) -> Fetch:
        self._results.wait_stream(torch.cuda.current_stream(self.device))
        copies = []
        with torch.cuda.stream(self._results):
            for tensor in tensors:
                # pinned memory comes from a cache that waits for the copy before it is given out again
                target = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True)
                copies.append(target.copy_(tensor, non_blocking=True))
                tensor.record_stream(self._results)
        return _CudaFetch(tuple(copies), _CudaMark(self._results))

    def clock(self) -> Clock:
        return _CudaClock()

    def capture(self, work: Callable[[], Tensors]) -> Graph:
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        before = torch.cuda.memory_reserved(self.device)
        graph = torch.cuda.CUDAGraph()
        # other threads of the process may use the GPU meanwhile
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            outputs = work()
        self._graph_bytes += max(0, torch.cuda.memory_reserved(self.device) - before)
        return _CudaGraph(graph, outputs)

    @property
    def graph_bytes(self) -> int:
        return self._graph_bytes

    def free_bytes(self) -> int:
        unused = torch.cuda.memory_reserved(self.device) - torch.cuda.memory_allocated(self.device)
        return int(torch.cuda.mem_get_info(self.device)[0]) + unused

    def total_bytes(self) -> int:
        return int(torch.cuda.mem_get_info(self.device)[1])

    def peak_bytes(self, work: Callable[[], object]) -> int:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        work()
        torch.cuda.synchronize(self.device)
        peak = int(torch.cuda.max_memory_allocated(self.device))
        return peak - int(torch.cuda.memory_allocated(self.device))

    def release(self) -> None:
        torch.cuda.empty_cache()


class _CudaMark:
    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._event.record(stream)

    def reached(self) -> bool:
        return bool(self._event.query())

    def wait(self) -> None:
        self._event.synchronize()


class _CudaFetch:
    def __init__(self, copies: Tensors, mark: Mark) -> None:
        self._copies, self._mark = copies, mark

    def done(self) -> bool:
        return self._mark.reached()

    def wait(self) -> Tensors:
        self._mark.wait()
        return self._copies


class _CudaClock:
    """Times a step on the GPU, between two events in its stream."""

    def __init__(self) -> None:
        self._first: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._last: Any = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        self._first.record()

    def stop(self) -> None:
        self._last.record()

    def passed(self) -> bool:
        return bool(self._last.query())

    def elapsed(self) -> float:
        self._last.synchronize()
        return float(self._first.elapsed_time(self._last)) / 1000


class _CudaGraph:
    def __init__(self, graph: Any, outputs: Tensors) -> None:
        self._graph, self.outputs = graph, outputs

    def replay(self) -> None:
        self._graph.replay()


def device_for(device: torch.device) -> Device:
    return CudaDevice(device) if device.type == "cuda" else Device(device)
