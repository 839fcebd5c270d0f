"""``bireme bench serve --against``: two servers measured in turn, level by level, with the same prompts."""

from __future__ import annotations

import json
import sys
from typing import Any

from ..server.commands.fail import EXIT_FAILED, EXIT_INTERRUPTED
from .ask import Target
from .compare import Pair, pair_text
from .level import Level
from .live import Progress
from .pair_page import pair_page
from .results import Run, level_text, warnings
from .serve import Plan, Runner
from .sources import Source
from .traffic_options import Options


def run_paired(
    options: Options, plan: Plan, targets: tuple[Target, Target], source: Source, about: dict[str, Any]
) -> int:
    """The order turns around from round to round. After Ctrl-C the whole pairs are kept. Returns the exit code."""
    names = [_host(target.url) for target in targets]
    labels = (options["label"] or names[0], names[1] + (" again" if names[0] == names[1] else ""))
    interrupted = False
    with Progress() as progress:

        def say(level: Level) -> None:
            progress.say(level_text(level))

        runners = [Runner(one, plan, source, progress.show, say) for one in targets]
        try:
            for number in range(options["rounds"]):
                for load in plan.traffic.loads():
                    for index in (0, 1) if number % 2 == 0 else (1, 0):
                        progress.say(f"round {number + 1}, {runners[index].target.url}")
                        runners[index].run(load)
        except KeyboardInterrupt:
            interrupted = True
    pairs = _pairs(*runners)
    if interrupted and not pairs:
        raise KeyboardInterrupt
    print(pair_text(pairs, labels))
    notes = _notes(runners, labels, options)
    notes += ["INTERRUPTED: only levels that both servers ended are compared"] if interrupted else []
    for note in notes:
        print(f"WARNING: {note}", file=sys.stderr)
    _keep(options, pairs, labels, runners, about | {"interrupted": interrupted}, notes)
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if any(level.failures for runner in runners for level in runner.levels) else 0


def _pairs(ours: Runner, theirs: Runner) -> list[Pair]:
    """By load, the rounds that both servers have whole: both had the same levels in the same order."""
    found: dict[str, tuple[list[Level], list[Level]]] = {}
    for first, second in zip(ours.levels, theirs.levels, strict=False):
        if not first.unfinished and not second.unfinished:
            pair = found.setdefault(first.load.name, ([], []))
            pair[0].append(first)
            pair[1].append(second)
    return [Pair(name, tuple(first), tuple(second)) for name, (first, second) in found.items()]


def _notes(runners: list[Runner], labels: tuple[str, str], options: Options) -> list[str]:
    notes = list(runners[0].notes)
    for label, runner in zip(labels, runners, strict=True):
        found = warnings(runner.levels, repeats=options["dataset"] == "random")
        notes += [f"{label}: {note}" for note in dict.fromkeys(found)]
    return notes


def _keep(
    options: Options,
    pairs: list[Pair],
    labels: tuple[str, str],
    runners: list[Runner],
    about: dict[str, Any],
    notes: list[str],
) -> None:
    """Write the record and the report where they were asked for."""
    if options["json_path"]:
        runs = [Run(label, {"url": r.target.url}, r.levels) for label, r in zip(labels, runners, strict=True)]
        content = {"about": about, "runs": [run.as_dict() for run in runs]}
        options["json_path"].write_text(json.dumps(content, indent=1), encoding="utf-8")
    if options["html_path"]:
        options["html_path"].write_text(pair_page(pairs, labels, about, notes), encoding="utf-8")


def _host(url: str) -> str:
    """A server's name in tables and plots."""
    return url.rpartition("//")[2].rstrip("/").removesuffix("/v1")
