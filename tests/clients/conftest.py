"""Servers that clients are run against, and what those clients need. ``make test-clients`` installs the clients."""

from __future__ import annotations

import importlib
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import servers
import spoken
from servers import Server

#: Where ``make test-clients`` has put the npm packages.
NODE_FOLDER = "BIREME_TEST_NODE"
_INSTALL = "'make test-clients' installs and runs it"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a client warns of is its own affair."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def package() -> Callable[[str], Any]:
    """``package(name)``: the imported module, or a skip that says how to get it."""

    def find(name: str) -> Any:
        try:
            return importlib.import_module(name)
        except ImportError:
            pytest.skip(f"the Python package {name} is not installed; {_INSTALL}")

    return find


@pytest.fixture(scope="session")
def spoken_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose prompts dictate their answers; see ``spoken``."""
    folder = tmp_path_factory.mktemp("spoken")
    hook = {"step_s": 0, "kv_cache_memory": 2**31}
    one = servers.start(folder, model=spoken.long_context(folder), hook=hook)
    try:
        one.wait_listening()
        one.wait_ready()
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model on the CPU: its own words, held to a form where a client asks for one."""
    one = servers.start(tmp_path_factory.mktemp("demo"), "--kv-cache-memory", "256MiB", model="demo")
    try:
        one.wait_listening()
        one.wait_ready()
        yield one
    finally:
        one.kill()


@dataclass(frozen=True)
class Node:
    """npm packages in a folder, and a home folder of their own that they may write to."""

    folder: Path
    home: Path
    environment: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, cwd: Path, **environment: str) -> str:
        """What a command prints on its standard output; ``command[0]`` names a package's program, or node itself."""
        program = command[0] if command[0] == "node" else str(self.folder / "node_modules" / ".bin" / command[0])
        asked = [program, *command[1:]]
        done = subprocess.run(
            asked,
            cwd=cwd,
            env={**self.environment, **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.fixture
def node(tmp_path: Path) -> Callable[[str], Node]:
    """``node(package)``: a Node with that package, or a skip that says how to get it."""

    def find(name: str) -> Node:
        folder = Path(os.environ.get(NODE_FOLDER, "."))
        if not (folder / "node_modules" / name).is_dir():
            pytest.skip(f"the npm package {name} is not installed; {_INSTALL}")
        home = tmp_path / "home"
        home.mkdir()
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(home),
            "NODE_PATH": str(folder / "node_modules"),
            **{f"XDG_{name}_HOME": str(home / name.lower()) for name in ("DATA", "CONFIG", "STATE", "CACHE")},
        }
        return Node(folder, home, environment)

    return find
