"""Requests that the HTTP process has with the engine: submitted, followed, failed when it dies; and its restarts."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import time
from collections.abc import Callable
from enum import StrEnum

from ..backends.base import BackendInfo
from ..core.config import EngineConfig
from ..core.request import Request
from ..core.stats import EngineStats
from .engine_link import EngineLink, cancel, exit_text
from .errors import ApiError, from_rejection
from .messages import (
    Abort,
    Add,
    Died,
    FromEngine,
    LoadFailed,
    Loading,
    Ready,
    Step,
    Stop,
    View,
    Watch,
)
from .restarts import Restarts
from .settings import EngineSpec, ServerSettings
from .socket_folder import remove_stale
from .stream import RequestStream

logger = logging.getLogger("bireme.server")


class EngineState(StrEnum):
    """Where the engine stands; also what ``/health`` says."""

    LOADING = "loading"
    READY = "ok"
    STALLED = "stalled"  # requests wait and nothing moves
    RESTARTING = "restarting"
    FAILED = "failed"  # it will not come back by itself


class EngineClient:
    """An engine that is kept alive, and the requests it serves. All methods are called on the event loop."""

    def __init__(self, settings: ServerSettings) -> None:
        self._settings = settings
        self._link = EngineLink(self._take)
        self._streams: dict[str, RequestStream] = {}
        self._closing = False
        self._restarts = Restarts(settings.max_restarts, settings.restart_delay)
        self.deaths = 0  # of engine processes, since the start
        self._progress_at = 0.0  # when the engine last showed that it moves
        self._steps = -1
        self.state = EngineState.LOADING
        self.loaded = (0, 0)  # bytes done, bytes in all
        self.failure: Exception | None = None  # a ValueError: something is wrong with what was asked for
        self.info: BackendInfo | None = None
        self.config: EngineConfig | None = None
        self.stats: EngineStats | None = None
        self._on_view: Callable[[View], None] | None = None  # who watches
        self.changed = asyncio.Event()  # set at each change of state

    @property
    def num_live(self) -> int:
        """Requests submitted and not ended."""
        return len(self._streams)

    def submit(self, request: Request, prompt_field: str, changed: asyncio.Event) -> RequestStream:
        """Send a request, whose prompt came from the body's ``prompt_field``: a refusal names it. ``changed`` is set
        whenever the stream has news.

        Raises ``ApiError`` 503 while there is no engine to take it.
        """
        if not self._listens():
            raise self.unavailable()
        if not self._streams:
            self._progress_at = time.monotonic()
        grammar = request.params.grammar
        grammar_field = "" if grammar is None else grammar.field
        stream = RequestStream(request.request_id, prompt_field, changed, grammar_field)
        self._streams[request.request_id] = stream
        self._link.send(Add(request))
        return stream

    def abort(self, request_id: str, index: int | None = None) -> None:
        """Stop a request, or one of its sequences; ``index`` None ends its stream."""
        if index is None and self._streams.pop(request_id, None) is None:
            return
        self._link.send(Abort(request_id, index))

    def finished(self, request_id: str) -> None:
        """The request's last output was read; forget it."""
        self._streams.pop(request_id, None)

    def watch(self, on_view: Callable[[View], None] | None) -> None:
        """Have the engine send views to ``on_view`` from now on, also after a restart; None: no more."""
        self._on_view = on_view
        if self._listens():
            self._link.send(Watch(on_view is not None))

    def fail_all(self, error: ApiError) -> None:
        """End every open stream with ``error`` and stop the engine's work on it."""
        for request_id, stream in list(self._streams.items()):
            self.abort(request_id)
            stream.fail(error)

    def unavailable(self) -> ApiError:
        """Why no request can be taken now."""
        if self.state is EngineState.LOADING:
            return ApiError(503, "The model is still loading; try again soon.", code="loading", retry_after=2)
        if self.state is EngineState.FAILED:
            return ApiError(503, f"The engine will not be started again: {self.failure}.", code="engine_failed")
        return ApiError(503, "The engine is restarting; try again soon.", code="engine_restarting", retry_after=2)

    async def run(self, model_path: str) -> None:
        """Keep an engine alive until ``close``. Returns early when it can't be (state FAILED, ``failure`` says why)."""
        remove_stale()
        await self._supervise(dataclasses.replace(self._settings.spec, model=model_path))

    def close(self) -> None:
        """Ask the engine to exit, or end it where it can't listen yet; ``run`` returns when it is gone."""
        self._closing = True
        if self.state is EngineState.READY:
            self._link.send(Stop())
        else:
            self._link.kill()

    def remove_folder(self) -> None:
        """Remove the socket's folder."""
        self._link.remove_folder()

    def terminate(self) -> None:
        """Free the messaging context, once ``run`` has returned or was never called."""
        self._link.terminate()

    def _listens(self) -> bool:
        """Whether there is an engine to take messages."""
        return self._link.open and self.state in (EngineState.READY, EngineState.STALLED)

    async def _supervise(self, spec: EngineSpec) -> None:
        while True:
            watching = asyncio.create_task(self._watch())
            try:
                code = await self._link.run(spec)
            finally:
                await cancel(watching)
            if self._closing or self.state is EngineState.FAILED:
                return
            self._report_death(code)
            delay = self._restarts.died()
            if delay is None:
                deaths = self._restarts.deaths
                self._fail(RuntimeError(f"its process died {deaths} times in a row, last with {exit_text(code)}"))
                return
            logger.warning("engine restart %d of %d in %.1f s", self._restarts.deaths, self._restarts.limit, delay)
            await asyncio.sleep(delay)

    def _report_death(self, code: int) -> None:
        """Fail what was running. The requests' ids go to the log, so a client's report can be matched."""
        self.deaths += 1
        text = exit_text(code)
        ids = ", ".join(self._streams) or "none"
        logger.error("engine process ended unexpectedly (%s); requests lost: %s", text, ids)
        self._set_state(EngineState.RESTARTING)
        self._lose(f"the engine process ended unexpectedly, with {text}")

    def _lose(self, reason: str) -> None:
        """End every open stream; nothing more comes for them."""
        error = ApiError(500, f"The request was lost: {reason}. Try again.", code="engine_died")
        for stream in self._streams.values():
            stream.fail(error)
        self._streams.clear()

    def _take(self, message: FromEngine) -> None:
        self._progress_at = self._progress_at if isinstance(message, Step | View) else time.monotonic()
        if isinstance(message, Step):
            self._take_step(message)
        elif isinstance(message, Loading):
            self.loaded = (message.done, message.total)
        elif isinstance(message, Ready):
            self.info, self.config = message.info, message.config
            self._set_state(EngineState.READY)
            if self._on_view is not None:
                self._link.send(Watch(True))
        elif isinstance(message, View):
            self.stats = message.stats
            if self._on_view is not None:
                self._on_view(message)
        elif isinstance(message, LoadFailed):
            self._fail((ValueError if message.input_wrong else RuntimeError)(message.message))
        elif isinstance(message, Died):
            self._set_state(EngineState.RESTARTING)
            self._lose(message.message)

    def _take_step(self, step: Step) -> None:
        streams = self._streams
        for request_id in step.accepted:
            if stream := streams.get(request_id):
                stream.accept()
        for rejected in step.rejected:
            if stream := streams.pop(rejected.request_id, None):
                about_grammar = rejected.code == "invalid_grammar"
                stream.fail(from_rejection(rejected, stream.grammar_field if about_grammar else stream.prompt_field))
        for request_id, seconds in step.started:
            if stream := streams.get(request_id):
                stream.queued = seconds
        for output in step.outputs:
            if stream := streams.get(output.request_id):
                stream.put(output)
        if step.stats is not None:
            self.stats = step.stats
        if (
            step.outputs
            or step.accepted
            or step.rejected
            or not streams
            or (step.stats and step.stats.steps != self._steps)
        ):
            self._moved()
        if step.outputs:
            self._restarts.stepped(self._progress_at)
        if step.stats is not None:
            self._steps = step.stats.steps

    def _moved(self) -> None:
        self._progress_at = time.monotonic()
        if self.state is EngineState.STALLED:
            logger.warning("the engine moves again")
            self._set_state(EngineState.READY)

    async def _watch(self) -> None:
        """Turn health red when requests are open and the engine has not moved for ``watchdog_s``."""
        while True:
            await asyncio.sleep(0.25)
            if self.state is not EngineState.READY or self.config is None or not self._streams:
                continue
            silent = time.monotonic() - self._progress_at
            if silent > self.config.watchdog_s:
                logger.error(
                    "engine stalled: no step for %.0f s; open: %d; last stats: %s", silent, self.num_live, self.stats
                )
                self._set_state(EngineState.STALLED)

    def _fail(self, failure: Exception) -> None:
        self.failure = failure
        self._set_state(EngineState.FAILED)

    def _set_state(self, state: EngineState) -> None:
        self.state = state
        self.changed.set()
