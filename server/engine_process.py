"""The engine's own process: one thread that owns the backend, from load to close.

The first line on standard input says what to build and where to connect; standard input then stays open as a lifeline:
it ends when the HTTP process is gone, however it died, and this process ends with it.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec
import zmq

from ..backends.select import DeviceUnavailableError
from ..core.engine import EngineDeadError
from ..core.request import QueueFullError, Request, RequestRejectedError
from ..models.checkpoint import open_checkpoint
from .grammar_queue import GrammarQueue
from .loading import find_loader, grammar_compiler
from .messages import (
    Abort,
    Add,
    Boot,
    Died,
    FromEngine,
    LoadFailed,
    Loading,
    Ready,
    Rejected,
    Step,
    Stop,
    ToEngine,
    View,
    Watch,
    encode,
)

if TYPE_CHECKING:
    from ..core.engine import Engine
    from ..core.grammar import Grammar
    from ..core.stats import EngineStats

logger = logging.getLogger("bireme.engine")

STATS_EVERY = 0.25  # seconds between statistics while busy
IDLE_HEARTBEAT = 1.0  # seconds between signs of life while idle
CHECK_EVERY = 60.0  # seconds, at least, between two looks at the state of all blocks; only while idle
VIEW_EVERY = 0.5  # seconds between views while somebody watches
PROGRESS_EVERY = 0.1  # seconds between load reports


#: Failures of loading that one line explains.
EXPECTED = (ValueError, OSError, ImportError, MemoryError, DeviceUnavailableError)


class EngineLoop:
    """Takes messages, steps the engine, reports: until told to stop."""

    def __init__(self, engine: Engine, channel: zmq.Socket[bytes], grammars: GrammarQueue) -> None:
        self._engine = engine
        self._channel = channel
        self._grammars = grammars
        self._poller = zmq.Poller()
        self._poller.register(channel, zmq.POLLIN)
        self._poller.register(grammars.fileno(), zmq.POLLIN)
        self._decode = msgspec.msgpack.Decoder(ToEngine).decode
        self._report = Step()
        self._stats_due = 0.0
        self._check_due = time.monotonic() + CHECK_EVERY
        self._view_due: float | None = None  # None: nobody watches
        self._stopping = False
        self._unstarted: dict[str, float] = {}  # request -> when it was added

    def run(self) -> None:
        """Step while there is work, sleep on the socket while there is none."""
        was_busy = False
        while not self._stopping:
            busy = self._engine.has_work()
            if was_busy and not busy:
                self._stats_due = 0.0
            self._flush()
            if not busy:
                self._look_after_blocks()
            idle = IDLE_HEARTBEAT if self._view_due is None else VIEW_EVERY
            self._receive(0 if busy else int(idle * 1000))
            self._queue_settled()
            if self._report.accepted or self._report.rejected:
                self._flush()
            if self._engine.has_work():
                self._step()
            was_busy = busy

    def _look_after_blocks(self) -> None:
        """Take blocks that a fault of ours left in a wrong state out of use, before somebody's answer comes of them."""
        if time.monotonic() >= self._check_due:
            self._engine.check(repair=True)
            self._check_due = time.monotonic() + CHECK_EVERY

    def _step(self) -> None:
        try:
            self._report.outputs = self._engine.step()
            self._note_started()
        except EngineDeadError as error:
            self._report.outputs = error.outputs
            self._flush()
            send(self._channel, Died(str(error)))
            raise

    def _note_started(self) -> None:
        if not self._unstarted:
            return
        now, started = time.monotonic(), self._engine.started
        for request_id in [one for one in self._unstarted if started(one)]:
            self._report.started.append((request_id, now - self._unstarted.pop(request_id)))

    def _receive(self, timeout_ms: int) -> None:
        if timeout_ms:
            if not self._poller.poll(timeout_ms):
                return
            self._grammars.drain()
        while True:
            try:
                message = self._channel.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(self._decode(message))

    def _take(self, message: ToEngine) -> None:
        if isinstance(message, Add):
            self._add(message.request)
        elif isinstance(message, Abort):
            if message.index is not None or not self._grammars.cancel(message.request_id):
                self._engine.abort(message.request_id, message.index)
        elif isinstance(message, Watch):
            self._engine.watch(message.on)
            self._view_due = 0.0 if message.on else None
        elif isinstance(message, Stop):
            self._stopping = True

    def _add(self, request: Request) -> None:
        """Queue a request; one that follows a grammar, once that is compiled. It counts as waiting until then."""
        if request.params.grammar is None:
            self._queue(request, None)
        elif self._accepts(
            request, lambda: self._engine.review(request, len(self._grammars), self._grammars.of_user(request.user))
        ):
            self._grammars.add(request)

    def _queue(self, request: Request, grammar: Grammar | None) -> None:
        if self._accepts(request, lambda: self._engine.add(request, grammar)):
            self._report.accepted.append(request.request_id)
            self._unstarted[request.request_id] = time.monotonic()

    def _queue_settled(self) -> None:
        for one in self._grammars.take():
            if one.error is None:
                self._queue(one.request, one.grammar)
            else:
                self._report.rejected.append(Rejected(one.request.request_id, one.error, "invalid_grammar"))

    def _accepts(self, request: Request, call: Callable[[], None]) -> bool:
        """Whether ``call`` takes the request; a refusal is reported."""
        try:
            call()
        except RequestRejectedError as error:
            self._report.rejected.append(Rejected(request.request_id, str(error), error.code))
        except QueueFullError as error:
            self._report.rejected.append(Rejected(request.request_id, str(error), error.code, error.retry_after))
        else:
            return True
        return False

    def _flush(self) -> None:
        """Send what happened, with statistics now and then; an idle engine sends them as its sign of life."""
        report, now = self._report, time.monotonic()
        if now >= self._stats_due:
            report.stats = self._stats()
            self._stats_due = now + (STATS_EVERY if self._engine.has_work() else IDLE_HEARTBEAT)
        if report.outputs or report.accepted or report.rejected or report.stats:
            self._channel.send(encode(report))
            self._report = Step()
        if self._view_due is not None and now >= self._view_due:
            self._view_due = now + VIEW_EVERY
            send(self._channel, View(self._engine.view(), self._stats()))

    def _stats(self) -> EngineStats:
        """The engine's; who waits for a grammar waits."""
        stats, compiling = self._engine.stats(), len(self._grammars)
        return dataclasses.replace(stats, waiting=stats.waiting + compiling) if compiling else stats


def load(boot: Boot, channel: zmq.Socket[bytes]) -> tuple[Engine, GrammarQueue] | None:
    """Build the engine and what compiles grammars for it, reporting progress. A failure is reported as one line and
    gives None."""
    last = 0.0

    def progress(done: int, total: int) -> None:
        nonlocal last
        if time.monotonic() - last >= PROGRESS_EVERY or done >= total:
            last = time.monotonic()
            send(channel, Loading(done, total))

    try:
        checkpoint = open_checkpoint(boot.spec.model)
        engine = find_loader(boot.spec.loader)(boot.spec, checkpoint, progress)
    except Exception as error:  # whatever it is, the parent must hear of it
        if not isinstance(error, EXPECTED):
            logger.exception("loading failed")
        send(channel, LoadFailed(str(error) or type(error).__name__, isinstance(error, ValueError)))
        return None
    send(channel, Ready(engine.backend.info, engine.config))
    compiler = grammar_compiler(boot.spec, checkpoint, engine.backend.info)
    compiler.prepare()  # requests are let in already; few of the first have a grammar
    return engine, GrammarQueue(compiler)


def send(channel: zmq.Socket[bytes], message: FromEngine) -> None:
    channel.send(encode(message))


def watch_parent(address: str) -> None:
    """End this process when standard input ends, i.e. when the parent is gone; its socket's folder goes too."""

    def wait() -> None:
        while os.read(0, 4096):
            pass
        shutil.rmtree(os.path.dirname(address.removeprefix("ipc://")), ignore_errors=True)
        os._exit(1)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()


def read_boot() -> Boot:
    """Read up to the first newline, byte by byte: nothing after it may be swallowed by a buffer."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(1)
        line += byte
    return msgspec.json.decode(line, type=Boot)


def main() -> None:
    """Entry point: ``python -m bireme.server.engine_process``, started by ``EngineClient``."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    boot = read_boot()
    watch_parent(boot.address)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    context = zmq.Context()
    channel: zmq.Socket[bytes] = context.socket(zmq.PAIR)
    channel.set_hwm(0)
    channel.connect(boot.address)
    loaded = load(boot, channel)
    code = 1 if loaded is None else run(*loaded, channel)
    channel.close(linger=1000)
    context.term()  # waits until what was sent is out
    sys.stderr.flush()
    os._exit(code)  # the device is closed; tearing down every loaded library would only take time


def run(engine: Engine, grammars: GrammarQueue, channel: zmq.Socket[bytes]) -> int:
    """Serve until told to stop; returns the process's exit code."""
    try:
        EngineLoop(engine, channel, grammars).run()
    except EngineDeadError:
        return 1  # logged by the engine, with its cause
    finally:
        grammars.close()
        engine.close()
    return 0


if __name__ == "__main__":
    main()
