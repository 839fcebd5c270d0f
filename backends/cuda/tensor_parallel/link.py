"""What rank 0 and another rank's process say to each other, and the socket they say it over."""

from __future__ import annotations

import pickle
import socket
import struct
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from ....core.config import EngineConfig
from ....core.step import StepBatch

#: Builds a rank's backend; ``module:function`` with the arguments of ``build.build_rank``.
DEFAULT_BUILDER = "bireme.backends.cuda.tensor_parallel.build:build_rank"


@dataclass(frozen=True, slots=True)
class Join:
    """Become a rank of a group that meets at ``store``."""

    rank: int
    size: int
    device: str  # "cpu", or "cuda:1"
    store: str
    timeout: float
    threads: int | None  # for torch on a CPU


@dataclass(frozen=True, slots=True)
class Build:
    """Load the rank's share of a model."""

    path: str
    config: EngineConfig
    builder: str = DEFAULT_BUILDER


@dataclass(frozen=True, slots=True)
class Run:
    """A step. ``measure``: its logits only, nothing is drawn."""

    batch: StepBatch
    measure: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Free the model; another may follow."""


@dataclass(frozen=True, slots=True)
class Leave:
    """Leave the group and end."""


@dataclass(frozen=True, slots=True)
class Value:
    """A rank's number on its way to rank 0, or what all agreed on on its way back."""

    number: int = 0


@dataclass(frozen=True, slots=True)
class Failed:
    """The last words of a process. ``expected``: one line explains it."""

    text: str
    expected: bool = False


class LinkClosedError(ConnectionError):
    """The other side is gone, or takes nothing any more."""


class Link:
    """One end of a socket pair between a process and its child: what is unpickled comes from nobody else."""

    def __init__(self, end: socket.socket, send_timeout: float | None = None) -> None:
        """``send_timeout``: seconds after which the other side counts as gone if it takes nothing."""
        if send_timeout is not None:
            seconds, rest = divmod(send_timeout, 1)
            limit = struct.pack("ll", int(seconds), int(rest * 1e6))
            end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, limit)
        self._connection = Connection(end.detach())

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Any) -> None:
        try:
            self._connection.send_bytes(pickle.dumps(message, protocol=5))
        except OSError as error:
            raise LinkClosedError(f"{error}") from error

    def poll(self, timeout: float = 0.0) -> bool:
        """Whether there is something to receive, or nothing to wait for."""
        return self._connection.poll(timeout)

    def receive(self) -> Any:
        """The next message; waits for it."""
        try:
            return pickle.loads(self._connection.recv_bytes())
        except (EOFError, OSError) as error:
            raise LinkClosedError("the other side is gone") from error

    def close(self) -> None:
        self._connection.close()
