"""A server of the chat's own: in a process beside it, on a free port, behind a key that nobody else has."""

from __future__ import annotations

import dataclasses
import os
import secrets
import subprocess
import sys
import tempfile
import threading
import time
from types import TracebackType
from typing import IO, TYPE_CHECKING

import msgspec

from ..commands.fail import EXIT_USAGE, fail
from ..listen import bind, url_of
from ..settings import EngineSpec, ServerSettings
from ..users.store import NO_USERS
from .connection import Connection, ServerError

if TYPE_CHECKING:
    from ..progress import LoadBar

#: How long the server may take to end by itself, in seconds.
_END_S = 3.0
#: Lines of its log that are shown if it fails.
_LAST_LINES = 3


class OwnServer:
    """Started by ``__enter__``, which returns once it serves; ended with the block, or with this process."""

    def __init__(self, spec: EngineSpec, name: str, bar: LoadBar) -> None:
        self._key = secrets.token_urlsafe(24)
        self._settings = ServerSettings(
            spec, "127.0.0.1", 0, (name,), (self._key,), users_db=NO_USERS, grace=0.0, log_level="warning"
        )
        self._bar = bar
        self._process: subprocess.Popen[bytes]
        self._log: IO[bytes]

    def __enter__(self) -> Connection:
        """Raises ``ServerError``, or ``ValueError`` for a model or an option that is wrong; the message is its own."""
        listener = bind(self._settings.host, 0)
        self._log = tempfile.TemporaryFile()
        command = [sys.executable, "-P", "-m", "bireme.server.terminal.own_server", str(listener.fileno())]
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=self._log,
            stderr=self._log,
            pass_fds=(listener.fileno(),),
            start_new_session=True,  # Ctrl-C in the terminal is ours alone
        )
        connection = Connection(url_of(listener), self._key)
        listener.close()
        try:
            assert self._process.stdin is not None
            self._process.stdin.write(msgspec.json.encode(dataclasses.asdict(self._settings)) + b"\n")
            self._process.stdin.flush()  # it stays open: its end is the server's
            self._wait(connection)
        except BaseException:
            self._end()
            raise
        return connection

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._end()

    def _wait(self, connection: Connection) -> None:
        with self._bar as bar:
            while self._process.poll() is None:
                try:
                    status, body = connection.health()
                except ServerError:
                    status, body = 0, {}
                if status == 200:
                    return
                bar.update(int(body.get("loaded_bytes", 0)), int(body.get("total_bytes", 0)))
                time.sleep(0.05)
        kind = ValueError if self._process.returncode == EXIT_USAGE else ServerError
        raise kind(self._last_words())

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").splitlines()
        said = [line.removeprefix("bireme: ") for line in lines if line.strip()]
        return " ".join(said[-1:] if said and lines[-1].startswith("bireme: ") else said[-_LAST_LINES:])

    def _end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def main() -> None:
    """The server's process: settings come on the first line of standard input, whose end is the signal to stop."""
    import signal
    import socket

    from ..run import serve

    settings = msgspec.json.decode(sys.stdin.buffer.readline(), type=ServerSettings)

    def wait() -> None:
        while os.read(0, 4096):
            pass
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=wait, name="lifeline", daemon=True).start()
    if failure := serve(settings, socket.socket(fileno=int(sys.argv[1]))):
        fail(failure)


if __name__ == "__main__":
    main()
