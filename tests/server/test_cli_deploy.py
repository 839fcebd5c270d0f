"""The files in deploy/, and what the server tells systemd."""

from __future__ import annotations

import asyncio
import configparser
import contextlib
import os
import plistlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import typing
from pathlib import Path

import pytest
import scripted
import typer.main
from api_bodies import PATIENCE

from bireme.server.cli import app
from bireme.server.sd_notify import notify, watchdog, watchdog_interval

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> typing.Iterator[socket.socket]:
    """The socket that systemd would listen on."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(str(tmp_path / "notify"))
        link.settimeout(60)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        yield link


def test_notify_reaches_the_socket(systemd: socket.socket) -> None:
    notify("READY=1")
    assert systemd.recv(100) == b"READY=1"


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has abstract socket names")
def test_notify_knows_abstract_names(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as link:
        link.bind(f"\0bireme-test-{os.getpid()}")
        monkeypatch.setenv("NOTIFY_SOCKET", f"@bireme-test-{os.getpid()}")
        notify("STOPPING=1")
        assert link.recv(100) == b"STOPPING=1"


@pytest.mark.parametrize("address", ["", "relative", "/nowhere/at/all"])
def test_notify_without_systemd_is_silent(monkeypatch: pytest.MonkeyPatch, address: str) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", address)
    notify("READY=1")


def test_watchdog_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    for usec, pid, expected in (("3000000", "", 1.5), ("2000000", str(os.getpid()), 1.0), ("2000000", "1", None)):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        monkeypatch.setenv("WATCHDOG_PID", pid)
        assert watchdog_interval() == expected
    for usec in ("", "0", "soon"):
        monkeypatch.setenv("WATCHDOG_USEC", usec)
        monkeypatch.delenv("WATCHDOG_PID", raising=False)
        assert watchdog_interval() is None


def test_watchdog_is_silent_while_not_healthy(systemd: socket.socket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "20000")
    states = iter([True, False, False, True])

    async def watched() -> None:
        with contextlib.suppress(RuntimeError):  # the states have run out
            await watchdog(lambda: next(states))

    asyncio.run(watched())
    systemd.settimeout(0)
    assert [systemd.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    with pytest.raises(BlockingIOError):
        systemd.recv(100)


def test_a_server_tells_systemd_its_life(systemd: socket.socket, start_server: typing.Any) -> None:
    server = start_server("--device", "sim", model=scripted.SCRIPTED)
    said = ""
    while "READY=1" not in said:
        said += systemd.recv(1000).decode() + "\n"
    assert said.index("STATUS=Loading") < said.index("READY=1")
    server.process.send_signal(signal.SIGTERM)
    while "STOPPING=1" not in said:
        said += systemd.recv(1000).decode() + "\n"
    assert server.process.wait(PATIENCE) == 0


def unit() -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None, comment_prefixes=("#",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string((DEPLOY / "bireme.service").read_text())
    return parser


def test_the_unit_says_what_the_server_does() -> None:
    service = unit()["Service"]
    assert service["Type"] == "notify" and int(service["WatchdogSec"]) > 60  # --watchdog-s notices first
    assert "serve --config /etc/bireme/bireme.toml" in service["ExecStart"]
    text = (DEPLOY / "bireme.service").read_text()
    caches = re.findall(r"^Environment=(\w+)=/var/cache/bireme(?:/|$)", text, re.MULTILINE)
    assert caches == ["BIREME_CACHE", "HF_HOME", "TRITON_CACHE_DIR"]  # whatever is fetched or compiled


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not here")
def test_the_unit_is_understood_by_systemd(tmp_path: Path) -> None:
    text = (
        (DEPLOY / "bireme.service").read_text().replace("/opt/bireme/bin/bireme", shutil.which("true") or "/bin/true")
    )
    (tmp_path / "bireme.service").write_text(text)
    command = ["systemd-analyze", "verify", "--man=no", str(tmp_path / "bireme.service")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=60)
    complaints = [line for line in result.stderr.splitlines() if "bireme.service" in line]
    assert result.returncode == 0 and complaints == []


def test_the_agent_for_launchd() -> None:
    agent = plistlib.loads((DEPLOY / "bireme.plist").read_bytes())
    assert agent["ProgramArguments"][1:3] == ["serve", "--config"]
    assert agent["KeepAlive"] == {"SuccessfulExit": False} and agent["RunAtLoad"] is True


def test_the_variables_of_the_container_are_options() -> None:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    known = {f"BIREME_{param.name.upper()}" for param in command.params} | {"BIREME_CACHE"}
    for name in ("Dockerfile", "compose.yaml"):
        used = set(re.findall(r"\bBIREME_[A-Z_]+", (DEPLOY / name).read_text()))
        assert used and used <= known


def test_keys_stay_out_of_the_container() -> None:
    """Of what `docs/deploy.md` has people write keys into, nothing is sent to the build."""
    assert {"**/.env", "**/bireme.toml", ".git"} <= set((DEPLOY / "Dockerfile.dockerignore").read_text().splitlines())


def test_the_container_runs_as_nobody_in_particular() -> None:
    lines = (DEPLOY / "Dockerfile").read_text().splitlines()
    assert "USER 10001:10001" in lines
    bases = {line.split()[1] for line in lines if line.startswith("FROM ")}
    assert all(re.fullmatch(r"python:\d+\.\d+\.\d+-slim-\w+", base) for base in bases)
