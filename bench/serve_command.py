"""``bireme bench serve`` behind its options."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .arrivals import Ramp
from .ask import Target
from .capacity import measure_capacity
from .compare import Pair, compare, pair_text
from .dataset import DataSpec
from .html import page
from .level import Level
from .machine import describe
from .objective import parse_objective
from .pair_page import pair_page
from .results import Run, level_text, read_run, warnings
from .serve import BUSY, Plan, Runner, accepted, find_model, id_source, search, word_source
from .sources import Source

Options = Mapping[str, Any]


def run_serve(options: Options) -> int:
    """Measure as asked. Returns the exit code: 1 if any request failed."""
    if options["compare"]:
        first, second = (read_run(Path(path)) for path in options["compare"])
        print(compare(first, second))
        return 0
    if options["find_goodput"] and options["against"]:
        raise ValueError("--find-goodput and --against are two measurements; give one of them")
    plan = _plan(options)
    target = _target(options, options["url"], options["model"])
    source, target = _source(options, target)
    if options["against"]:
        return _paired(options, plan, target, source)
    with _Progress() as progress:
        runner = Runner(target, plan, source, progress.show)
        run = Run(options["label"] or target.model, _about(options, target))
        if options["find_goodput"]:
            start = float((plan.concurrencies or plan.rates)[0])
            run.best = search(runner, start, on_level=lambda level: progress.say(level_text(level)))
        else:
            for load in plan.loads():
                progress.say(level_text(runner.run(load)))
        run.levels = runner.levels
    return _finish(options, run, runner.notes)


def _plan(options: Options) -> Plan:
    objective = parse_objective([*(options["goodput"] or ()), *(options["terms"] or ())])
    if options["find_goodput"] and objective is None:
        raise ValueError("--find-goodput needs an objective: --goodput ttft:1000 tpot:50")
    start, end = options["ramp_up_start_rps"], options["ramp_up_end_rps"]
    if (start is None) != (end is None):
        raise ValueError("a ramp needs both --ramp-up-start-rps and --ramp-up-end-rps")
    names = ("input_len", "output_len", "range_ratio", "prefix_len", "num_prefixes", "turns", "think", "chat", "seed")
    data = DataSpec(options["dataset"], options["dataset_path"], **{name: options[name] for name in names})
    rates = numbers("request-rate", options["request_rate"])
    users = counts("concurrency", options["concurrency"])
    if not users and not rates and start is None and data.kind != "trace":
        users = (1,) if options["find_goodput"] else (1, 4, 8, 16)
    if options["find_goodput"] and len(users) + len(rates) != 1:
        raise ValueError("--find-goodput tries loads of its own: give one --concurrency or --request-rate to start at")
    return Plan(
        data=data,
        concurrencies=users,
        rates=rates,
        burstiness=options["burstiness"],
        ramp=None if start is None else Ramp(start, end, options["ramp_up_strategy"]),
        max_concurrency=options["max_concurrency"],
        num_prompts=options["num_prompts"],
        warmups=options["num_warmups"],
        objective=objective,
        attainment=options["attainment"],
        seed=options["seed"],
    )


def numbers(name: str, text: str) -> tuple[float, ...]:
    """``1,4,8`` as numbers above 0; () of nothing."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{name} is {text!r}; wanted: numbers with commas between them") from None
    if any(not value > 0 for value in found):
        raise ValueError(f"{name} is {text!r}; every number must be above 0")
    return found


def counts(name: str, text: str) -> tuple[int, ...]:
    """``1,4,8`` as whole numbers from 1 on."""
    found = numbers(name, text)
    if any(value != int(value) for value in found if value < float("inf")) or float("inf") in found:
        raise ValueError(f"{name} is {text!r}; every number must be whole")
    return tuple(int(value) for value in found)


def _target(options: Options, url: str, model: str | None) -> Target:
    try:
        extra = json.loads(options["extra_body"])
    except ValueError as error:
        raise ValueError(f"extra-body is no JSON: {error}") from None
    if not isinstance(extra, dict):
        raise ValueError("extra-body must be a JSON object")
    if options["ignore_eos"]:
        extra = {"ignore_eos": True} | extra
    target = Target(url, model or "", options["api_key"], extra, options["timeout"])
    if not model:
        target = replace(target, model=find_model(target))
    return target


def _accepted(target: Target, chat: bool) -> Target:
    found = accepted(target, chat)
    if found is not target:
        print(f"NOTE: {target.url} refuses ignore_eos; it is left out, answers may be shorter", file=sys.stderr)
    return found


def _source(options: Options, target: Target) -> tuple[Source, Target]:
    """Where prompts come from, and the target as it takes them."""
    chat = options["chat"] or options["dataset"] == "multiturn"
    if options["tokenizer"]:
        if chat:
            raise ValueError("--tokenizer makes prompts of token ids, which chats can't carry; leave it out")
        return id_source(options["tokenizer"]), target
    try:
        return word_source(target, chat), target
    except ValueError:
        plain = _accepted(target, chat)
        if plain is target:
            raise
        return word_source(plain, chat), plain


def _about(options: Options, target: Target) -> dict[str, Any]:
    capacity = measure_capacity(0.15)
    return {
        "url": target.url,
        "model_id": target.model,
        "machine": describe(),
        "options": asked(options),
        "generator_requests_per_second": round(capacity.requests_per_second),
        "generator_chunks_per_second": round(capacity.chunks_per_second),
    }


def asked(options: Options) -> dict[str, Any]:
    """What was asked for, to be kept with what came of it: the bounds in one place, no key."""
    found = {key: value for key, value in options.items() if value not in (None, "", ()) and key != "api_key"}
    bounds = [*found.pop("goodput", ()), *found.pop("terms", ())]
    found |= {"goodput": " ".join(bounds)} if bounds else {}
    for key, value in found.items():
        if isinstance(value, Path) or value == float("inf"):  # JSON knows neither
            found[key] = str(value)
    return found


def _headline(run: Run, options: Options) -> str:
    if not options["find_goodput"]:
        return ""
    bounds = asked(options)["goodput"]
    if run.best is None:
        return f"GOODPUT: no load tried meets {bounds} for {options['attainment']:.0%} of its requests"
    level = [one for one in run.levels if one.load == run.best][-1]
    return (
        f"GOODPUT: {run.best.name} ({level.goodput or 0:.2f} good req/s, {level.output_throughput:.0f} tok/s) is the "
        f"largest load at which {options['attainment']:.0%} of the requests meet {bounds}"
    )


def _finish(options: Options, run: Run, notes: list[str]) -> int:
    headline, notes = _headline(run, options), [*notes, *warnings(run.levels, BUSY), *_repeated(run, options)]
    failed = [level.failed_line() for level in run.levels if level.failures]
    print(
        f"\nThe load generator alone manages {run.about['generator_requests_per_second']} requests of 64 chunks a "
        f"second ({run.about['generator_chunks_per_second']} chunks/s) on a core."
    )
    for note in notes:
        print(f"WARNING: {note}", file=sys.stderr)
    for line in failed:
        print(line, file=sys.stderr)
    if headline:
        print(headline)
    if options["json_path"]:
        run.write(options["json_path"])
    if options["html_path"]:
        options["html_path"].write_text(page(run.as_dict(), headline, [*notes, *failed]), encoding="utf-8")
    return 1 if failed else 0


def _repeated(run: Run, options: Options) -> list[str]:
    """Random prompts that the server has seen before: asked by an earlier run with the same seed."""
    levels = [level for level in run.levels if level.cached_tokens > level.input_tokens / 2]
    if options["dataset"] != "random" or not levels:
        return []
    names = ", ".join(level.load.name for level in levels)
    return [f"{names}: most prompt tokens came out of a prefix cache; another --seed makes prompts it has not seen"]


def _paired(options: Options, plan: Plan, target: Target, source: Source) -> int:
    """Both servers in turn, level by level, the order turned around from round to round; same prompts for both."""
    other = _target(options, options["against"], options["against_model"])
    other = _accepted(other, options["chat"] or options["dataset"] == "multiturn")
    with _Progress() as progress:
        runners = [Runner(one, plan, source, progress.show) for one in (target, other)]
        found: dict[str, tuple[list[Level], list[Level]]] = {}
        for number in range(options["rounds"]):
            for load in plan.loads():
                for index in (0, 1) if number % 2 == 0 else (1, 0):
                    level = runners[index].run(load)
                    found.setdefault(load.name, ([], []))[index].append(level)
                    progress.say(f"round {number + 1}, {runners[index].target.url}\n{level_text(level)}")
    pairs = [Pair(name, tuple(ours), tuple(theirs)) for name, (ours, theirs) in found.items()]
    labels = (options["label"] or _host(target.url), _host(other.url) + (" again" if other.url == target.url else ""))
    print(pair_text(pairs, labels))
    notes = [*runners[0].notes, *warnings([level for runner in runners for level in runner.levels], BUSY)]
    for note in notes:
        print(f"WARNING: {note}", file=sys.stderr)
    about = _about(options, target)
    if options["json_path"]:
        runs = [Run(label, {"url": r.target.url}, r.levels) for label, r in zip(labels, runners, strict=True)]
        content = {"about": about, "runs": [run.as_dict() for run in runs]}
        options["json_path"].write_text(json.dumps(content, indent=1), encoding="utf-8")
    if options["html_path"]:
        options["html_path"].write_text(pair_page(pairs, labels, about, notes), encoding="utf-8")
    return int(any(level.failures for runner in runners for level in runner.levels))


def _host(url: str) -> str:
    """A server's name in tables and plots."""
    return url.rpartition("//")[2].rstrip("/").removesuffix("/v1")


class _Progress:
    """A live line where standard error is a terminal; nothing where it is not."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.status import Status

        self._console = Console(stderr=True)
        self._status = Status("starting", console=self._console) if self._console.is_terminal else None

    def __enter__(self) -> _Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if self._status:
            self._status.update(f"{what}: {done} of {total} requests")

    def say(self, text: str) -> None:
        """Print ``text`` where the live line is not."""
        if self._status:
            self._status.stop()
        print(text, flush=True)
        if self._status:
            self._status.start()
