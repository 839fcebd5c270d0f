"""Real servers in processes of their own, on the scripted model."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted
import servers
from servers import Server

StartServer = Callable[..., Server]


@pytest.fixture(scope="session")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """Starts servers by the command line (``hook``: with the hooked engine); all are stopped at the end."""
    running: list[Server] = []

    def start(*options: str, model: Path | str = scripted.SCRIPTED, hook: dict[str, Any] | None = None) -> Server:
        running.append(servers.start(tmp_path_factory.mktemp("server"), *options, model=model, hook=hook))
        return running[-1]

    yield start
    for server in running:
        server.kill()


@pytest.fixture(scope="session")
def server(start_server: StartServer) -> Server:
    """The server that most tests share."""
    one = start_server("--kv-cache-memory", "32MiB", "--threads", "1")
    one.wait_serving()
    return one


@pytest.fixture(scope="session")
def hooked(start_server: StartServer) -> Server:
    """A server whose engine does as told by a prompt's last character; see ``hooked_engine``."""
    one = start_server(hook={"keep_alive": 0.3, "restart_delay": 0.1, "stats_interval": 0.5, "watchdog_s": 1.5})
    one.wait_serving()
    return one


@pytest.fixture(scope="session")
def paced(start_server: StartServer) -> Server:
    """A server whose steps take 20 ms: its long answers are still being made when a test looks, however late."""
    one = start_server(hook={"device": "cpu", "step_s": 0.02})
    one.wait_serving()
    return one


@pytest.fixture(scope="session")
def paced_small(start_server: StartServer) -> Server:
    """The same; one sequence at once, one more may wait."""
    one = start_server(hook={"device": "cpu", "step_s": 0.02, "max_num_seqs": 1, "max_queue": 1})
    one.wait_serving()
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
    one.wait_serving()
    return one
