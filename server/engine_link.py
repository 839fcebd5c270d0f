"""The engine's process as the HTTP process holds it: started, spoken to over a socket of its own, and seen off."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable

import msgspec
import zmq
import zmq.asyncio

from .messages import Boot, FromEngine, ToEngine, encode
from .settings import EngineSpec
from .socket_folder import SocketFolder


class EngineLink:
    """One engine process at a time. All methods are called on the event loop."""

    def __init__(self, take: Callable[[FromEngine], None]) -> None:
        """``take`` is given each message, in order."""
        self._take = take
        self._decode = msgspec.msgpack.Decoder(FromEngine).decode
        self._context = zmq.asyncio.Context()
        self._socket: zmq.asyncio.Socket | None = None
        self._folder: SocketFolder | None = None
        self._process: asyncio.subprocess.Process | None = None

    @property
    def open(self) -> bool:
        """Whether there is a process to send to."""
        return self._socket is not None

    async def run(self, spec: EngineSpec) -> int:
        """Start one process and listen to it until it exits; returns its exit code."""
        self._folder = SocketFolder()
        self._socket = self._context.socket(zmq.PAIR)
        self._socket.set_hwm(0)
        self._socket.bind(self._folder.address)
        process = self._process = await _spawn(Boot(self._folder.address, spec))
        try:
            exited = asyncio.create_task(process.wait())
            listening = asyncio.create_task(self._listen(self._socket))
            await asyncio.wait((exited, listening), return_when=asyncio.FIRST_COMPLETED)
            if listening.done() and not exited.done():
                process.kill()
            code = await exited
            await cancel(listening)
            self._drain(self._socket)
            return code
        finally:
            self.kill()
            self._socket.close(linger=0)
            self._socket = None
            self.remove_folder()

    def send(self, message: ToEngine) -> None:
        """Send to the process; what is sent to none is dropped."""
        if self._socket is not None:
            self._socket.send(encode(message))  # never waits: the socket has no high-water mark and its peer is there

    def kill(self) -> None:
        """End the process, if there is one."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()

    def remove_folder(self) -> None:
        """Remove the socket's folder."""
        if self._folder is not None:
            self._folder.remove()
            self._folder = None

    def terminate(self) -> None:
        """Free the messaging context, once ``run`` has returned or was never called."""
        self._context.destroy(linger=0)

    async def _listen(self, socket: zmq.asyncio.Socket) -> None:
        while True:
            self._take(self._decode(await socket.recv()))

    def _drain(self, socket: zmq.asyncio.Socket) -> None:
        """Take what a dead engine had still sent, its reason for a failed load above all."""
        shadow: zmq.Socket[bytes] = zmq.Socket.shadow(socket.underlying)
        with contextlib.suppress(zmq.ZMQError):
            while True:
                self._take(self._decode(shadow.recv(zmq.NOBLOCK)))


async def _spawn(boot: Boot) -> asyncio.subprocess.Process:
    """Start the engine process: own session (Ctrl-C in the terminal is ours alone), standard input as its lifeline."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "bireme.server.engine_process"),
        stdin=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    assert process.stdin is not None
    process.stdin.write(msgspec.json.encode(boot) + b"\n")
    return process


async def cancel(task: asyncio.Task[None]) -> None:
    """Cancel ``task`` and wait until it has ended."""
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


def exit_text(code: int) -> str:
    """An exit code, for people."""
    return f"signal {-code}" if code < 0 else f"exit code {code}"
