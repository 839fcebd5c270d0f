"""Other load generators' figures beside ours: read from their reports, under one set of names."""

import json
import stat
import sys
from pathlib import Path
from typing import Any

import pytest

from bireme.bench import agree_tools
from bireme.bench.agree_tools import LIMIT, Row, table
from bireme.bench.ask import Prompt, Sample, Target
from bireme.bench.level import Load
from bireme.bench.other_tools import FIGURES, Job, aiperf, aiperf_figures, guidellm, guidellm_figures, our_figures
from bireme.bench.summary import summarise

JOB = Job([Prompt("one", 8), Prompt("two", 9)], None, [0.5, 1.0])
TARGET = Target("http://127.0.0.1:9/v1", "model")


def sample(start: float) -> Sample:
    times = [start + 0.1 * (i + 1) for i in range(10)]
    return Sample(start, start, times[0], times[-1], times[-1], 10, 10, 10, 0, True, times=times)


def aiperf_report(count: float = 2) -> dict[str, Any]:
    latency = {"avg": 100.0, "p50": 90.0, "p95": 130.0}
    return {
        "request_count": {"avg": count},
        "request_throughput": {"avg": 1.0},
        "output_token_throughput": {"avg": 10.0},
        **dict.fromkeys(("time_to_first_token", "inter_token_latency", "request_latency"), latency),
    }


def guidellm_report(successful: int = 2) -> dict[str, Any]:
    def metric(mean: float) -> dict[str, Any]:
        return {"successful": {"mean": mean, "percentiles": {"p50": mean * 0.9, "p95": mean * 1.3}}}

    metrics = {"requests_per_second": 1.0, "output_tokens_per_second": 10.0, "time_to_first_token_ms": 100.0}
    metrics |= {"inter_token_latency_ms": 100.0, "request_latency": 0.1}
    made = {"successful": successful, "errored": 2 - successful, "incomplete": 0}
    found = {name: metric(value) for name, value in metrics.items()}
    benchmark = {"scheduler_metrics": {"requests_made": made}, "metrics": found | {"prompt_tokens": None}}
    return {"benchmarks": [benchmark]}


def test_reports_say_the_same_under_our_names() -> None:
    figures = aiperf_figures(aiperf_report(), 2)
    assert tuple(figures) == FIGURES and figures["requests a second"] == 1 and figures["E2E, ms (p95)"] == 130
    assert guidellm_figures(guidellm_report(), 2) == pytest.approx(figures)


@pytest.mark.parametrize(("read", "report"), [(aiperf_figures, aiperf_report), (guidellm_figures, guidellm_report)])
def test_failed_requests_are_no_figures(read: Any, report: Any) -> None:
    with pytest.raises(ValueError, match="completed 1 of 2 requests"):
        read(report(1), 2)


def test_figures_lie_side_by_side() -> None:
    ours = our_figures(summarise([sample(0), sample(1)], Load("closed", 2, None)))
    assert ours["TTFT, ms (mean)"] == pytest.approx(100) and ours["TPOT, ms (p95)"] == pytest.approx(100)
    row = Row("2 at once", "other", [ours], [{name: value / 2 for name, value in ours.items()}])
    assert row.ratios == pytest.approx([2.0] * len(FIGURES))
    assert "| 2 at once | E2E, ms (p50) | 1000 | other | 500 | 2.000 |" in table([row])


@pytest.mark.parametrize(("off", "agrees"), [(LIMIT / 2, True), (LIMIT * 2, False)])
def test_a_load_that_a_tool_failed_at_takes_nothing_from_the_others(
    off: float, agrees: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def compare(target: Target, job: Job, tools: dict[str, str], rounds: int) -> list[Row]:
        if job.users == 1:
            raise ValueError("it lost one")
        return [Row(job.name, "other", [dict.fromkeys(FIGURES, 1 + off)], [dict.fromkeys(FIGURES, 1.0)])]

    monkeypatch.setattr(agree_tools, "_compare", compare)
    found = [agree_tools._agree(TARGET, Job(JOB.prompts, users, None), {}, 1) for users in (1, 2)]
    said = capsys.readouterr()
    assert found == [False, agrees] and said.err == "1 at once: it lost one\n"
    assert said.out.count("| 2 at once |") == len(FIGURES)


def program(folder: Path, report: dict[str, Any], where: str) -> str:
    """Stands for a tool: keeps what it was told, and writes a report to the place named in its arguments."""
    path = folder / "tool"
    lines = [
        f"#!{sys.executable}",
        "import json, pathlib, sys",
        f"pathlib.Path({str(folder / 'told.json')!r}).write_text(json.dumps(sys.argv[1:]))",
        "if 'fail' in sys.argv[0]: sys.exit('no such server')",
        f"out = pathlib.Path(eval({where!r})); out.parent.mkdir(exist_ok=True)",
        f"out.write_text({json.dumps(json.dumps(report))})",
    ]
    path.write_text("\n".join(lines) + "\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_aiperf_is_told_texts_lengths_and_moments(tmp_path: Path) -> None:
    where = "sys.argv[sys.argv.index('--artifact-dir') + 1] + '/profile_export_aiperf.json'"
    figures = aiperf(program(tmp_path, aiperf_report(), where), TARGET, JOB, tmp_path)
    assert figures["TTFT, ms (p50)"] == 90
    told = json.loads((tmp_path / "told.json").read_text())
    assert "--fixed-schedule" in told and "--concurrency" not in told
    assert rows(tmp_path / "aiperf.jsonl") == [
        {"text_input": "one", "output_length": 8, "timestamp": 500.0},
        {"text_input": "two", "output_length": 9, "timestamp": 1000.0},
    ]


def test_guidellm_is_told_how_many_ask_at_once(tmp_path: Path) -> None:
    where = "sys.argv[sys.argv.index('--output') + 1].partition('path=')[2]"
    job = Job(JOB.prompts, 3, None)
    figures = guidellm(program(tmp_path, guidellm_report(), where), TARGET, job, tmp_path)
    assert figures["E2E, ms (mean)"] == pytest.approx(100)
    assert "kind=concurrent,streams=3" in json.loads((tmp_path / "told.json").read_text())
    assert rows(tmp_path / "guidellm.jsonl")[1] == {"prompt": "two", "output_tokens_count": 9}


def test_a_tool_that_fails_is_quoted(tmp_path: Path) -> None:
    command = Path(program(tmp_path, {}, "'unused'")).rename(tmp_path / "fail")
    with pytest.raises(ValueError, match="fail ended with 1: no such server"):
        aiperf(str(command), TARGET, JOB, tmp_path)
