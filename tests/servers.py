"""Real servers in processes of their own."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
from api_bodies import PATIENCE, wait_for

#: Seconds that a start may take: the first on a machine compiles kernels, beside other tests that do the same.
START = 240.0
#: The Python that runs the servers; tests in another environment say where Bireme is installed.
PYTHON = os.environ.get("BIREME_TEST_PYTHON", sys.executable)
_HOOKS = Path(__file__).parent / "server"


@dataclass
class Server:
    """A server under test."""

    process: subprocess.Popen[bytes]
    log_file: Path
    url: str = ""

    @property
    def log(self) -> str:
        return self.log_file.read_text(encoding="utf-8", errors="replace")

    def wait_listening(self, timeout: float = START) -> None:
        """Until the address is known; it is printed once the port is bound."""
        found = wait_for(lambda: re.search(r"Listening on (http://\S+);", self.log) or self._died(), timeout)
        assert found and found is not True, self.log
        self.url = found[1]

    def wait_ready(self, timeout: float = START) -> None:
        assert wait_for(lambda: "Bireme is ready" in self.log or self._died(), timeout), self.log
        assert self.process.poll() is None, self.log

    def wait_serving(self) -> None:
        """Until the address is known and requests are served."""
        self.wait_listening()
        self.wait_ready()

    def _died(self) -> bool:
        return self.process.poll() is not None

    def client(self, timeout: float = PATIENCE, **options: Any) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=timeout, **options)

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        return httpx.post(self.url + path, json=body, headers=headers, timeout=PATIENCE)

    def get(self, path: str, **headers: str) -> httpx.Response:
        return httpx.get(self.url + path, headers=headers, timeout=PATIENCE)

    def metrics(self) -> dict[str, float]:
        """Samples by name, labels other than the model's in braces."""
        return parse_metrics(self.get("/metrics").text)

    def wait_idle(self, timeout: float = PATIENCE) -> None:
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

    def stop(self, number: int = signal.SIGTERM, timeout: float = PATIENCE) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout)

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(PATIENCE)


def parse_metrics(text: str) -> dict[str, float]:
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.rpartition(" ")
            values[re.sub(r'model_name="[^"]*",?', "", name).replace("{}", "").replace(",}", "}")] = float(value)
    return values


def start(folder: Path, *options: str, model: Path | str, hook: dict[str, Any] | None = None) -> Server:
    """A server started by the command line (``hook``: with the hooked engine), logging into ``folder``."""
    log_file = folder / "log"
    path = os.pathsep.join(filter(None, [str(_HOOKS), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "BIREME_CONFIG": "none"}
    command = [PYTHON, "-m", "bireme.server.cli", "serve", str(model)]
    command += ["--device", "cpu", "--port", "0", "--users-db", "none", *options]
    if hook is not None:
        command = [PYTHON, str(_HOOKS / "serve_hooked.py"), str(model), json.dumps(hook)]
    with log_file.open("wb") as log:
        process = subprocess.Popen(command, stderr=log, stdout=log, env=environment)
    return Server(process, log_file)
