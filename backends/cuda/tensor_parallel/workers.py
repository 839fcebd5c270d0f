"""The processes of ranks 1 to N - 1, as rank 0 sees them: it starts them, hears when one dies, and ends them."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import torch

from .link import Failed, Join, Leave, Link, LinkClosedError, Value
from .ranks import Ranks

MODULE = "bireme.backends.cuda.tensor_parallel.worker"
#: Seconds that a step, or what settles one, may take: kernels of a new kind are compiled in it.
STEP_TIMEOUT_S = 120.0
#: Seconds for a process to start, and for loading.
START_TIMEOUT_S = 300.0
LOAD_TIMEOUT_S = 3600.0
#: Seconds for a process to say why it ends, and to end once it should.
LAST_WORDS_S = 2.0
LEAVE_S = 5.0


class WorkerError(RuntimeError):
    """A rank's process has failed or died: the group can't go on."""


class WorkerLoadError(ValueError):
    """A rank can't load its share; the message says why."""


@dataclass(eq=False)
class Worker:
    """One process. It ends when its standard input does, i.e. when this process is gone, however it died."""

    rank: int
    process: subprocess.Popen[bytes]
    link: Link
    values: deque[int] = field(default_factory=deque)  # received and not asked for yet


class Workers:
    """A group whose rank 0 is this process. Used from one thread; ``close`` it."""

    def __init__(
        self, size: int, device: str = "cpu", threads: int | None = None, timeout: float = STEP_TIMEOUT_S
    ) -> None:
        """Start the processes and meet them. ``device``: "cpu", or "cuda" for one GPU each.

        Raises:
            WorkerError: one of them can't start.
        """
        self.failed = False
        self._timeout, self._patience = timeout, START_TIMEOUT_S
        self._workers: list[Worker] = []
        self._folder = Path(tempfile.mkdtemp(prefix="bireme-ranks-"))
        self.ranks: Ranks | None = None
        try:
            self._workers += [_start(rank, timeout) for rank in range(1, size)]
            store = str(self._folder / "store")
            names = [device if device == "cpu" else f"{device}:{rank}" for rank in range(size)]
            self.least(0)  # all are there
            for worker in self._workers:
                worker.link.send(Join(worker.rank, size, names[worker.rank], store, timeout, threads))
            self.ranks = Ranks.join(0, size, torch.device(names[0]), store, timeout)
        except BaseException as error:
            found = self.explain(error)
            self._end(0)
            if found is error:
                raise
            raise found from error
        self._patience = LOAD_TIMEOUT_S

    def send(self, message: Any) -> None:
        """To all of them."""
        for worker in self._workers:
            try:
                worker.link.send(message)
            except LinkClosedError as error:
                self._say_why(worker, error)

    def least(self, value: int) -> int:
        """See ``Control.least``."""
        found = min([value, *(self._value_of(worker) for worker in self._workers)])
        self.send(Value(found))
        return found

    def check(self, waited: float = 0.0) -> None:
        """See ``Control.check``."""
        for worker in self._workers:
            while worker.link.poll():
                self._hear(worker)
        if waited > self._timeout:
            raise self._hang()

    def explain(self, error: BaseException) -> BaseException:
        """Why a collective operation failed here: the death of a process if there was one, else ``error``."""
        if not isinstance(error, RuntimeError) or isinstance(error, WorkerError):
            return error
        hangs = "timed out" in str(error).lower()
        deadline = time.monotonic() + (0.0 if hangs else LAST_WORDS_S)
        while True:
            try:
                self.check()
            except (WorkerError, WorkerLoadError) as found:
                return found
            if time.monotonic() >= deadline:
                return self._hang() if hangs else error
            time.sleep(0.01)

    def close(self, failed: bool = False) -> None:
        """End them; after a failure without waiting for what they are doing. Safe to call twice."""
        if self._workers and not failed:
            for worker in self._workers:
                try:
                    worker.link.send(Leave())
                except LinkClosedError:
                    failed = True
        self.failed |= failed
        if self.ranks is not None:
            self.ranks.abort() if failed else self.ranks.leave()
            self.ranks = None
        self._end(0 if failed else LEAVE_S)

    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    def _hang(self) -> WorkerError:
        self.failed = True
        return WorkerError(f"a step has not ended after {self._timeout:.0f} s: some rank or its device hangs")

    def _value_of(self, worker: Worker) -> int:
        deadline = time.monotonic() + self._patience
        while not worker.values:
            if not worker.link.poll(max(0.0, deadline - time.monotonic())):
                self.failed = True
                waited = f"has not answered for {self._patience:.0f} s"
                raise WorkerError(f"the process of rank {worker.rank} (pid {worker.process.pid}) {waited}")
            self._hear(worker)
        return worker.values.popleft()

    def _hear(self, worker: Worker) -> None:
        """Take the next message."""
        try:
            message = worker.link.receive()
        except LinkClosedError as error:
            self._say_why(worker, error)
        if isinstance(message, Failed):
            self.failed = True
            raise _error(worker, message)
        assert isinstance(message, Value)
        worker.values.append(message.number)

    def _say_why(self, worker: Worker, error: LinkClosedError) -> NoReturn:
        """``worker`` hears nothing: by its last words, or how it ended."""
        self.failed = True
        try:
            while worker.link.poll():
                message = worker.link.receive()
                if isinstance(message, Failed):
                    raise _error(worker, message) from error
        except LinkClosedError:
            pass
        raise WorkerError(f"the process of rank {worker.rank} (pid {worker.process.pid}) {_end_of(worker)}") from error

    def _end(self, patience: float) -> None:
        deadline = time.monotonic() + patience
        for worker in self._workers:
            if patience:
                _wait(worker.process, max(0.0, deadline - time.monotonic()))
            if worker.process.poll() is None:
                worker.process.kill()
            assert worker.process.stdin is not None
            worker.process.stdin.close()
            worker.process.wait()
            worker.link.close()
        self._workers.clear()
        shutil.rmtree(self._folder, ignore_errors=True)


def _start(rank: int, timeout: float) -> Worker:
    mine, theirs = socket.socketpair()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, str(theirs.fileno()), str(rank)],
            stdin=subprocess.PIPE,
            pass_fds=(theirs.fileno(),),
        )
    return Worker(rank, process, Link(mine, timeout))


def _wait(process: subprocess.Popen[bytes], seconds: float) -> None:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        pass


def _error(worker: Worker, message: Failed) -> WorkerError | WorkerLoadError:
    kind = WorkerLoadError if message.expected else WorkerError
    return kind(f"rank {worker.rank}: {message.text}")


def _end_of(worker: Worker) -> str:
    _wait(worker.process, LAST_WORDS_S)
    code = worker.process.returncode
    if code is None:
        return "takes no more steps"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with code {code}"
