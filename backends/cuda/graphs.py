"""Decode steps captured as CUDA graphs, one for each of some batch sizes, and replayed.

A graph is a fixed list of launches over fixed memory: it takes its inputs from ``DecodeInputs``, and its grids depend
on its size alone. A step of n sequences replays the smallest size that holds them, padded with rows that belong to
nobody.
"""

from __future__ import annotations

import bisect
import logging
import time
from collections.abc import Callable, Hashable

from ...core.step import StepBatch
from .buffers import DecodeInputs
from .device import Device, Graph, Tensors

logger = logging.getLogger(__name__)

#: Seconds that loading may spend on capturing; sizes left over are captured when a step first needs them.
CAPTURE_SECONDS = 20.0


def batch_sizes(most: int) -> tuple[int, ...]:
    """1, 2, 4, multiples of 8 up to 64, then four sizes to each doubling, and ``most`` itself."""
    sizes = {1, 2, 4, *range(8, 65, 8)}
    start = 64
    while start < most:
        sizes.update(range(start, 2 * start + 1, start // 4))
        start *= 2
    return (*sorted(size for size in sizes if size < most), most)


class DecodeGraphs:
    """Graphs by batch size, and by kind where steps of one size are launched in several ways. The largest size is
    captured first, since all share its memory.

    What can't be captured is left to the ordinary road, and that is said once.
    """

    def __init__(
        self,
        device: Device,
        inputs: DecodeInputs,
        prepare: Callable[[int, Hashable], Callable[[], Tensors]],
        sizes: tuple[int, ...],
    ) -> None:
        """``prepare(size, kind)`` gives the work of a decode step over the first ``size`` rows of ``inputs``; the work
        is run once on padding, then captured."""
        self._device, self.inputs, self._prepare, self.sizes = device, inputs, prepare, sizes
        self._graphs: dict[tuple[int, Hashable], Graph] = {}
        self._work: list[Callable[[], Tensors]] = []  # holds what the graphs' launches read
        self._failed: set[tuple[int, Hashable]] = set()
        self.replays = 0

    @property
    def captured(self) -> tuple[int, ...]:
        """Sizes that have a graph, in the order of their capture."""
        return tuple(dict.fromkeys(size for size, _ in self._graphs))

    @property
    def nbytes(self) -> int:
        """Device memory of the graphs and their inputs."""
        return self._device.graph_bytes + self.inputs.nbytes

    def capture_all(self, seconds: float, kind: Hashable = None) -> None:
        """Capture the sizes, largest first, until the time is up."""
        start = time.monotonic()
        for index, size in enumerate(reversed(self.sizes)):
            if time.monotonic() - start >= seconds:
                left = len(self.sizes) - index
                logger.info("%d batch sizes are left to be captured when a step first needs them", left)
                return
            self._capture(size, kind)

    def size_for(self, count: int, kind: Hashable = None) -> int | None:
        """The size whose graph serves a step of ``count`` sequences; None if no graph can. May capture it."""
        at = bisect.bisect_left(self.sizes, count)
        if at == len(self.sizes):
            return None
        if not self._graphs:
            self._capture(self.sizes[-1], kind)
        return next((size for size in self.sizes[at:] if self._capture(size, kind)), None)

    def replay(self, batch: StepBatch, size: int, kind: Hashable = None) -> Tensors:
        """Run ``batch`` by the graph of ``size``. The outputs have ``size`` rows and last until the next replay."""
        graph = self._graphs[size, kind]
        self.inputs.fill(batch, size)
        graph.replay()
        self.replays += 1
        return graph.outputs

    def _capture(self, size: int, kind: Hashable) -> bool:
        """Whether there is a graph for steps of ``size``, now if not before."""
        if (size, kind) in self._graphs or (size, kind) in self._failed:
            return (size, kind) in self._graphs
        try:
            self.inputs.clear()
            work = self._prepare(size, kind)
            work()  # whatever is compiled, chosen or allocated once must not happen while recording
            self._graphs[size, kind] = self._device.capture(work)
        except (RuntimeError, NotImplementedError) as error:
            self._failed.add((size, kind))
            logger.warning("decode steps of %d sequences can't be captured and run without a graph: %s", size, error)
            return False
        self._work.append(work)
        return True
