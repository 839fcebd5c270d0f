"""How long work takes on a GPU, and what the GPU can do at most: its own copy and its own matrix products."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ..backends.cuda.device import Device, device_for

Work = Callable[[], object]
#: More than any cache holds: what is read in turn comes from memory each time.
COLD_BYTES = 256 << 20


class Timer:
    """Times work on one device, each figure in about ``seconds``."""

    def __init__(self, device: torch.device, seconds: float) -> None:
        self.device, self.seconds = device, seconds
        self._door: Device = device_for(device)

    def mean(self, runs: Sequence[Work]) -> float:
        """Seconds of one call, going round ``runs``. On a GPU they are captured, so that the host's pace counts for
        nothing; what can't be captured is timed as it is launched."""
        for run in runs:
            run()
        work, calls = self._round(runs)
        once = self._timed(work, 1)
        if not self.seconds:
            return once / calls
        times = max(1, min(1000, int(self.seconds / max(once, 1e-7))))
        return self._timed(work, times) / times / calls

    def _round(self, runs: Sequence[Work]) -> tuple[Work, int]:
        def once() -> tuple[torch.Tensor, ...]:
            for run in runs:
                run()
            return ()

        if self._door.captures:
            try:
                return self._door.capture(once).replay, len(runs)
            except RuntimeError:
                torch.cuda.synchronize(self.device)
        return once, len(runs)

    def _timed(self, work: Work, times: int) -> float:
        self.wait()
        start = time.perf_counter()
        for _ in range(times):
            work()
        self.wait()
        return time.perf_counter() - start

    def wait(self) -> None:
        """Until the device has done all it was given."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def copy_bandwidth(self, nbytes: int) -> float:
        """Bytes per second, read and written, of the device's own copy of ``nbytes``."""
        source = torch.empty(nbytes, dtype=torch.uint8, device=self.device)
        target = torch.empty_like(source)
        return 2 * nbytes / self.mean([lambda: target.copy_(source)])
