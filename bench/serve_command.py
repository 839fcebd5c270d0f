"""``bireme bench serve`` behind its options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ..server.commands.fail import EXIT_FAILED, EXIT_INTERRUPTED
from .ask import Target
from .capacity import measure_capacity
from .compare import compare
from .dataset import TEXTS
from .html import page
from .live import Progress
from .machine import describe
from .paired import run_paired
from .probe import accepted, word_source
from .results import Run, level_text, read_run, warnings
from .search import largest_met, search, verdict
from .serve import Plan, Runner, id_source
from .serve_options import asked, check_outputs, plan_of, target_of
from .sources import Source
from .traffic_options import Options


def run_serve(options: Options) -> int:
    """Measure as asked. Returns the exit code: 1 if requests failed, 130 after Ctrl-C."""
    if options["compare"]:
        if options["json_path"] or options["html_path"]:
            raise ValueError("--compare only prints; leave out --json and --html, which are of a measurement")
        first, second = (read_run(Path(path)) for path in options["compare"])
        print(compare(first, second, [str(path) for path in options["compare"]]))
        return 0
    plan = plan_of(options)
    check_outputs(options)
    target = target_of(options, options["url"], options["model"], options["api_key"])
    source, target = _source(options, target)
    if options["against"]:
        key = options["against_api_key"] or options["api_key"]
        other = target_of(options, options["against"], options["against_model"], key)
        other = _accepted(other, options["chat"] or options["dataset"] == "multiturn")
        return run_paired(options, plan, (target, other), source, _about(options, target))
    return _run_one(options, plan, target, source)


def _run_one(options: Options, plan: Plan, target: Target, source: Source) -> int:
    run = Run(options["label"] or target.model, _about(options, target))
    with Progress() as progress:
        runner = Runner(target, plan, source, progress.show, lambda level: progress.say(level_text(level)))
        try:
            if options["find_goodput"]:
                search(runner, float((plan.traffic.concurrencies or plan.traffic.rates)[0]))
            else:
                for load in plan.traffic.loads():
                    runner.run(load)
        except KeyboardInterrupt:
            if not runner.levels:
                raise
            run.interrupted = True
        run.levels = runner.levels
    return _finish(options, run, runner)


def _accepted(target: Target, chat: bool) -> Target:
    found = accepted(target, chat)
    if found is not target:
        print(f"NOTE: {target.url} refuses ignore_eos; it is left out, answers may be shorter", file=sys.stderr)
    return found


def _source(options: Options, target: Target) -> tuple[Source, Target]:
    """Where prompts come from, and the target as it takes them."""
    chat = options["chat"] or options["dataset"] == "multiturn"
    if options["tokenizer"]:
        if chat and options["dataset"] not in TEXTS:
            raise ValueError("--tokenizer makes prompts of token ids, which chats can't carry; leave it out")
        return id_source(options["tokenizer"]), _accepted(target, chat)
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


def _finish(options: Options, run: Run, runner: Runner) -> int:
    headline, best = "", None
    if options["find_goodput"]:
        headline = verdict(run.levels, runner.plan, asked(options)["goodput"])
        best = largest_met(run.levels, options["attainment"])
        run.best = None if best is None else best.load
    notes = [*runner.notes, *warnings(run.levels, repeats=options["dataset"] == "random")]
    notes += [_cut_short(run, runner.plan, options["find_goodput"])] if run.interrupted else []
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
    if run.interrupted:
        return EXIT_INTERRUPTED
    counted = [best] if best is not None else run.levels  # a search goes beyond what a server can do, on purpose
    return EXIT_FAILED if any(level.failures for level in counted) else 0


def _cut_short(run: Run, plan: Plan, searching: bool) -> str:
    """What a reader must know of a run that Ctrl-C ended."""
    begun = {level.load for level in run.levels}
    missing = [load.name for load in plan.traffic.loads() if load not in begun] if not searching else []
    return "INTERRUPTED: this is a part of what was asked" + (
        "; the search had not ended" if searching else f"; not begun: {', '.join(missing)}" if missing else ""
    )
