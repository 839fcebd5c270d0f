"""``ParallelBackend``: one model over several devices of this machine, of which this process has the first."""

from __future__ import annotations

import dataclasses
import importlib
import logging
from collections.abc import Callable
from typing import Any

import torch

from ....core.config import EngineConfig
from ....core.step import StepBatch
from ....models.weight import Checkpoint, Progress
from ...base import BackendInfo
from ...host_memory import kv_allowance
from ..runner import TorchBackend
from ..tickets import TorchTicket
from .link import DEFAULT_BUILDER, Build, Release, Run
from .shares import Shares
from .workers import Workers

logger = logging.getLogger(__name__)


class ParallelBackend:
    """A ``Backend`` whose every step is run by all ranks at once.

    Rank 0 is a ``TorchBackend`` in this process; the core knows of no other. Each step goes to the others first, as it
    came. What a step yields is rank 0's; when a rank fails or dies, or hangs for too long, ``submit`` or the ticket's
    ``wait`` raises, and nothing more can be run.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        config: EngineConfig,
        workers: Callable[[], Workers],
        size: int,
        progress: Progress | None = None,
        builder: str = DEFAULT_BUILDER,
        keep_workers: bool = False,
    ) -> None:
        """
        Args:
            workers: gives the other ranks' processes; called once it is known that the model can be split.
            builder: see ``link.DEFAULT_BUILDER``.
            keep_workers: whether they are left for another model when this is closed.

        Raises:
            ValueError: the model can't be split so, or doesn't fit; the message has the numbers.
            WorkerError: a rank failed.
        """
        shares = Shares.of(checkpoint, size)
        self._workers, self._keep, self._failed = workers(), keep_workers, False
        self._inner: TorchBackend | None = None
        ranks = self._workers.ranks
        assert ranks is not None and ranks.size == size
        if ranks.device.type == "cpu" and config.kv_cache_memory is None:  # all ranks take of the same memory
            config = dataclasses.replace(config, kv_cache_memory=kv_allowance() // size)
        module, _, name = builder.partition(":")
        try:
            self._workers.send(Build(checkpoint.path, config, builder))
            self._inner = getattr(importlib.import_module(module), name)(
                checkpoint, config, ranks, self._workers, progress
            )
            self._workers.least(0)  # all are ready
        except BaseException as error:
            found = self._workers.explain(error)
            self._failed = True
            self.close()
            if found is error:
                raise
            raise found from error
        assert self._inner is not None
        self._info = dataclasses.replace(self._inner.info, ranks=size)
        each, heads = shares.heads(0)[1], checkpoint.config.num_heads
        logger.info("tensor parallel: %d ranks with %d of %d heads each", size, each, heads)

    @property
    def info(self) -> BackendInfo:
        return self._info

    def submit(self, batch: StepBatch) -> TorchTicket:
        """See ``Backend.submit``. Raises ``WorkerError`` if a rank is gone."""
        ticket: TorchTicket = self._run(Run(batch), lambda inner: inner.submit(batch))
        return ticket

    def logits(self, batch: StepBatch) -> torch.Tensor:
        """See ``TorchBackend.logits``."""
        logits: torch.Tensor = self._run(Run(batch, measure=True), lambda inner: inner.logits(batch))
        return logits

    def _run(self, message: Run, call: Callable[[TorchBackend], Any]) -> Any:
        """``call`` on every rank: the others are told by ``message``."""
        assert self._inner is not None, "the backend is closed"
        try:
            self._workers.send(message)
            return call(self._inner)
        except BaseException as error:
            found = self._workers.explain(error)
            self._failed = True
            if found is error:
                raise
            raise found from error

    def close(self) -> None:
        """Free what every device holds and end the other processes. Safe to call twice."""
        inner, self._inner = self._inner, None
        if self._failed or self._workers.failed:  # a device may be waiting for one that is gone: ask it nothing
            self._workers.close(failed=True)
        elif inner is not None:
            inner.close()
            self._workers.send(Release())
        if not self._keep:
            self._workers.close()
