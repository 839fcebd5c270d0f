"""A process of rank 1 to N - 1: it runs the same steps as rank 0, over its own share of the model."""

from __future__ import annotations

import importlib
import logging
import os
import signal
import socket
import sys
import threading
from typing import TYPE_CHECKING, Any

from .link import Build, Failed, Join, Leave, Link, LinkClosedError, Release, Run, Value

if TYPE_CHECKING:
    from ..runner import TorchBackend
    from .ranks import Ranks

logger = logging.getLogger(__name__)

#: Failures of loading that one line explains.
EXPECTED = (ValueError, OSError, ImportError, MemoryError)


class Rank0:
    """The other end: what rank 0 settles, a worker learns here. See ``device.Control``."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def least(self, value: int) -> int:
        self._link.send(Value(value))
        answer = self._link.receive()
        assert isinstance(answer, Value), answer
        return answer.number

    def check(self, waited: float = 0.0) -> None:
        """Nothing to do: this process ends when rank 0's does."""


def main() -> None:
    """Entry point: ``python -m bireme.backends.cuda.tensor_parallel.worker FD RANK``, started by ``Workers``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is rank 0's to handle
    threading.Thread(target=_end_with_parent, name="lifeline", daemon=True).start()
    form = f"%(asctime)s %(levelname)s rank {sys.argv[2]}: %(name)s: %(message)s"
    logging.basicConfig(level=logging.WARNING, format=form, stream=sys.stderr)
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    code = 1
    try:
        serve(link)
        code = 0
    except LinkClosedError:
        pass  # rank 0 is gone, or has ended this
    except Exception as error:  # whatever it is, rank 0 must hear of it
        _report(link, error)
    sys.stderr.flush()
    os._exit(code)  # tearing down every loaded library would only take time


def serve(link: Link) -> None:
    """Join the group that rank 0 names, then do as it says until it says to leave."""
    import torch

    from .ranks import Ranks

    control = Rank0(link)
    control.least(0)  # here I am
    join = link.receive()
    assert isinstance(join, Join), join
    if join.threads is not None:
        torch.set_num_threads(join.threads)
    ranks = Ranks.join(join.rank, join.size, torch.device(join.device), join.store, join.timeout)
    backend: TorchBackend | None = None
    while not isinstance(message := link.receive(), Leave):
        if isinstance(message, Build):
            backend = _build(message, ranks, control)
            control.least(0)  # ready
        elif isinstance(message, Release):
            assert backend is not None
            backend.close()
            backend = None
        else:
            assert isinstance(message, Run) and backend is not None, message
            backend.logits(message.batch) if message.measure else backend.submit(message.batch)
    ranks.leave()


def _build(message: Build, ranks: Ranks, control: Rank0) -> Any:
    from ....models.checkpoint import open_checkpoint

    module, _, name = message.builder.partition(":")
    builder = getattr(importlib.import_module(module), name)
    try:
        return builder(open_checkpoint(message.path), message.config, ranks, control)
    except EXPECTED as error:
        raise _LoadError(str(error) or type(error).__name__) from error


class _LoadError(Exception):
    """Loading failed, and one line says why."""


def _report(link: Link, error: Exception) -> None:
    expected = isinstance(error, _LoadError)
    if not expected:
        logger.exception("failed")
    try:
        link.send(Failed(str(error) if expected else f"{type(error).__name__}: {error}", expected))
    except LinkClosedError:
        pass


def _end_with_parent() -> None:
    """End this process when standard input ends, i.e. when the parent is gone."""
    while os.read(0, 4096):
        pass
    os._exit(1)


if __name__ == "__main__":
    main()
