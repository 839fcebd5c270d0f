"""Servers that clients are run against, and what those clients need. ``make test-clients`` installs the clients."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import servers
import spoken
from servers import Server

#: Where ``make test-clients`` has put the npm packages.
NODE_FOLDER = "BIREME_TEST_NODE"
_INSTALL = "is not installed; 'make test-clients' installs and runs it"


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "python_package(name): a client from PyPI; skipped without it")
    config.addinivalue_line("markers", "npm_package(name): a client from npm; skipped without it")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before any server is started."""
    for mark in item.iter_markers("python_package"):
        if not _is_installed(mark.args[0]):
            pytest.skip(f"the Python package {mark.args[0]} {_INSTALL}")
    for mark in item.iter_markers("npm_package"):
        if not (_node_folder() / "node_modules" / mark.args[0]).is_dir():
            pytest.skip(f"the npm package {mark.args[0]} {_INSTALL}")


def _is_installed(distribution: str) -> bool:
    """By name on PyPI: the module ``llm`` would be found in the repository's root too."""
    try:
        importlib.metadata.distribution(distribution)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def _node_folder() -> Path:
    return Path(os.environ.get(NODE_FOLDER, "."))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What a client warns of is its own affair."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spoken_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose prompts dictate their answers; see ``spoken``."""
    folder = tmp_path_factory.mktemp("spoken")
    hook = {"step_s": 0, "kv_cache_memory": 2**31}
    one = servers.start(folder, model=spoken.long_context(folder), hook=hook)
    try:
        one.wait_serving()
        yield one
    finally:
        one.kill()


@pytest.fixture(scope="session")
def demo_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The demo model on the CPU: its own words, held to a form where a client asks for one."""
    one = servers.start(tmp_path_factory.mktemp("demo"), "--kv-cache-memory", "256MiB", model="demo")
    try:
        one.wait_serving()
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
def node(tmp_path: Path) -> Node:
    home = tmp_path / "home"
    home.mkdir()
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(home),
        "NODE_PATH": str(_node_folder() / "node_modules"),
        **{f"XDG_{name}_HOME": str(home / name.lower()) for name in ("DATA", "CONFIG", "STATE", "CACHE")},
    }
    return Node(_node_folder(), home, environment)
