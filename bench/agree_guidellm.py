"""One load, measured by our generator and by guidellm (PyPI) in turn: ``python -m bireme.bench.agree_guidellm``.

guidellm needs an environment of its own, which `--guidellm` names:

    python3 -m venv guidellm && guidellm/bin/pip install guidellm
    python -m bireme.bench.agree_guidellm --guidellm guidellm/bin/guidellm

One server, its prefix cache off so that a prompt can be asked again; the same prompts and lengths; the two take turns,
and every round turns their order around. The server's device only takes time (`--pace`), so that the processor which a
tool needs for itself, most of a core with guidellm, slows down nothing that it measures; with `--device cpu` the model
really runs. guidellm's ITL, the time after a request's first token divided by the tokens after it, is TPOT here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..models.hub import resolve
from .http import start_paced
from .level import Level, Load, summarise
from .load import Prompt, Session, Target, closed_samples
from .machine import describe, line
from .serve import word_source
from .servers import Server, start_bireme

LIMIT = 0.05  # what the two may differ by, of each figure
#: What guidellm's report calls each figure.
FIGURES = {
    "requests a second": "requests_per_second",
    "output tokens a second": "output_tokens_per_second",
    "TTFT mean, ms": "time_to_first_token_ms",
    "TPOT mean, ms": "inter_token_latency_ms",
    "E2E mean, s": "request_latency",
}

Figures = dict[str, float]


def main() -> int:
    asked = _parser().parse_args()
    server = _start(asked)
    try:
        rows = _measure(server, asked)
    finally:
        server.stop()
    version = subprocess.run([asked.guidellm, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    print(f"{line(describe())}; {version}")
    print(f"\n{asked.requests} requests a round, {asked.rounds} rounds, means over all of them\n")
    print(table(rows))
    return int(any(abs(ratio(ours[name], its[name]) - 1) > LIMIT for _, ours, its in rows for name in FIGURES))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bireme.bench.agree_guidellm",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--guidellm", default="guidellm", help="its command")
    parser.add_argument("--model", default="demo", help="as for `bireme serve`")
    parser.add_argument("--pace", type=float, nargs=2, default=[5, 0.5], help="ms a step, and ms a token")
    parser.add_argument("--device", help="run the model on this device instead, on all cores but one")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--requests", type=int, default=64, help="a round")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--words", type=int, default=250, help="of a prompt")
    parser.add_argument("--output-tokens", type=int, default=64, help="at most; at least half as many")
    return parser


def _start(asked: argparse.Namespace) -> Server:
    model, threads = resolve(asked.model), max(1, (os.cpu_count() or 2) - 1)
    if asked.device is None:
        return start_paced(model, asked.pace[0] / 1e3, asked.pace[1] / 1e3)
    off, parallel = ("--no-enable-prefix-caching",), max(asked.concurrency)
    return start_bireme("bireme", model, device=asked.device, threads=threads, parallel=parallel, arguments=off)


def _measure(server: Server, asked: argparse.Namespace) -> list[tuple[int, Figures, Figures]]:
    """(users at once, ours, guidellm's) of each level."""
    source, rng = word_source(server.target, chat=False), random.Random(0)
    texts = [f"{number}. {source.draw(rng, asked.words)}" for number in range(asked.requests)]
    most = asked.output_tokens  # lengths differ, so that requests do not end, and begin, all in one step
    prompts = [Prompt(text, rng.randint(most // 2, most)) for text in texts]
    rows = []
    with tempfile.TemporaryDirectory(prefix="bireme-guidellm-") as folder:
        data = Path(folder) / "prompts.jsonl"
        lines = (json.dumps({"prompt": one.content, "output_tokens_count": one.max_tokens}) for one in prompts)
        data.write_text("\n".join(lines) + "\n", encoding="utf-8")
        sessions = [Session((prompt,)) for prompt in prompts]
        for users in asked.concurrency:
            found: dict[str, list[Figures]] = {"ours": [], "its": []}
            for turn in range(2 * asked.rounds):
                if turn % 4 in (0, 3):
                    found["ours"].append(_ours(server.target, sessions, users))
                else:
                    found["its"].append(_its(asked.guidellm, server.target, data, users, Path(folder)))
            rows.append((users, _mean(found["ours"]), _mean(found["its"])))
    return rows


def _ours(target: Target, sessions: Sequence[Session], users: int) -> Figures:
    level = summarise(asyncio.run(closed_samples(target, sessions, users)), Load("closed", users, None))
    return our_figures(level)


def our_figures(level: Level) -> Figures:
    """What is compared, of a level of ours.

    Raises:
        ValueError: requests failed.
    """
    if level.failures:
        raise ValueError(level.failed_line())
    ttft, tpot, e2e = (level.spreads[name].mean or 0.0 for name in ("ttft", "tpot", "e2el"))
    found = (level.request_throughput, level.output_throughput, ttft, tpot, e2e / 1e3)
    return dict(zip(FIGURES, found, strict=True))


def _its(command: str, target: Target, data: Path, users: int, folder: Path) -> Figures:
    report = folder / "report.json"
    count = len(data.read_text(encoding="utf-8").splitlines())
    backend = f"kind=openai_http,target={target.url.removesuffix('/v1')},model={target.model}"
    options = ["--backend", f"{backend},request_format=/v1/completions", "--profile"]
    options += [f"kind=concurrent,streams={users}", "--constraint", f"kind=max_requests,count={count}"]
    options += ["--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={report}", "--disable-console"]
    environment = os.environ | {"HF_HUB_OFFLINE": "1"}
    done = subprocess.run([command, "run", *options], env=environment, capture_output=True, text=True, check=False)
    if done.returncode or not report.is_file():
        raise ValueError(f"guidellm ended with {done.returncode}: {(done.stderr or done.stdout)[-2000:]}")
    return its_figures(json.loads(report.read_text(encoding="utf-8")), count)


def its_figures(report: dict[str, Any], count: int) -> Figures:
    """What is compared, of a report of guidellm's with one benchmark of ``count`` requests.

    Raises:
        ValueError: requests failed or are missing.
    """
    benchmark = report["benchmarks"][0]
    made = benchmark["scheduler_metrics"]["requests_made"]
    if made["successful"] != count:
        raise ValueError(f"guidellm completed {made['successful']} of {count} requests: {made}")
    return {name: float(benchmark["metrics"][key]["successful"]["mean"]) for name, key in FIGURES.items()}


def _mean(rounds: Sequence[Figures]) -> Figures:
    return {name: sum(one[name] for one in rounds) / len(rounds) for name in FIGURES}


def ratio(ours: float, its: float) -> float:
    return ours / its if its else float("inf")


def table(rows: Sequence[tuple[int, Figures, Figures]]) -> str:
    """The figures side by side, as Markdown."""
    lines = ["| at once | figure | bireme bench | guidellm | ours / its |", "|---|---|---|---|---|"]
    for users, ours, its in rows:
        for name in FIGURES:
            cells = (f"{ours[name]:.4g}", f"{its[name]:.4g}", f"{ratio(ours[name], its[name]):.3f}")
            lines.append(f"| {users} | {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
