"""Run one server: engine and HTTP side together, from a bound socket to a drained exit."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from typing import TYPE_CHECKING

import uvicorn

from .client import EngineClient, EngineState
from .errors import ApiError
from .frontend import load_frontend
from .http_protocol import protocol
from .listen import reachable, url_of
from .metrics import Metrics
from .names import ServedNames
from .progress import LoadBar, resolve_model
from .report import report_statistics, summary
from .sd_notify import notify, watchdog
from .settings import ServerSettings
from .state import ServerState
from .tracing import start_tracing
from .users.directory import Directory
from .users.store import UserError

if TYPE_CHECKING:
    from fastapi import FastAPI

logger = logging.getLogger("bireme.server")

EXIT_INTERRUPTED = 130
NO_KEY_WARNING = (
    "Warning: other machines can reach this server, and it asks for no key: whoever reaches it can use it. Ask for one "
    "with --api-key, add users with 'bireme users add NAME', or listen on 127.0.0.1 only."
)
#: How long answers that were cut off may take to say so, in seconds: a client that doesn't read holds nothing up.
LAST_WORDS_S = 0.8
#: How long sending the last traces may take, in seconds.
LAST_TRACES_S = 2.0


class _HttpServer(uvicorn.Server):
    """uvicorn without its signal handlers: draining comes first here."""

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield


class BiremeServer:
    """One server's life."""

    def __init__(self, settings: ServerSettings, listener: socket.socket) -> None:
        names = ServedNames.of(settings.spec.model, settings.served_model_names)
        client = EngineClient(settings)
        metrics = Metrics(names.primary, settings.spec.config.slo)
        metrics.watch(client)
        directory = Directory(settings.users_path, settings.api_keys)
        metrics.watch_users(directory, client)
        self._tracer = start_tracing(names.primary)
        self.state = ServerState(settings, client, names, metrics, directory=directory, tracer=self._tracer)
        self._settings = settings
        self._listener = listener
        self._error: Exception | None = None
        self._http = _HttpServer(
            uvicorn.Config(
                self._create_app,
                factory=True,
                loop="uvloop",
                http=protocol(settings.max_header_size),
                proxy_headers=bool(settings.trusted_proxies),
                forwarded_allow_ips=list(settings.trusted_proxies),
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=1,
                timeout_keep_alive=30,
            )
        )

    async def run(self) -> Exception | None:
        """Serve until told to stop. Returns why the server had to give up, or None after an ordinary end.

        A ``ValueError`` says what is wrong with what was asked for; any other is no fault of that.
        """
        self._handle_signals()
        try:
            self.state.directory.start()
        except UserError as error:
            return error
        if reachable(self._listener) and not self.state.directory.keyed:
            _say(NO_KEY_WARNING)
        _say(f"Listening on {url_of(self._listener)}; loading {self._settings.spec.model}.")
        notify(f"STATUS=Loading {self._settings.spec.model}")
        engine = asyncio.create_task(self._run_engine())
        alive = asyncio.create_task(watchdog(self._moves))
        reports = asyncio.create_task(report_statistics(self.state, self._settings.stats_interval))
        try:
            await asyncio.to_thread(self._http.config.load)  # imports FastAPI while the engine starts
            await self._http.serve(sockets=[self._listener])
        finally:
            reports.cancel()
            alive.cancel()
            await self._stop_engine(engine)
            await self._close_books()
        return self._error

    def _create_app(self) -> FastAPI:
        from .app import create_app

        return create_app(self.state)

    async def _close_books(self) -> None:
        """Write down what was used, and send the last traces: a collector that does not answer holds nobody up."""
        await asyncio.to_thread(self.state.directory.close)
        if self._tracer is not None:
            closing = threading.Thread(target=self._tracer.close, name="traces", daemon=True)
            closing.start()
            await asyncio.to_thread(closing.join, LAST_TRACES_S)

    def _handle_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._on_signal)

    def _on_signal(self) -> None:
        """First: finish what runs, up to the grace. Second: out at once; the engine follows, its lifeline cut."""
        if self.state.draining:
            self.state.client.remove_folder()
            os._exit(EXIT_INTERRUPTED)
        self.state.draining = True
        notify("STOPPING=1\nSTATUS=Finishing what runs")
        self._draining = asyncio.create_task(self._drain())

    async def _drain(self) -> None:
        client, grace = self.state.client, self._settings.grace
        if client.num_live:
            logger.info("finishing %d requests, at most %.0f s; Ctrl-C again to exit at once", client.num_live, grace)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace):
                while client.num_live:
                    await asyncio.sleep(0.02)
        client.fail_all(ApiError(503, "The server is shutting down; the answer was cut off.", code="shutting_down"))
        with contextlib.suppress(TimeoutError):  # uvicorn's own end may overtake an answer's last event
            async with asyncio.timeout(LAST_WORDS_S):
                while self._http.server_state.tasks:
                    await asyncio.sleep(0.01)
        self._http.should_exit = True

    async def _run_engine(self) -> None:
        """Find the model, load both its sides, keep the engine alive; a failure ends the server."""
        try:
            path = str(await asyncio.to_thread(resolve_model, self._settings.spec.model))
            running = asyncio.create_task(self.state.client.run(path))
            announcing = asyncio.create_task(self._announce())
            self.state.frontend = await asyncio.to_thread(load_frontend, path)
            self.state.client.changed.set()
            await running
            announcing.cancel()
            self._engine_ended()
        except (ValueError, OSError) as error:
            self._give_up(error)
        except Exception as error:  # a server that neither loads nor ends helps nobody
            logger.exception("loading failed")
            self._give_up(RuntimeError(f"loading failed: {type(error).__name__}: {error}"))

    def _engine_ended(self) -> None:
        """A server that never served ends here. One that did stays, red: probes and clients are told why."""
        client = self.state.client
        if client.state is not EngineState.FAILED:
            return
        if client.info is None:
            self._give_up(client.failure or RuntimeError("the engine failed"))
        else:
            logger.error("the engine will not be started again: %s; restart the server", client.failure)

    async def _announce(self) -> None:
        """Show loading, then the summary once everything is there."""
        state = self.state
        with LoadBar() as bar:
            while state.client.state is EngineState.LOADING or state.frontend is None:
                bar.update(*state.client.loaded)
                await asyncio.sleep(0.05)
        if state.client.state is EngineState.READY:
            _say(f"Bireme is ready.\n{summary(state, url_of(self._listener))}")
            notify(f"READY=1\nSTATUS=Serving {state.names.primary} at {url_of(self._listener)}")

    def _moves(self) -> bool:
        """Whether systemd should leave this server alone."""
        return self.state.client.state not in (EngineState.STALLED, EngineState.FAILED)

    def _give_up(self, error: Exception) -> None:
        if not self.state.draining:
            self._error = error
        self._http.should_exit = True

    async def _stop_engine(self, engine: asyncio.Task[None]) -> None:
        """A clean exit of the engine within a second, or none: it ends with us in any case."""
        self.state.client.close()
        done, _ = await asyncio.wait((engine,), timeout=1.0)
        if not done:
            engine.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await engine
        self.state.client.terminate()


def _say(text: str) -> None:
    """Tell the person at the terminal, whatever the log level."""
    print(text, file=sys.stderr, flush=True)


def serve(settings: ServerSettings, listener: socket.socket) -> Exception | None:
    """Run a server on a bound socket; see ``BiremeServer.run``."""
    import uvloop

    configure_logging(settings.log_level)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(BiremeServer(settings, listener).run())


def configure_logging(level: str) -> None:
    """Log lines on standard error. Prompts, answers and keys are never logged at any level."""
    logging.basicConfig(format="%(asctime)s %(levelname)s %(name)s: %(message)s", stream=sys.stderr)
    logging.getLogger("bireme").setLevel(level.upper())
    logging.getLogger("uvicorn.error").setLevel("WARNING")
