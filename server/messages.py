"""What crosses between the HTTP process and the engine process: MessagePack over one ZeroMQ pair socket.

Requests and outputs are the core's own records; there is one ``Step`` message per engine step for all sequences.
"""

from __future__ import annotations

import msgspec

from ..backends.base import BackendInfo
from ..core.config import EngineConfig
from ..core.request import Request, SequenceOutput
from ..core.stats import EngineStats
from ..core.watch import EngineView
from .settings import EngineSpec


class Boot(msgspec.Struct):
    """The first line on the engine process's standard input, in JSON: what to build and where to connect."""

    address: str
    spec: EngineSpec


class Add(msgspec.Struct, tag="add", array_like=True):
    """Serve this request; answered by an entry in ``Step.accepted`` or ``Step.rejected``."""

    request: Request


class Abort(msgspec.Struct, tag="abort", array_like=True):
    """Stop this request (or one of its sequences); nobody waits for more of it."""

    request_id: str
    index: int | None = None


class Watch(msgspec.Struct, tag="watch", array_like=True):
    """Send a ``View`` twice a second from now on, or no more."""

    on: bool


class Stop(msgspec.Struct, tag="stop", array_like=True):
    """Close the engine and exit."""


ToEngine = Add | Abort | Watch | Stop


class Loading(msgspec.Struct, tag="loading", array_like=True):
    """Bytes of weights loaded so far, and in all."""

    done: int
    total: int


class Ready(msgspec.Struct, tag="ready", array_like=True):
    """The engine takes requests. ``config`` is the engine's own object: what is really in effect."""

    info: BackendInfo
    config: EngineConfig


class LoadFailed(msgspec.Struct, tag="load_failed", array_like=True):
    """The engine could not be built; trying again would fail the same way."""

    message: str
    input_wrong: bool  # something is wrong with what was asked for, and not with this machine


class Died(msgspec.Struct, tag="died", array_like=True):
    """The engine failed in a step and its process is about to exit; sent after its requests' last outputs."""

    message: str


class Rejected(msgspec.Struct, array_like=True):
    """A request the engine did not take."""

    request_id: str
    message: str
    code: str  # as RequestRejectedError.code or QueueFullError.code
    retry_after: float | None = None  # seconds; set where it may be taken later


class Step(msgspec.Struct, tag="step", array_like=True):
    """What happened since the last message."""

    outputs: list[SequenceOutput] = []
    accepted: list[str] = []
    rejected: list[Rejected] = []
    started: list[tuple[str, float]] = []  # requests that a step began to work on, and the seconds they waited for it
    stats: EngineStats | None = None


class View(msgspec.Struct, tag="view", array_like=True):
    """What somebody who watches is shown."""

    view: EngineView
    stats: EngineStats


FromEngine = Loading | Ready | LoadFailed | Died | Step | View

encode = msgspec.msgpack.Encoder().encode
