"""``bireme bench`` after Ctrl-C: what was measured until then is kept, and nobody can take it for the whole."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from fake_sse import DONE, HEAD, serving, text, usage
from typer.testing import CliRunner

from bireme.bench import offline
from bireme.server.cli import app

Answer = Callable[[asyncio.StreamWriter, int, dict[str, Any]], Awaitable[None]]


def interrupting(at: int) -> Answer:
    """Answers at once; request ``at`` and those after it get none, since Ctrl-C comes with the first of them."""

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        if number == at:
            os.kill(os.getpid(), signal.SIGINT)
        if number >= at:
            await asyncio.sleep(20)
        writer.write(HEAD + text("one two ", "length") + usage(2, 5, 0) + DONE)

    return answer


def bench(*arguments: str) -> Any:
    result = CliRunner().invoke(app, ["bench", *arguments])
    assert result.exit_code == 130, result.output
    return result


def test_a_level_that_was_cut_short_says_so(tmp_path: Path) -> None:
    found, page = tmp_path / "run.json", tmp_path / "run.html"
    with serving(interrupting(12)) as url:  # the prompts' words, a warm-up, six requests, four of eight
        given = ["--url", url, "--model", "m", "--concurrency", "1,2,4", "--num-prompts", "6", "ttft:9000"]
        result = bench("serve", *given, "--json", str(found), "--html", str(page))
    run = json.loads(found.read_text(encoding="utf-8"))
    whole, cut = run["levels"]
    assert run["interrupted"] and (whole["completed"], whole["unfinished"]) == (6, 0)
    assert cut["completed"] in (3, 4)  # the last answer may still be on its way when Ctrl-C comes
    assert (cut["failed"], cut["unfinished"]) == (0, 6 - cut["completed"])
    assert f"INTERRUPTED: {cut['unfinished']} more had not begun or not ended" in result.stdout
    said = " ".join(result.stderr.split())
    assert "INTERRUPTED: this is a part of what was asked; not begun: 4 at once" in said
    assert "INTERRUPTED" in page.read_text(encoding="utf-8")


def test_a_search_that_was_cut_short_says_what_it_knows(tmp_path: Path) -> None:
    found = tmp_path / "run.json"
    with serving(interrupting(12)) as url:
        given = ["--url", url, "--model", "m", "--find-goodput", "ttft:9000", "--num-prompts", "4"]
        result = bench("serve", *given, "--json", str(found))
    assert "GOODPUT: 2 at once" in result.stdout and "nothing larger was tried" in result.stdout
    assert "the search had not ended" in result.stderr
    assert json.loads(found.read_text(encoding="utf-8"))["best"]["x"] == 2


def test_a_search_without_a_whole_level_claims_nothing() -> None:
    with serving(interrupting(4)) as url:
        result = bench("serve", "--url", url, "--model", "m", "--find-goodput", "ttft:9000", "--num-prompts", "4")
    assert "GOODPUT: no load was tried to its end" in result.stdout


def test_only_whole_pairs_are_compared(tmp_path: Path) -> None:
    found, page = tmp_path / "pair.json", tmp_path / "pair.html"
    with serving(interrupting(10**9)) as first, serving(interrupting(6)) as second:
        given = ["--url", first, "--against", second, "--concurrency", "1", "--num-prompts", "2", "--rounds", "9"]
        result = bench("serve", *given, "--json", str(found), "--html", str(page))
    assert "2 rounds)" in result.stdout and "only levels that both servers ended" in " ".join(result.stderr.split())
    assert json.loads(found.read_text(encoding="utf-8"))["about"]["interrupted"] is True
    assert "round 2" in page.read_text(encoding="utf-8") and "round 3" not in page.read_text(encoding="utf-8")


def test_before_anything_was_measured_nothing_is_said() -> None:
    with serving(interrupting(1)) as url:
        result = bench("serve", "--url", url, "--model", "m", "--concurrency", "1", "--num-prompts", "2")
    assert not result.stdout


def test_rows_without_a_server_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(options: Any) -> Any:
        yield {"sequences": 1}
        raise KeyboardInterrupt

    monkeypatch.setitem(offline._BENCHES, "host", measured)
    result = bench("host", "--sequences", "1,2", "--json", str(tmp_path / "host.json"))
    record = json.loads((tmp_path / "host.json").read_text(encoding="utf-8"))
    assert record["interrupted"] is True and record["rows"] == [{"sequences": 1}]
    assert "INTERRUPTED" in result.stderr
