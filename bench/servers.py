"""Servers under test, each in processes of its own; all but the one being measured stand still."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import IO

import httpx
import psutil

from .ask import Target

#: With -P, what is installed runs, whatever lies in the folder this stands in.
PYTHON = (sys.executable, "-P")


@dataclass(slots=True)
class Server:
    """A running server. ``label`` is for people."""

    label: str
    target: Target
    process: subprocess.Popen[bytes]
    command: tuple[str, ...]

    @contextmanager
    def awake(self) -> Iterator[Target]:
        """Let the server run, for as long as the block does."""
        self._signal(signal.SIGCONT)
        try:
            yield self.target
        finally:
            self._signal(signal.SIGSTOP)

    def memory(self) -> int:
        """Resident bytes of all its processes, pages of mapped files included."""
        return sum(process.memory_info().rss for process in self._processes())

    def stop(self) -> None:
        """End it and everything it started."""
        processes = self._processes()
        self._signal(signal.SIGCONT)
        self.process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=15)
        for process in alive:
            process.kill()
        self.process.wait()

    def _processes(self) -> list[psutil.Process]:
        if self.process.poll() is not None:
            return []
        root = psutil.Process(self.process.pid)
        return [root, *root.children(recursive=True)]

    def _signal(self, number: signal.Signals) -> None:
        for process in self._processes():
            process.send_signal(number)


def start_bireme(
    label: str, model: Path, *, device: str, threads: int, parallel: int, arguments: Sequence[str] = ()
) -> Server:
    """Our server, as a user starts it."""
    port = free_port()
    command = [*PYTHON, "-c", "from bireme.server.cli import main; main()", "serve", str(model)]
    command += ["--device", device, "--port", str(port), "--threads", str(threads), "--max-num-seqs", str(parallel)]
    command += ["--served-model-name", "model", *arguments]
    return start(label, command, port)


def start_llama(label: str, model: Path, *, threads: int, parallel: int, context: int) -> Server:
    """llama.cpp's server out of xllamacpp, with ``parallel`` slots of ``context`` tokens each."""
    port = free_port()
    command = [*PYTHON, "-m", "bireme.bench.llama_server", str(model), "--port", str(port)]
    command += ["--threads", str(threads), "--parallel", str(parallel), "--context", str(context)]
    return start(label, command, port)


def start_mlx_lm(label: str, folder: Path) -> Server:
    """mlx-lm's server over a safetensors folder."""
    port = free_port()
    command = [*PYTHON, "-m", "bireme.bench.mlx_server", "--model", str(folder), "--port", str(port)]
    server = start(label, command, port)
    server.target = replace(server.target, model="default_model", extra={})
    return server


def start_transformers(label: str, folder: Path, *, device: str = "cpu") -> Server:
    """`transformers serve` with its continuous batching over a safetensors folder.

    Raises:
        RuntimeError: it did not come up, or needs a package that is not there.
    """
    if find_spec("accelerate") is None:
        raise RuntimeError("transformers serve needs the package accelerate: pip install 'transformers[serving]'")
    port = free_port()
    command = [*PYTHON, "-c", "from transformers.cli.transformers import main; main()", "serve", str(folder)]
    command += ["--device", device, "--host", "127.0.0.1", "--port", str(port), "--continuous-batching"]
    server = start(label, command, port)
    server.target = replace(server.target, model=str(folder), extra={})  # it refuses ignore_eos
    return server


def start(label: str, command: list[str], port: int, patience: float = 180.0) -> Server:
    """Run ``command`` and wait until the server at ``port`` is healthy. Raises RuntimeError with its last words."""
    log = tempfile.TemporaryFile()
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    target = Target(url=f"{url}/v1", model="model", extra={"ignore_eos": True})
    server = Server(label, target, process, tuple(command))
    end = time.monotonic() + patience
    while time.monotonic() < end and process.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=2, trust_env=False).status_code == 200:
                return server
        except httpx.HTTPError:
            pass
        time.sleep(0.1)
    server.stop()
    raise RuntimeError(f"{label} did not come up; its last words:\n{_tail(log)}")


def _tail(log: IO[bytes], size: int = 3000) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - size))
    return log.read().decode(errors="replace")


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
