"""Benchmarks without a server, their one form of record, and what is read of another tool's report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from bireme.backends.select import DeviceUnavailableError
from bireme.bench import http
from bireme.bench.ask import Sample
from bireme.bench.http import PacedBackend
from bireme.bench.level import Load
from bireme.bench.machine import describe
from bireme.bench.offline import time_per_token
from bireme.bench.peers_options import OURS
from bireme.bench.peers_page import peers_page
from bireme.bench.peers_text import Measured, paired
from bireme.bench.summary import summarise
from bireme.server.cli import app

REQUESTS = 3


def sample(start: float, first: float, last: float, tokens: int) -> Sample:
    times = [first + (last - first) * i / (tokens - 1) for i in range(tokens)]
    return Sample(start, start, first, last, last, tokens, tokens, 10, 0, True, times=times)


def level(scale: float = 1.0) -> Any:
    samples = [sample(i, i + 0.1 * scale, i + scale, 10) for i in range(REQUESTS)]
    return summarise(samples, Load("closed", 2, None))


def run(tmp_path: Path, *arguments: str) -> Any:
    path = tmp_path / "record.json"
    result = CliRunner().invoke(app, ["bench", *arguments, "--json", str(path)])
    assert result.exit_code == 0, result.output
    record = json.loads(path.read_text(encoding="utf-8"))
    assert set(record) == {"bench", "machine", "options", "rows"} and record["bench"] == arguments[0]
    assert all(name in result.output for name in record["rows"][0])
    return record["rows"]


def test_throughput(tmp_path: Path, demo_model: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    sizes = ["--num-prompts", "4", "--input-len", "20", "--output-len", "5", "--max-num-seqs", "2"]
    (row,) = run(tmp_path, "throughput", "--model", str(demo_model), "--device", "cpu", *sizes)
    assert (row["requests"], row["tokens in"], row["tokens out"]) == (4, 80, 20)
    assert row["tok/s out"] == pytest.approx(20 / row["seconds"])


def test_latency(tmp_path: Path, demo_model: Path) -> None:
    pytest.importorskip("torch", reason="needs torch")
    sizes = ["--batch-size", "1,2", "--iterations", "2", "--input-len", "12", "--output-len", "1"]
    rows = run(tmp_path, "latency", "--model", str(demo_model), "--device", "cpu", *sizes)
    assert [(row["batch"], row["n"]) for row in rows] == [(1, 2), (2, 2)]
    assert all(row["ms a token"] is None for row in rows)  # of one token there is none after the first
    assert all(0 < row["first tokens ms"] and row["p50 ms"] <= row["p99 ms"] for row in rows)


def test_time_per_token_is_that_of_the_tokens_after_the_first() -> None:
    assert time_per_token([50.0, 70.0], [20.0, 20.0], steps=4) == 10
    assert time_per_token([20.0], [20.5], steps=4) is None  # by chance: no token takes less than no time
    assert time_per_token([20.0], [10.0], steps=0) is None


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    for arguments, code in (
        (["kernels", "--device", "tpu"], 2),
        (["host", "--sequences", "1.5"], 2),
        (["host", "--json", str(tmp_path)], 2),
        (["latency", "--model", "nowhere"], 2),
    ):
        result = CliRunner().invoke(app, ["bench", *arguments])
        assert result.exit_code == code and result.stderr.count("\n") == 1 and not result.stdout


def test_a_device_that_is_not_there_is_no_crash(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(device: str) -> str:
        raise DeviceUnavailableError(f"device {device!r} can't be used: none is there")

    monkeypatch.setattr("bireme.backends.select.resolve_device", gone)
    result = CliRunner().invoke(app, ["bench", "kernels", "--device", "cuda"])
    assert result.exit_code == 1 and result.stderr == "bireme: device 'cuda' can't be used: none is there\n"


def test_host(tmp_path: Path) -> None:
    rows = run(tmp_path, "host", "--sequences", "1,4", "--steps", "20", "--cpu-time")
    assert [row["sequences"] for row in rows] == [1, 4]
    assert all(row["step p50 us"] >= row["plan p50 us"] > 0 for row in rows)


def test_kernels_on_mlx_are_the_operations_of_a_step(tmp_path: Path) -> None:
    pytest.importorskip("mlx.core", reason="needs mlx")
    rows = {row["operation"]: row for row in run(tmp_path, "kernels", "--device", "mlx", "--quick")}
    assert {"attention", "linear layers", "a whole step", "all of it, one by one"} <= rows.keys()
    assert all(row["1 decoding, ms"] > 0 and row["a prompt chunk of 32, ms"] > 0 for row in rows.values())


def test_a_page_of_peers_has_ratios_and_plots(tmp_path: Path) -> None:
    rows = []
    for users in (1, 2):
        for server, scale in ((OURS, 1.0), ("other", 2.0)):
            rows.append(Measured("distinct", users, 0, server, level(scale)))
    ratios = paired(rows, OURS)
    assert "bireme over other" in ratios and "TTFT p50 ms       0.50  (0.50 to 0.50, 1 round)" in ratios
    about = {"machine": describe(), "options": {"json": tmp_path, "rounds": 1}, "interrupted": False}
    about |= {"commands": {OURS: "bireme serve <demo>", "other": "serve"}, "memory_bytes": {OURS: 3 << 20}}
    page = peers_page(rows, OURS, ratios, about)
    facts = page.partition("How it was measured")[2]
    assert "<td>bireme: command</td><td>bireme serve &lt;demo&gt;</td>" in facts and "<td>3 MiB</td>" in facts
    assert "<summary>All options</summary>" in facts and str(tmp_path) in facts and "INTERRUPTED" not in page
    assert "INTERRUPTED: only what every server" in peers_page(rows, OURS, ratios, about | {"interrupted": True})
    assert page.count("<svg") == 4 and "other, 2 at once, round 1" in page and "http" not in page.replace("http://", "")


def test_a_paced_device_takes_its_time() -> None:
    import time

    from bireme.bench.batches import make_batch

    backend = PacedBackend(32_000, 0.01, 0.001)
    start = time.monotonic()
    tickets = [backend.submit(make_batch(2, 5, 5, 16)) for _ in range(2)]
    assert not tickets[0].done()
    assert tickets[1].wait().elapsed == pytest.approx(0.02) and time.monotonic() - start >= 0.04


def test_the_server_under_test_measures_nothing_when_it_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[tuple[str, int]] = []
    monkeypatch.setattr("sys.argv", ["http", "--model", "m", "--serve", "1234"])
    monkeypatch.setattr(http, "serve", lambda model, port: served.append((model, port)))
    monkeypatch.setattr(http, "start_paced", lambda *_: pytest.fail("it started a server of its own"))
    http.main()
    assert served == [("m", 1234)]
