"""``bireme bench serve`` against servers whose right numbers are known: the known faults of benchmarks (kind E)."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fake_sse import DONE, HEAD, event, failure, serving, text, usage, with_places
from typer.testing import CliRunner

from bireme.bench.arrivals import Ramp, gap_variation, ramp, schedule
from bireme.bench.ask import Prompt, Sample, Session, Target
from bireme.bench.capacity import measure_capacity
from bireme.bench.data import draw
from bireme.bench.dataset import DataSpec
from bireme.bench.level import Load, Spread
from bireme.bench.load import closed_samples, open_samples
from bireme.bench.objective import Objective, parse_objective
from bireme.bench.paired import run_paired
from bireme.bench.pulse import Pulse
from bireme.bench.results import warnings
from bireme.bench.search import search
from bireme.bench.serve import Plan, Runner
from bireme.bench.sources import WordSource
from bireme.bench.summary import summarise
from bireme.bench.traffic import Traffic
from bireme.server.cli import app


async def good(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
    """Four tokens in two chunks, at once."""
    writer.write(HEAD + text("one two ") + text("three four", "length") + usage(4, 11, 3) + DONE)


def bench(*arguments: str) -> Any:
    return CliRunner().invoke(app, ["bench", "serve", *arguments])


def one_level(url: str, count: int, concurrency: int, objective: Objective | None = None) -> Any:
    sessions = [Session((Prompt("x", 100),))] * count
    samples = asyncio.run(closed_samples(Target(url, "fake"), sessions, concurrency))
    return summarise(samples, Load("closed", concurrency, None), objective)


def test_tokens_are_not_chunks() -> None:
    """E01: 100 tokens in 25 chunks, 10 ms apart."""

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        writer.write(HEAD)
        for _ in range(25):
            writer.write(text("four tokens in one"))
            await writer.drain()
            await asyncio.sleep(0.01)
        writer.write(text("", "length") + usage(100) + DONE)

    with serving(answer) as url:
        level = one_level(url, 1, 1)
    assert (level.output_tokens, level.tokens_from) == (100, "usage")
    chunk, token = level.spreads["inter_chunk"].mean, level.spreads["itl"].mean
    assert chunk >= 10 and token == pytest.approx(chunk / 4)
    assert level.peak_tokens_per_second >= level.output_throughput


def test_the_first_token_is_the_first_text() -> None:
    """E02: a role chunk and a comment at once, text after 0.3 s; a stream without text gives no sample."""

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        role = event(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": None}])
        writer.write(HEAD + role + b": ping\n\n")
        await writer.drain()
        if number % 2:
            writer.write(DONE)
            return
        await asyncio.sleep(0.3)
        writer.write(text("now", "stop") + usage(1) + DONE)

    with serving(answer) as url:
        level = one_level(url, 4, 1)
    assert level.spreads["ttft"].n == 2 and level.failures == {"no token": 2}
    assert level.spreads["ttft"].percentiles[50] > 290


def test_failures_never_improve_the_numbers() -> None:
    """E04: 50 % 503, 10 % empty, 10 % error event, the rest good after 0.1 s."""

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        if (failed := failure(number)) is not None:
            writer.write(failed)
        else:
            await asyncio.sleep(0.1)
            writer.write(HEAD + text("good", "stop") + usage(7) + DONE)

    objective = Objective({"ttft": 60_000, "e2el": 1})
    with serving(answer) as url:
        level = one_level(url, 40, 1, objective)
    assert (level.completed, level.failed, level.rejected) == (12, 28, 20)
    assert level.failures == {"HTTP 503": 20, "no token": 4, "error event": 4}
    assert level.spreads["e2el"].n == 12 and level.spreads["e2el"].percentiles[50] >= 99
    assert level.output_throughput == pytest.approx(12 * 7 / level.duration)
    assert level.attainment.by_metric == {"ttft": 12 / 40, "e2el": 0}
    assert level.attainment.good == 0 == level.goodput


def test_a_stall_counts_for_everyone_who_waited() -> None:
    """E06, ten times faster: 100 requests a second for 3 s, the server stands still from 1 s to 2 s."""
    began: list[float] = []

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        now = asyncio.get_running_loop().time()
        began.append(now)
        into = now - began[0]
        if 1 <= into < 2:
            await asyncio.sleep(2 - into)
        writer.write(HEAD + text("x", "stop") + usage(1) + DONE)

    due = schedule(300, 100, float("inf"))
    with serving(answer) as url:
        samples = asyncio.run(open_samples(Target(url, "fake"), [Session((Prompt("x", 1),))] * 300, due))
    level = summarise(samples, Load("open", None, 100))
    starts = [sample.due for sample in samples]
    assert max(starts) - min(starts) == pytest.approx(due[-1] - due[0])  # the schedule is what it was before the run
    assert level.completed == 300
    assert level.spreads["e2el"].percentiles[99] > 600  # a generator that waits for answers would see next to none
    assert sum(value > 100 for value in level.series["e2el_ms"]) >= 80
    assert level.max_send_lag_ms >= 0


def test_a_capped_open_loop_shows_the_wait() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        await asyncio.sleep(0.1)
        writer.write(HEAD + text("x", "stop") + usage(1) + DONE)

    with serving(answer) as url:
        sessions = [Session((Prompt("x", 1),))] * 5
        samples = asyncio.run(open_samples(Target(url, "fake"), sessions, [0.0] * 5, max_concurrency=1))
    level = summarise(samples, Load("open", 1, float("inf")))
    assert level.max_concurrent == 1
    assert level.max_send_lag_ms >= 400
    assert level.spreads["ttft"].percentiles[99] >= 500


def test_percentiles_are_nearest_rank_and_carry_their_n() -> None:
    """E08."""
    spread = Spread.of([float(value) for value in np.random.default_rng(1).permutation(np.arange(1, 101))])
    assert (spread.n, spread.percentiles) == (100, {50: 50, 90: 90, 95: 95, 99: 99})
    assert Spread.of([3.0, 1.0, 2.0]).percentiles == {50: 2, 90: 3, 95: 3, 99: 3}
    assert Spread.of([]).percentiles[99] is None and Spread.of([]).mean is None


@pytest.mark.parametrize(("burstiness", "spread"), [(1.0, 1.0), (0.25, 2.0), (4.0, 0.5), (float("inf"), 0.0)])
def test_arrivals_are_gamma(burstiness: float, spread: float) -> None:
    due = schedule(4000, 8, burstiness, seed=3)
    assert due[-1] == pytest.approx(500)
    assert due == sorted(due) == schedule(4000, 8, burstiness, seed=3)
    assert gap_variation(due) == pytest.approx(spread, abs=0.12)


def test_ramps_go_from_rate_to_rate() -> None:
    for strategy in ("linear", "exponential"):
        gaps = np.diff(ramp(1000, Ramp(2, 20, strategy), 1e6))
        assert 1 / gaps[0] == pytest.approx(2, rel=0.05) and 1 / gaps[-1] == pytest.approx(20, rel=0.05)
    with pytest.raises(ValueError, match="request-rate is 0"):
        schedule(3, 0)
    assert schedule(2, float("inf")) == [0, 0]


def test_four_levels_with_json_and_html(tmp_path: Path) -> None:
    found, report = tmp_path / "run.json", tmp_path / "run.html"
    with serving(good) as url:
        arguments = [
            "--url",
            url,
            "--concurrency",
            "1,2,3,4",
            "--num-prompts",
            "6",
            "--goodput",
            "ttft:9000",
            "tpot:9000",
        ]
        result = bench(*arguments, "--json", str(found), "--html", str(report))
    assert result.exit_code == 0, result.output
    run = json.loads(found.read_text(encoding="utf-8"))
    assert [level["max_concurrency"] for level in run["levels"]] == [1, 2, 3, 4]
    level = run["levels"][-1]
    wanted = {"completed": 6, "failed": 0, "total_input_tokens": 66, "total_cached_tokens": 18}
    assert wanted.items() <= level.items()
    assert level["total_output_tokens"] == 24 and level["loop"] == "closed"
    for name in ("ttft", "tpot", "itl", "e2el"):
        assert {f"{kind}_{name}_ms" for kind in ("mean", "median", "std", "p50", "p90", "p95", "p99")} <= level.keys()
    assert level["slo_attainment"] == 1 and level["request_goodput"] == pytest.approx(level["request_throughput"])
    page = report.read_text(encoding="utf-8")
    assert page.count("<svg") == 5 and not re.search(r"(src|href)=", page)
    assert "4 at once, between chunks</td>" in page and "<th>of them cached</th>" in page
    assert "<th>TPOT met</th>" in page and "1 at once, sent later than due</td>" in page
    both = bench("--compare", str(found), str(found))
    assert both.exit_code == 0 and "ratio" in both.output and "1.00" in both.output


def test_a_run_keeps_what_was_asked(tmp_path: Path) -> None:
    found = tmp_path / "run.json"
    with serving(good) as url:
        given = ["--url", url, "--concurrency", "2", "--num-prompts", "2", "ttft:9000", "--goodput", "tpot:9000"]
        result = bench(*given, "--json", str(found))
    assert result.exit_code == 0, result.output
    options = json.loads(found.read_text(encoding="utf-8"))["options"]
    assert options["goodput"] == "tpot:9000 ttft:9000" and options["num_prompts"] == 2 and options["chat"] is False
    assert not [value for value in options.values() if "<" in str(value)]


def test_a_trace_runs_whole_at_its_own_times(tmp_path: Path) -> None:
    trace, found, report = tmp_path / "trace.jsonl", tmp_path / "run.json", tmp_path / "run.html"
    lines = [{"timestamp": 5 * i, "input_length": 9, "output_length": 3} for i in range(120)]
    trace.write_text("\n".join(map(json.dumps, [*lines, {"when": 3}])), encoding="utf-8")
    with serving(good) as url:
        given = ["--base-url", url, "--dataset", "trace", "--dataset-path", str(trace)]
        result = bench(*given, "--json", str(found), "--html", str(report))
    assert result.exit_code == 0, result.output
    assert "open loop, the trace's times: 120 completed" in result.output
    assert "1 of 121 entries are left out" in " ".join(result.stderr.split())
    (level,) = json.loads(found.read_text(encoding="utf-8"))["levels"]
    assert level["request_rate"] is None and level["x"] is None
    assert max(level["series"]["start"]) == pytest.approx(119 * 0.005, abs=1e-3)
    assert "TTFT over time" in report.read_text(encoding="utf-8")


def test_an_even_rate_of_conversations_is_called_so(tmp_path: Path) -> None:
    found = tmp_path / "run.json"
    with serving(good) as url:
        given = ["--url", url, "--dataset", "multiturn", "--turns", "2", "--request-rate", "100", "--burstiness", "inf"]
        result = bench(*given, "--num-prompts", "8", "--think", "0.01", "--json", str(found))
    assert "open loop, burstiness inf, 100 conversations/s: 8 completed" in result.output
    run = json.loads(found.read_text(encoding="utf-8"), parse_constant=pytest.fail)
    assert run["levels"][0]["burstiness"] == "inf" == run["options"]["burstiness"]


def test_a_ramp_is_called_one(tmp_path: Path) -> None:
    found, page = tmp_path / "run.json", tmp_path / "run.html"
    with serving(good) as url:
        ramped = ["--ramp-up-start-rps", "50", "--ramp-up-end-rps", "200", "--burstiness", "0.5"]
        result = bench("--url", url, *ramped, "--num-prompts", "20", "--json", str(found), "--html", str(page))
    assert "open loop, linear ramp, burstiness 0.5, 50 to 200 req/s: 20 completed" in result.output
    assert "<td>open loop, linear ramp, burstiness 0.5, 50 to 200 req/s</td>" in page.read_text(encoding="utf-8")
    (level,) = json.loads(found.read_text(encoding="utf-8"))["levels"]
    assert (level["ramp_up_start_rps"], level["ramp_up_end_rps"], level["request_rate"]) == (50, 200, "inf")


def test_failures_are_loud() -> None:
    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        writer.write(b"HTTP/1.1 429 Full\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with serving(answer) as url:
        result = bench(
            "--url", url, "--model", "fake", "--tokenizer", "demo", "--concurrency", "1", "--num-prompts", "3"
        )
    assert result.exit_code == 1
    assert "3 of 3 requests FAILED: 3 x HTTP 429" in result.output


def test_a_failure_says_why(tmp_path: Path) -> None:
    """The server's own words, beside the kind: in the text and in the record."""
    found, body = tmp_path / "run.json", b'{"error": {"message": "top_p is 7;\\n it must be 0 to 1"}}'

    async def answer(writer: asyncio.StreamWriter, number: int, asked: dict[str, Any]) -> None:
        writer.write(b"HTTP/1.1 400 Bad\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)

    with serving(answer) as url:
        given = ["--url", url, "--model", "fake", "--concurrency", "1", "--num-prompts", "2", "--json", str(found)]
        result = bench(*given, "--tokenizer", "demo")
        refused = bench(*given)
    assert "2 x HTTP 400 (top_p is 7; it must be 0 to 1)" in result.stderr
    (level,) = json.loads(found.read_text(encoding="utf-8"))["levels"]
    assert level["failure_reasons"] == {"HTTP 400": "top_p is 7; it must be 0 to 1"}
    assert refused.exit_code == 2 and "HTTP 400 (top_p is 7; it must be 0 to 1)" in " ".join(refused.stderr.split())


def test_a_server_that_refuses_ignore_eos_is_measured_without_it() -> None:
    async def strict(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        if "ignore_eos" in body:
            writer.write(b"HTTP/1.1 422 Unprocessable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            await good(writer, number, body)

    with serving(strict) as server:
        result = bench("--url", server, "--model", "m", "--concurrency", "2", "--num-prompts", "4")
        ids = bench("--url", server, "--model", "m", "--concurrency", "2", "--num-prompts", "4", "--tokenizer", "demo")
    for found in (result, ids):
        assert found.exit_code == 0, found.output
        assert "refuses ignore_eos" in found.stderr and "4 completed, 0 failed" in found.stdout


def test_repeated_prompts_are_named() -> None:
    async def cached(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        writer.write(HEAD + text("one two ", "length") + usage(2, 10, 9) + DONE)

    with serving(cached) as server:
        result = bench("--url", server, "--model", "m", "--concurrency", "1", "--num-prompts", "2")
        assert result.exit_code == 0 and "another --seed" in result.stderr
        with serving(good) as other:
            given = ["--against", other, "--concurrency", "1", "--num-prompts", "2", "--rounds", "1"]
            result = bench("--url", server, "--model", "m", *given)
    name = server.removeprefix("http://").removesuffix("/v1")
    assert f"WARNING: {name}: 1 at once: most prompt tokens" in " ".join(result.stderr.split())
    assert not [line for line in result.stderr.splitlines() if "--seed" in line and name not in line]


def test_paired_mode_alternates(tmp_path: Path) -> None:
    async def slow(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        await asyncio.sleep(0.15)
        await good(writer, number, body)

    with serving(good) as fast, serving(slow) as other:
        page, data = tmp_path / "pair.html", tmp_path / "pair.json"
        given = ["--concurrency", "1,2", "--num-prompts", "3", "--rounds", "2"]
        given += ["--html", str(page), "--json", str(data)]
        result = bench("--url", fast, "--against", other, *given)
    assert result.exit_code == 0, result.output
    html, runs = page.read_text(encoding="utf-8"), json.loads(data.read_text(encoding="utf-8"))["runs"]
    assert [len(run["levels"]) for run in runs] == [4, 4] and html.count("<svg") == 5
    name = other.removeprefix("http://").removesuffix("/v1")
    assert f"{name}, 2 at once, round 2" in html and "2 rounds)" in html
    ratio = re.search(r"tok/s out\s+([\d.]+)\s+\(([\d.]+) to ([\d.]+), 2 rounds\)", result.output)
    assert ratio is not None and float(ratio[1]) > 1.5


def test_the_search_finds_where_the_objective_breaks() -> None:
    """A server with three places that turns everyone else away: with four users many requests fail."""
    full = b"HTTP/1.1 503 Full\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    objective = Objective({"ttft": 60_000.0})
    with serving(with_places(3, 0.1, full, good)) as url:
        plan = Plan(Traffic(DataSpec(output_len=4), concurrencies=(1,), num_prompts=24), objective=objective, warmups=0)
        runner = Runner(Target(url, "fake"), plan, WordSource())
        best = search(runner, 1)
    assert best == Load("closed", 3, None)
    assert [level.load.concurrency for level in runner.levels] == [1, 2, 4, 3]


def test_what_a_server_does_not_say_is_not_made_up(tmp_path: Path) -> None:
    """Without usage nobody knows how long prompts were; with usage alone, nothing of a cache."""
    found = tmp_path / "run.json"
    told = event(choices=[], usage={"completion_tokens": 2, "prompt_tokens": 5})
    for counts, tokens_in in ((b"", "tokens in: the server doesn't say"), (told, "(cached: the server doesn't say)")):

        async def answer(
            writer: asyncio.StreamWriter, number: int, body: dict[str, Any], counts: bytes = counts
        ) -> None:
            writer.write(HEAD + text("one two ", "length") + counts + DONE)

        with serving(answer) as url:
            result = bench("--url", url, "--concurrency", "1", "--num-prompts", "3", "--json", str(found))
        assert result.exit_code == 0 and tokens_in in result.stdout, result.output
        (level,) = json.loads(found.read_text(encoding="utf-8"))["levels"]
        assert level["total_cached_tokens"] is None
        assert level["total_input_tokens"] == (15 if counts else None)
        assert (level["total_token_throughput"] is None) == (not counts) == ("no usage" in result.stderr)


def test_keys_go_to_their_servers_and_into_no_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []

    def noted(options: Any, plan: Any, targets: tuple[Target, Target], *rest: Any) -> int:
        keys.extend(target.api_key for target in targets)
        return run_paired(options, plan, targets, *rest)

    monkeypatch.setattr("bireme.bench.serve_command.run_paired", noted)
    data, page = tmp_path / "pair.json", tmp_path / "pair.html"
    with serving(good) as first, serving(good) as second:
        given = ["--url", first, "--api-key", "first-secret", "--against", second, "--against-api-key=second-secret"]
        given += ["--concurrency", "1", "--num-prompts", "1", "--rounds", "1"]
        monkeypatch.setattr("sys.argv", ["bireme", "bench", "serve", *given])
        result = bench(*given, "--json", str(data), "--html", str(page))
    assert result.exit_code == 0, result.output
    assert keys == ["first-secret", "second-secret"]
    kept = data.read_text(encoding="utf-8") + page.read_text(encoding="utf-8")
    assert "secret" not in kept and "--api-key ..." in kept and "--against-api-key=..." in kept


def test_a_server_that_only_chats_is_measured_by_chat() -> None:
    async def chats(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        if "messages" not in body:
            writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            await good(writer, number, body)

    with serving(chats) as url:
        given = ["--url", url, "--concurrency", "1", "--num-prompts", "1"]
        assert "is measured with --chat" in " ".join(bench(*given).stderr.split())
        assert bench(*given, "--chat").exit_code == 0


def test_an_answer_that_is_no_stream_is_called_so() -> None:
    async def whole(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
        writer.write(head + b"{}")

    with serving(whole) as url:
        assert (
            one_level(url, 1, 1)
            .failed_line()
            .endswith("no token (the answer is no event stream but 'application/json')")
        )


def test_without_usage_a_tokenizer_counts(tmp_path: Path, demo_model: Path) -> None:
    """E01: usage first, else the tokenizer, else chunks; of reasoning the text isn't kept, so there it is chunks."""
    path, found = tmp_path / "asked.jsonl", tmp_path / "run.json"
    path.write_text('{"prompt": "Say it."}', encoding="utf-8")

    async def silent(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        assert "messages" in body
        thought = event(choices=[{"index": 0, "delta": {"reasoning_content": "hm"}, "finish_reason": None}])
        writer.write(HEAD + (thought if number else b"") + text("one two three four five", "length") + DONE)

    given = ["--dataset", "jsonl", "--dataset-path", str(path), "--chat", "--tokenizer", str(demo_model)]
    given += ["--no-ignore-eos"]
    for prompts, kind, tokens in (("1", "tokenizer", 5), ("2", "chunks", 7)):
        with serving(silent) as url:
            more = ["--concurrency", "1", "--num-warmups", "0", "--num-prompts", prompts, "--json", str(found)]
            result = bench("--url", url, *given, *more)
        assert result.exit_code == 0, result.output
        (level,) = json.loads(found.read_text(encoding="utf-8"))["levels"]
        assert (level["tokens_from"], level["total_output_tokens"]) == (kind, tokens)
        assert "the server sends no usage" in result.stderr


def test_turns_that_were_not_asked_are_counted(tmp_path: Path) -> None:
    found = tmp_path / "run.json"

    async def second_fails(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        if len(body["messages"]) > 1:
            writer.write(b"HTTP/1.1 400 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            await good(writer, number, body)

    with serving(second_fails) as url:
        given = ["--dataset", "multiturn", "--turns", "4", "--num-prompts", "8", "--concurrency", "3"]
        result = bench("--url", url, *given, "--json", str(found))
    assert result.exit_code == 1 and "2 of 4 requests FAILED" in result.stdout
    assert "4 later turns of their conversations were not asked" in result.stdout
    assert json.loads(found.read_text(encoding="utf-8"))["levels"][0]["unasked"] == 4
    assert "2 conversations to share out, so no more than 2 users were ever busy" in " ".join(result.stderr.split())


def test_a_generator_that_does_not_keep_up_says_so() -> None:
    late = [Sample(due=0.0, sent=0.2, first=0.3, last=0.3, end=0.3, chunks=1, tokens=1, finished=True)]
    (said,) = warnings([summarise(late, Load("open", None, 9.0))])
    assert "9 req/s: requests were sent up to 200 ms later than due" in said
    assert not warnings([summarise(late, Load("open", 1, 9.0))])  # there it is the cap's doing
    (said,) = warnings([summarise([replace(late[0], sent=0.0)], Load("open", None, 9.0), generator_cpu=0.9)])
    assert "used 90% of a core" in said
    (said,) = warnings([summarise([replace(late[0], sent=0.0)], Load("closed", 1, None), generator_late_ms=300)])
    assert "ran 300 ms late (p95)" in said and "the server may be faster" in said


def test_a_generator_knows_when_it_was_late() -> None:
    async def work() -> Pulse:
        async with Pulse() as pulse:
            for _ in range(5):
                await asyncio.sleep(0.001)
                time.sleep(0.05)  # nobody is served meanwhile, and no answer's time is noted
        return pulse

    assert asyncio.run(work()).late_ms() >= 30
    assert Pulse().late_ms() == 0


def test_chats_carry_their_answers_on() -> None:
    seen: list[int] = []

    async def answer(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        seen.append(len(body["messages"]))
        assert [m["role"] for m in body["messages"]] == (["user", "assistant"] * 9)[: len(body["messages"])]
        await good(writer, number, body)

    drawn = draw(DataSpec("multiturn", turns=3), WordSource(), 3)
    with serving(answer) as url:
        samples = asyncio.run(closed_samples(Target(url, "fake"), drawn.sessions, 1))
    assert seen == [1, 3, 5] and [sample.text for sample in samples] == ["one two three four"] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--concurrency", "1", "--request-rate", "2"], "give either --concurrency"),
        (["--concurrency", "one"], "concurrency is 'one'"),
        (["--concurrency", "1.5"], "every number must be whole"),
        (["--concurrency", "2", "--max-concurrency", "4"], "belong to an open loop"),
        (["--request-rate", "3", "--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2"], "give either --concurrency"),
        (["--ramp-up-start-rps", "1"], "a ramp needs both"),
        (
            ["--ramp-up-start-rps", "1", "--ramp-up-end-rps", "2", "--ramp-up-strategy", "steep"],
            "linear or exponential",
        ),
        (["--find-goodput", "ttft:1", "--concurrency", "1,2"], "tries loads of its own"),
        (["--dataset", "trace", "--dataset-path", "x", "--request-rate", "3"], "a trace has times of its own"),
        (["--find-goodput"], "needs an objective"),
        (["--goodput", "speed:3"], "goodput names 'speed'"),
        (["--goodput", "ttft:soon"], "no number of milliseconds"),
        (["--dataset", "poems"], "dataset is 'poems'"),
        (["--dataset", "trace"], "needs --dataset-path"),
        (["--compare", "nowhere.json", "nowhere.json"], "no result of"),
        (["--compare", "a.json", "b.json", "--html", "c.html"], "--compare only prints"),
        (["--url", "http://[::bad/v1"], "is no address"),
        (["--url", "127.0.0.1:1"], "gives no model"),
        (["--concurrency", ","], "numbers with commas"),
        (["--concurrency", "4,1,4"], "concurrency has 4 twice"),
        (["--goodput", "ttft:1", "ttft:2"], "bounds ttft twice"),
        (["demo"], "'demo' belongs to no option"),
        (["--dataset-path", "x.json"], "--dataset random reads no file"),
        (["--prefix-len", "64"], "--prefix-len says nothing of --dataset random; it is of --dataset prefix"),
        (["--dataset", "trace", "--dataset-path", "x", "--input-len", "9"], "random or prefix or multiturn"),
        (["--ramp-up-strategy", "linear"], "give --ramp-up-start-rps"),
        (["--rounds", "2"], "give the second's address with --against"),
        (["--attainment", "0.5"], "give one: --goodput"),
        (["--against-model", "x"], "give its address with --against"),
        (["--against-api-key", "x"], "give its address with --against"),
        (["--json", "nowhere/x.json"], "is no folder"),
        (["--html", "/"], "name a file in it"),
        (["--request-rate", "3", "--burstiness", "nan"], "burstiness is nan"),
        (["--ramp-up-start-rps", "1", "--ramp-up-end-rps", "inf"], "a ramp's rate is inf"),
        (["--seed", "-5"], "--seed"),
        (["--extra-body", '{"stream": false}'], "extra-body sets stream"),
        (["--dataset", "trace", "--dataset-path", "x", "--burstiness", "2"], "a trace has times of its own"),
    ],
)
def test_bad_input_is_named(arguments: list[str], message: str) -> None:
    result = bench(*arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


@pytest.mark.parametrize("status, code", [(401, 1), (503, 1), (404, 2), (200, 2)])
def test_a_server_that_refuses_is_no_wrong_input(status: int, code: int) -> None:
    async def never(writer: asyncio.StreamWriter, number: int, body: dict[str, Any]) -> None:
        raise AssertionError("nothing is asked of a server that names no model")

    with serving(never, b"HTTP/1.1 %d X\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}" % status) as url:
        result = bench("--url", url)
    assert result.exit_code == code and "gives no model" in " ".join(result.output.split())


def test_a_server_that_is_not_there_is_no_wrong_input() -> None:
    result = bench("--url", "http://127.0.0.1:1")
    assert result.exit_code == 1 and "the address may lack its /v1" in " ".join(result.output.split())


def test_objectives() -> None:
    found = parse_objective(["ttft:1000", "tpot:50,e2el:9000"])
    assert found is not None and dict(found.bounds) == {"ttft": 1000, "tpot": 50, "e2el": 9000}
    single = Sample(due=0.0, sent=0.0, first=0.5, last=0.5, end=0.5, chunks=1, tokens=1, finished=True)
    assert found.met(single) == {"ttft": True, "tpot": True, "e2el": True}
    late = Sample(due=0.0, sent=1.0, first=1.5, last=1.5, end=1.5, chunks=1, tokens=1, finished=True)
    assert not found.met(late)["ttft"]  # from when it was due


def test_the_generator_knows_its_own_limit(caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        capacity = measure_capacity(0.1)
    assert not caplog.records  # ending the server is no error, and nothing that a user should read
    assert capacity.requests_per_second > 5
    assert capacity.chunks_per_second == pytest.approx(64 * capacity.requests_per_second)
