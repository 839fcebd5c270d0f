"""One load, measured by our generator and by another in turn: ``python -m bireme.bench.agree_tools``.

The others are aiperf and guidellm, from PyPI. Each needs an environment of its own, where its command lies:

    python3 -m venv aiperf && aiperf/bin/pip install aiperf
    python -m bireme.bench.agree_tools --aiperf aiperf/bin/aiperf

One server, its prefix cache off so that a prompt can be asked again; the same prompts, lengths and, in the open loop,
the same moments (a Poisson process drawn once). The tools take turns, and every round turns their order around. The
server's device only takes time (`--pace`), so that the processor that a tool needs for itself slows down nothing that
it measures; with `--device cpu` the model really runs. A closed loop begins with everybody asking at once, and who is
read first then hangs on a millisecond: so many requests follow that those few weigh little, in the 95th percentile too.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..models.hub import resolve
from .arrivals import schedule
from .ask import Prompt, Session, Target
from .closed_level import closed_level
from .http import start_paced
from .level import Load
from .load import open_samples
from .machine import describe, line
from .other_tools import FIGURES, TOOLS, Figures, Job, our_figures
from .probe import word_source
from .servers import Server, start_bireme
from .summary import summarise

LIMIT = 0.05  # what two may differ by, of each figure
OURS = "bireme bench"
HEAD = f"| load | figure | {OURS} | other | its figure | ours / its |\n|---|---|---|---|---|---|"


def main() -> int:
    asked = _parser().parse_args()
    tools = {name: getattr(asked, name) for name in TOOLS if getattr(asked, name)}
    if not tools:
        raise SystemExit("name a tool's command: --aiperf PATH, --guidellm PATH, or both")
    versions = [subprocess.run([c, "--version"], capture_output=True, text=True).stdout.strip() for c in tools.values()]
    print("; ".join([line(describe()), *(f"{name} {text}" for name, text in zip(tools, versions, strict=True))]))
    print(f"\n{asked.requests} requests a round, {asked.rounds} rounds, means over the rounds\n\n{HEAD}", flush=True)
    server = _start(asked)
    try:
        agreed = [_agree(server.target, job, tools, asked.rounds) for job in _jobs(server.target, asked)]
    finally:
        server.stop()
    return int(not all(agreed))


def _agree(target: Target, job: Job, tools: dict[str, str], rounds: int) -> bool:
    """Compare at one load and print its rows; a tool that fails there takes nothing from the other loads."""
    try:
        rows = _compare(target, job, tools, rounds)
    except ValueError as error:
        print(f"{job.name}: {error}", file=sys.stderr)
        return False
    print(table(rows), flush=True)
    return all(abs(ratio - 1) <= LIMIT for row in rows for ratio in row.ratios)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bireme.bench.agree_tools",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    for name in TOOLS:
        parser.add_argument(f"--{name}", metavar="COMMAND", help=f"where the command {name} lies")
    parser.add_argument("--model", default="demo", help="as for `bireme serve`")
    parser.add_argument("--pace", type=float, nargs=2, default=[5, 0.5], help="ms a step, and ms a token")
    parser.add_argument("--device", help="run the model on this device instead, on all cores but one")
    parser.add_argument("--concurrency", type=int, nargs="*", default=[4, 16], help="closed loops")
    parser.add_argument("--request-rate", type=float, nargs="*", default=[4], help="open loops, requests a second")
    parser.add_argument("--requests", type=int, default=384, help="a round")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--words", type=int, default=250, help="of a prompt")
    parser.add_argument("--output-tokens", type=int, default=64, help="at most; at least half as many")
    return parser


def _start(asked: argparse.Namespace) -> Server:
    model, threads = resolve(asked.model), max(1, (os.cpu_count() or 2) - 1)
    if asked.device is None:
        return start_paced(model, asked.pace[0] / 1e3, asked.pace[1] / 1e3)
    off, parallel = ("--no-enable-prefix-caching",), 64
    return start_bireme("bireme", model, device=asked.device, threads=threads, parallel=parallel, arguments=off)


def _jobs(target: Target, asked: argparse.Namespace) -> list[Job]:
    source, rng = word_source(target, chat=False), random.Random(0)
    texts = [f"{number}. {source.draw(rng, asked.words)}" for number in range(asked.requests)]
    most = asked.output_tokens  # lengths differ, so that requests do not end, and begin, all in one step
    prompts = [Prompt(text, rng.randint(most // 2, most)) for text in texts]
    jobs = [Job(prompts, users, None) for users in asked.concurrency]
    return jobs + [Job(prompts, None, schedule(len(prompts), rate)) for rate in asked.request_rate]


@dataclass(frozen=True, slots=True)
class Row:
    """One load, as our generator and one other saw it in the rounds they took turns in."""

    job: str
    tool: str
    ours: Sequence[Figures]
    its: Sequence[Figures]

    @property
    def ratios(self) -> list[float]:
        """Ours / its, of each figure."""
        return [mean(self.ours, name) / mean(self.its, name) for name in FIGURES]


def mean(rounds: Sequence[Figures], name: str) -> float:
    return sum(one[name] for one in rounds) / len(rounds)


def _compare(target: Target, job: Job, tools: dict[str, str], rounds: int) -> list[Row]:
    found: dict[str, list[Figures]] = {name: [] for name in (OURS, *tools)}
    with tempfile.TemporaryDirectory(prefix="bireme-tools-") as folder:
        for turn in range(rounds):
            for name in list(found)[:: 1 if turn % 2 == 0 else -1]:
                own = name == OURS
                figures = _ours(target, job) if own else TOOLS[name](tools[name], target, job, Path(folder))
                found[name].append(figures)
    return [Row(job.name, name, found[OURS], found[name]) for name in tools]


def _ours(target: Target, job: Job) -> Figures:
    if job.due is None:
        assert job.users is not None
        return our_figures(closed_level(target, job.prompts, job.users))
    sessions = [Session((prompt,)) for prompt in job.prompts]
    samples = asyncio.run(open_samples(target, sessions, job.due))
    return our_figures(summarise(samples, Load("open", None, len(job.due) / job.due[-1])))


def table(rows: Sequence[Row]) -> str:
    """The figures side by side, as lines of Markdown below ``HEAD``."""
    lines = []
    for row in rows:
        for name, ratio in zip(FIGURES, row.ratios, strict=True):
            ours, its = mean(row.ours, name), mean(row.its, name)
            cells = (row.job, name, f"{ours:.4g}", row.tool, f"{its:.4g}", f"{ratio:.3f}")
            lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
