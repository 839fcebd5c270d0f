"""Real servers in processes of their own, on the scripted model."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import scripted
from api_bodies import wait_for

HERE = Path(__file__).parent
BIREME = (sys.executable, "-m", "bireme.server.cli")


@dataclass
class Server:
    """A server under test."""

    process: subprocess.Popen[bytes]
    log_file: Path
    url: str = ""

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def wait_listening(self, timeout: float = 20) -> None:
        """Until the address is known; it is printed once the port is bound."""
        found = wait_for(lambda: re.search(r"Listening on (http://\S+);", self.log) or self._died(), timeout)
        assert found and found is not True, self.log
        self.url = found[1]

    def wait_ready(self, timeout: float = 60) -> None:
        assert wait_for(lambda: "Bireme is ready" in self.log or self._died(), timeout), self.log
        assert self.process.poll() is None, self.log

    def _died(self) -> bool:
        return self.process.poll() is not None

    def client(self, timeout: float = 30, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout, **options)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=30)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=30)

    def metrics(self) -> dict[str, float]:
        """Samples by name, labels other than the model's in braces."""
        return parse_metrics(self.get("/metrics").text)

    def wait_idle(self, timeout: float = 5) -> None:
        def idle() -> bool:
            now = self.metrics()
            return not now["vllm:num_requests_running"] and not now["vllm:num_requests_waiting"]

        assert wait_for(idle, timeout), self.log

    def engine(self) -> psutil.Process:
        """The engine's process."""
        found = [
            child
            for child in psutil.Process(self.process.pid).children()
            if any("engine_process" in part for part in child.cmdline())
        ]
        assert len(found) == 1
        return found[0]

    def stop(self, number: int = signal.SIGTERM, timeout: float = 20) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)


def parse_metrics(text: str) -> dict[str, float]:
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")] = float(value)
    return values


StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers by the command line (``hook``: with the hooked engine); all are stopped at the end."""
    running: list[Server] = []

    def start(*options: str, model: Path | str = scripted.SCRIPTED, hook: dict[str, Any] | None = None) -> Server:
        log_file = tmp_path_factory.mktemp("server") / "log"
        environment = {**os.environ, "PYTHONPATH": str(HERE), "PYTHONUNBUFFERED": "1"}
        command = [*BIREME, "serve", str(model), "--device", "cpu", "--port", "0", "--users-db", "none"]
        command += options
        if hook is not None:
            command = [sys.executable, str(HERE / "serve_hooked.py"), str(model), json.dumps(hook)]
        with log_file.open("wb") as log:
            process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
        running.append(Server(process, log_file))
        return running[-1]

    yield start
    for server in running:
        if server.process.poll() is None:
            server.process.kill()
        server.process.wait(20)


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> Server:
    """The server that most tests share."""
    one = start_server("--kv-cache-memory", "32MiB", "--threads", "1")
    one.wait_listening()
    one.wait_ready()
    return one


@pytest.fixture(scope="session")
def hooked(start_server: StartServer) -> Server:
    """A server whose engine does as told by a prompt's last character; see ``hooked_engine``."""
    one = start_server(hook={"keep_alive": 0.3, "restart_delay": 0.1, "stats_interval": 0.5, "watchdog_s": 1.5})
    one.wait_listening()
    one.wait_ready()
    return one


@pytest.fixture(scope="session")
def with_defaults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scripted model with generation defaults of its own: temperature 100, top-k 1."""
    return scripted.variant(tmp_path_factory.mktemp("defaults"), "sampling_defaults")


@pytest.fixture(scope="session")
def small(start_server: StartServer, with_defaults: Path) -> Server:
    """One sequence at once, one more may wait. Its model has generation defaults."""
    options = ("--max-num-seqs", "1", "--max-queue", "1", "--kv-cache-memory", "8MiB", "--cpu-precision", "exact")
    one = start_server(*options, model=with_defaults)
    one.wait_listening()
    one.wait_ready()
    return one
