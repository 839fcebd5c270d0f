"""`make bench-peers` from its options to its report, over servers that only pretend to compute."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fake_sse import DONE, HEAD, serving, text, usage

from bireme.bench import peers
from bireme.bench.ask import Target
from bireme.bench.peers_options import LLAMA, OURS


@dataclass
class Standing:
    """Stands for a server that was started."""

    label: str
    target: Target
    command: tuple[str, ...] = ("python", "-m", "server")

    @contextmanager
    def awake(self) -> Iterator[Target]:
        yield self.target

    def memory(self) -> int:
        return 2**20

    def stop(self) -> None:
        pass


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["peers", *arguments])
    return peers.main()


def measured(monkeypatch: pytest.MonkeyPatch, model: Path, folder: Path, stop_at: int = 10**9) -> tuple[int, Any, str]:
    """(exit code, record, page) of three rounds of two phases; Ctrl-C comes with request ``stop_at``."""

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        if number == stop_at:
            os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(20)
        writer.write(HEAD + text("one two ", "length") + usage(2, 5, 0) + DONE)

    record, page = folder / "peers.json", folder / "peers.html"
    with serving(answer) as url:
        both = [Standing(label, Target(url, "m")) for label in (OURS, LLAMA)]
        monkeypatch.setattr(peers, "_start", lambda *given: both)
        sizes = ["--concurrency", "1", "--prefix-tokens", "20", "--prompt-tokens", "9", "--output-tokens", "2"]
        given = ["--model", str(model), "--rounds", "3", "--json", str(record), "--html", str(page), *sizes]
        code = run(monkeypatch, *given)
    found = json.loads(record.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    return code, found, page.read_text(encoding="utf-8")


def test_a_report_from_one_command(
    monkeypatch: pytest.MonkeyPatch, demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, record, page = measured(monkeypatch, demo_model, tmp_path)
    assert code == 0 and not record["interrupted"]
    assert [row["server"] for row in record["measured"][:4]] == ["bireme", "llama.cpp", "llama.cpp", "bireme"]
    assert len(record["measured"]) == 12 and "llama.cpp, 8 at once, round 3" in page
    shown = capsys.readouterr()
    assert "bireme over llama.cpp" in shown.out and "3 rounds)" in shown.out and "FAILED" not in shown.err


def test_a_report_says_when_the_generator_was_late(
    monkeypatch: pytest.MonkeyPatch, demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bireme.bench.results.LATE_MS", -1.0)
    code, record, page = measured(monkeypatch, demo_model, tmp_path)
    assert code == 0 and "WARNING: llama.cpp, shared: 8 at once: the load generator ran" in capsys.readouterr().err
    assert record["notes"] and "llama.cpp, distinct: 1 at once: the load generator ran" in page


def test_after_ctrl_c_what_all_servers_ended_is_kept(
    monkeypatch: pytest.MonkeyPatch, demo_model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    phase = 6 + 1, 24 + 2  # requests, and those that warm up; each phase on both servers
    code, record, _ = measured(monkeypatch, demo_model, tmp_path, stop_at=2 * sum(phase) + phase[0] + 2)
    assert code == 130 and record["interrupted"]
    assert [(row["phase"], row["server"]) for row in record["measured"]] == [
        ("distinct", "bireme"),
        ("distinct", "llama.cpp"),
        ("shared", "llama.cpp"),
        ("shared", "bireme"),
    ]
    assert "INTERRUPTED: only what every server has ended is shown" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "0"], "'0' is no whole number from 1 on"),
        (["--rounds", "-1"], "'-1' is no whole number from 1 on"),
        (["--prefix-tokens", "few"], "'few' is no whole number from 0 on"),
        (["--html", "nowhere/x.html"], "is no folder"),
        (["--html", "", "--model", "nowhere"], "'nowhere' is no file or folder here"),
    ],
)
def test_wrong_options_start_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    monkeypatch.setattr(peers, "_start", lambda *given: pytest.fail("a server was started"))
    with pytest.raises(SystemExit) as end:
        run(monkeypatch, *arguments)
    assert end.value.code == 2 and message in capsys.readouterr().err


def test_a_server_that_does_not_come_up_says_its_last_words(
    monkeypatch: pytest.MonkeyPatch, demo_model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*given: object) -> list[Standing]:
        raise RuntimeError("llama.cpp did not come up; its last words:\nno room")

    monkeypatch.setattr(peers, "_start", fails)
    assert run(monkeypatch, "--html", "", "--model", str(demo_model)) == 1
    assert capsys.readouterr().err == "bireme: llama.cpp did not come up; its last words:\nno room\n"
