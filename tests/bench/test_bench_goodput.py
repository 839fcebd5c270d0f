"""``--find-goodput`` and ``--compare``: what they claim is what was measured."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fake_sse import DONE, HEAD, serving, text, usage, with_places
from typer.testing import CliRunner

from bireme.bench.ask import Sample
from bireme.bench.compare import Pair, compare, pair_text
from bireme.bench.level import Level, Load
from bireme.bench.summary import summarise
from bireme.server.cli import app


async def good(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
    writer.write(HEAD + text("one two ", "length") + usage(2, 5, 0) + DONE)


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "serve", *arguments])


def find(url: str, *arguments: str) -> Any:
    return bench("--url", url, "--model", "m", "--find-goodput", *arguments)


def said(result: Any) -> str:
    (line,) = [line for line in result.stdout.splitlines() if line.startswith("GOODPUT")]
    return str(line)


def test_a_load_that_was_never_put_on_is_not_claimed(tmp_path: Path) -> None:
    """Six requests keep six users busy: that they are served well says nothing of a hundred."""
    found = tmp_path / "run.json"
    with serving(good) as url:
        result = find(url, "ttft:60000", "--num-prompts", "6", "--json", str(found))
    assert result.exit_code == 0, result.output
    run = json.loads(found.read_text(encoding="utf-8"))
    assert [level["x"] for level in run["levels"]] == [1, 2, 4, 6] and run["best"]["x"] == 6
    assert said(result).startswith("GOODPUT: 6 at once")
    assert "nothing larger was tried (--num-prompts 6 keeps 6 users busy at most; give more)" in said(result)


@pytest.mark.parametrize("start", [(), ("--request-rate", "100")])
def test_an_objective_that_nobody_meets(start: tuple[str, ...]) -> None:
    with serving(good) as url:
        result = find(url, "ttft:0", "--num-prompts", "2", *start)
    assert result.exit_code == 0 and "no load tried is small enough" in said(result)
    assert said(result).endswith("at 10 req/s it was 0.0%" if start else "at 1 at once it was 0.0%")


def test_failures_beyond_the_load_that_was_found_are_no_failure() -> None:
    """A search overloads a server on purpose; one that turns people away then has done nothing wrong."""
    full = b"HTTP/1.1 429 Full\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with serving(with_places(2, 0.05, full, good)) as url:
        result = find(url, "ttft:60000", "--num-prompts", "12", "--num-warmups", "0")
    assert result.exit_code == 0, result.output
    assert said(result).startswith("GOODPUT: 2 at once") and "; at 3 at once it is" in said(result)
    assert "x HTTP 429" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--request-rate", "inf"], "can't start at inf: a search goes up to 4096 a second"),
        (["--concurrency", "9", "--num-prompts", "8"], "--num-prompts 8 keeps 8 users busy at most"),
        (["--dataset", "multiturn", "--turns", "2", "--concurrency", "5", "--num-prompts", "8"], "keeps 4 users busy"),
        (["--dataset", "trace", "--dataset-path", "x"], "a trace has its own times"),
        (["--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"], "a ramp has its own times"),
    ],
)
def test_searches_that_can_not_be(arguments: list[str], message: str) -> None:
    with serving(good) as url:
        result = find(url, "ttft:1", *arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def run(label: str, levels: dict[str, float], **options: object) -> dict[str, Any]:
    made = [{"level": name, "loop": "closed", "output_throughput": rate, "failed": 0} for name, rate in levels.items()]
    return {"label": label, "model_id": "m", "options": {"json_path": label, **options}, "levels": made}


def test_runs_side_by_side_say_how_they_differ() -> None:
    first, second = run("m", {"1 at once": 10, "2 at once": 12}, seed=0), run("m", {"1 at once": 15, "4 at once": 9})
    second["levels"][0] |= {"failed": 3, "unfinished": 2}
    found = compare(first, second, ("before.json", "after.json"))
    lines = found.splitlines()
    assert lines[0] == "They differ in more than the load: seed 0 and None"
    assert lines[1] == "closed loop, 1 at once" and lines[2].split() == ["before.json", "after.json", "ratio"]
    assert lines[3].split() == ["tok/s", "out", "10.0", "15.0", "1.50", "better"]
    assert lines[4].split() == ["failed", "0.0", "3.0", "n/a", "worse"]
    assert "after.json was interrupted: 2 of its requests are left out" in lines[5]
    assert lines[6] == "Only one of the two has: closed loop, 2 at once, closed loop, 4 at once"
    assert "differ" not in compare(first, first) and compare(first, run("n", {"1 at once": 1})).count("n/a") == 1


def test_runs_with_nothing_in_common_are_not_compared(tmp_path: Path) -> None:
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    ramp = {"loop": "open", "ramp_up_strategy": "linear"}
    for path, levels in ((first, [{"level": "1 to 2 req/s", **ramp}]), (second, [{"level": "1 at once", "loop": "x"}])):
        path.write_text(json.dumps({"levels": levels}), encoding="utf-8")
    result = bench("--compare", str(first), str(second))
    assert result.exit_code == 2
    assert "no level in common; one or the other has: open loop, linear ramp, 1 to 2 req/s" in result.stderr
    for content, why in (({"levels": [{"x": 1}]}, "don't say which load"), ({"runs": []}, "it is a paired run")):
        first.write_text(json.dumps(content), encoding="utf-8")
        result = bench("--compare", str(first), str(second))
        assert result.exit_code == 2 and why in result.stderr


def test_a_ratio_whose_spread_crosses_one_is_marked() -> None:
    def level(seconds: float) -> Level:
        one = Sample(due=0.0, first=seconds, last=seconds, end=seconds, chunks=1, tokens=1, finished=True)
        return summarise([one], Load("closed", 1, None))

    pairs = [Pair("1 at once", (level(1), level(2), level(2)), (level(2), level(1), level(1)))]
    lines = {line.split("  ")[1]: line for line in pair_text(pairs, ("a", "b")).splitlines() if line.startswith("  ")}
    assert lines["TTFT p50 ms"].endswith("2.00  (0.50 to 2.00, 3 rounds)  says nothing: the spread crosses 1")
    alike = pair_text([Pair("1 at once", (level(1),) * 2, (level(2),) * 2)], ("a", "b"))
    assert "(0.50 to 0.50, 2 rounds)" in alike and "nothing" not in alike
