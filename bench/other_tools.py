"""Other programs that put load on a server and report what it did: aiperf and guidellm, both on PyPI.

Each is asked for one load and gives the figures that `bireme bench serve` has too, under one set of names. Their ITL,
the time after a request's first token divided by the tokens after it, is TPOT here.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models

from .ask import Prompt, Target
from .level import Level

RATES = ("requests a second", "output tokens a second")
LATENCIES = ("TTFT, ms", "TPOT, ms", "E2E, ms")
STATISTICS = ("mean", "p50", "p95")
FIGURES = (*RATES, *(f"{latency} ({statistic})" for latency in LATENCIES for statistic in STATISTICS))

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Job:
    """One load: texts to complete, and who asks when."""

    prompts: Sequence[Prompt]
    users: int | None  # closed loop: so many at once
    due: Sequence[float] | None  # open loop: seconds from the start, one a prompt

    @property
    def name(self) -> str:
        if self.due is None:
            return f"{self.users} at once"
        return f"{len(self.due) / self.due[-1]:.2g} a second"

    def columns(self) -> list[tuple[str, int, float | None]]:
        """(text, tokens to make, due) of each request."""
        due: Sequence[float | None] = self.due or [None] * len(self.prompts)
        return [(str(one.content), one.max_tokens, at) for one, at in zip(self.prompts, due, strict=True)]


#: What guidellm's report calls RATES, and LATENCIES with how many milliseconds their unit is.
_GUIDELLM: dict[str, float | None] = {
    "requests_per_second": None,
    "output_tokens_per_second": None,
    "time_to_first_token_ms": 1.0,
    "inter_token_latency_ms": 1.0,
    "request_latency": 1e3,
}

Tool = Callable[[str, Target, Job, Path], Figures]


def figures(rates: Sequence[float], spreads: Sequence[Mapping[str, float]]) -> Figures:
    """FIGURES out of the RATES, and of each of LATENCIES its STATISTICS."""
    return dict(
        zip(FIGURES, (*rates, *(float(spread[name]) for spread in spreads for name in STATISTICS)), strict=True)
    )


def our_figures(level: Level) -> Figures:
    """What is compared, of a level of ours.

    Raises:
        ValueError: requests failed.
    """
    if level.failures:
        raise ValueError(level.failed_line())
    spreads = []
    for name in ("ttft", "tpot", "e2el"):
        spread = level.spreads[name]
        found = (spread.mean, spread.percentiles[50], spread.percentiles[95])
        spreads.append({key: value or 0.0 for key, value in zip(STATISTICS, found, strict=True)})
    return figures((level.request_throughput, level.output_throughput), spreads)


def aiperf(command: str, target: Target, job: Job, folder: Path) -> Figures:
    """The figures of `aiperf profile`.

    Raises:
        ValueError: it ended with an error, or requests failed.
    """
    data, report = folder / "aiperf.jsonl", folder / "aiperf"
    names = ("text_input", "output_length", "timestamp")  # a Mooncake trace; times in milliseconds
    rows = [(text, length, None if at is None else at * 1e3) for text, length, at in job.columns()]
    _write(data, names, rows)
    options = ["--url", target.url.removesuffix("/v1"), "--model", target.model, "--endpoint-type", "completions"]
    options += ["--streaming", "--extra-inputs", "ignore_eos:true", "--use-server-token-count", "--no-server-metrics"]
    options += ["--input-file", str(data), "--custom-dataset-type", "mooncake_trace", "--ui", "none"]
    options += ["--tokenizer", str(_any_tokenizer(folder)), "--artifact-dir", str(report)]
    if job.due is None:
        options += ["--concurrency", str(job.users), "--request-count", str(len(rows))]
        options += ["--dataset-sampling-strategy", "sequential"]
    else:
        options += ["--fixed-schedule"]
    _run([command, "profile", *options])
    return aiperf_figures(json.loads((report / "profile_export_aiperf.json").read_text("utf-8")), len(rows))


def aiperf_figures(report: dict[str, Any], count: int) -> Figures:
    """What is compared, of a report of aiperf's on ``count`` requests.

    Raises:
        ValueError: requests failed or are missing.
    """
    made = report["request_count"]["avg"]
    if made != count:
        raise ValueError(f"aiperf completed {made:g} of {count} requests: {report.get('error_summary')}")
    rates = [report[name]["avg"] for name in ("request_throughput", "output_token_throughput")]
    names = ("time_to_first_token", "inter_token_latency", "request_latency")
    return figures(rates, [{**report[name], "mean": report[name]["avg"]} for name in names])


def guidellm(command: str, target: Target, job: Job, folder: Path) -> Figures:
    """The figures of `guidellm run`.

    Raises:
        ValueError: it ended with an error, or requests failed.
    """
    data, report = folder / "guidellm.jsonl", folder / "guidellm.json"
    _write(data, ("prompt", "output_tokens_count", "relative_timestamp"), job.columns())
    count = len(job.prompts)
    profile = f"kind=concurrent,streams={job.users}" if job.due is None else "kind=replay,schedule_turn=timestamp"
    backend = f"kind=openai_http,target={target.url.removesuffix('/v1')},model={target.model}"
    options = ["--backend", f"{backend},request_format=/v1/completions", "--profile", profile]
    options += ["--constraint", f"kind=max_requests,count={count}", "--data", f"kind=json_file,path={data}"]
    options += ["--output", f"kind=json,path={report}", "--disable-console"]
    _run([command, "run", *options], HF_HUB_OFFLINE="1")  # it would ask there for the model's tokenizer
    return guidellm_figures(json.loads(report.read_text("utf-8")), count)


def guidellm_figures(report: dict[str, Any], count: int) -> Figures:
    """What is compared, of a report of guidellm's with one benchmark of ``count`` requests.

    Raises:
        ValueError: requests failed or are missing.
    """
    benchmark = report["benchmarks"][0]
    made = benchmark["scheduler_metrics"]["requests_made"]
    if made["successful"] != count:
        raise ValueError(f"guidellm completed {made['successful']} of {count} requests: {made}")
    metrics = {name: metric["successful"] for name, metric in benchmark["metrics"].items() if name in _GUIDELLM}
    rates = [metrics[name]["mean"] for name, scale in _GUIDELLM.items() if scale is None]
    spreads = []
    for name, scale in _GUIDELLM.items():
        if scale is not None:
            values = {"mean": metrics[name]["mean"], **metrics[name]["percentiles"]}
            spreads.append({key: scale * values[key] for key in STATISTICS})
    return figures(rates, spreads)


TOOLS: dict[str, Tool] = {"aiperf": aiperf, "guidellm": guidellm}


def _write(path: Path, names: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """JSON lines, without what is None."""
    lines = ({key: value for key, value in zip(names, row, strict=True) if value is not None} for row in rows)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")


def _any_tokenizer(folder: Path) -> Path:
    """A tokenizer for a tool that must have one from disk, although it takes the server's own counts."""
    place = folder / "tokenizer"
    place.mkdir(exist_ok=True)
    Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(place / "tokenizer.json"))
    (place / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}', encoding="utf-8")
    return place


def _run(command: Sequence[str], **environment: str) -> None:
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ValueError(
            f"{Path(command[0]).name} ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}"
        )
