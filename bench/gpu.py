"""Everything worth knowing of a GPU machine in one command: ``python -m bireme.bench.gpu``. See docs/gpu.md.

Kernels against plain torch, their rates beside the device's copy and cuBLAS, the engine's decoding as a share of the
roofline, a mixed load beside ``transformers``, and the host's time per step. Weights are random and made on the device:
nothing is downloaded. Each section runs in a process of its own, for no longer than its budget: one that fails, hangs
or breaks the device loses its own figures only, and those it had are kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from .machine import describe, line

STARTED = time.monotonic()  # this process
GRACE = 6.0  # seconds that a process may go on past its budget
#: Seconds for each section, in the order of running; under eight minutes in all.
BUDGETS = {"check": 70.0, "rates": 80.0, "decode": 130.0, "mixed": 45.0, "peer": 95.0, "host": 20.0}
SINGLE = ("mixed", "peer")  # sections of one figure: once it is there, nothing is left to stop
TITLES = {
    "check": "Kernels against plain torch",
    "rates": "Rates",
    "decode": "Decoding at a context of 1,000",
    "mixed": "256 requests, 100 to 1,024 tokens in and out",
    "peer": "The same load through transformers",
    "host": "Time per decode step",
}
#: What one H200 should reach: (row, least value or share).
AIMS = (
    ("Llama-3.1-8B dense, batch 1", 250.0),
    ("Llama-3.1-8B Q4_K_M, batch 1", 450.0),
)

Figures = list[dict[str, Any]]


def section(name: str) -> Callable[[Any], Iterator[Any]]:
    from . import gpu_check, gpu_engine, gpu_peer, gpu_rates

    sections: dict[str, Callable[[Any], Iterator[Any]]] = {
        "check": gpu_check.check,
        "rates": gpu_rates.rates,
        "decode": gpu_engine.decode,
        "mixed": gpu_engine.mixed,
        "peer": gpu_peer.peer,
        "host": gpu_engine.host,
    }
    return sections[name]


def run_here(
    name: str, options: argparse.Namespace, budget: float, start: float | None = None
) -> Iterator[dict[str, Any]]:
    """The section's figures as they come, then, if it did not end well, why. ``start``: when the budget began."""
    import torch

    from .gpu_setting import Setting

    start = time.monotonic() if start is None else start
    setting = Setting(torch.device(options.device), options.tiny, options.quick)
    if options.tiny:
        torch.set_num_threads(1)  # more only wait for each other
    try:
        for row in section(name)(setting):
            yield row.record()
            if time.monotonic() - start > budget and name not in SINGLE:
                yield problem(name, f"stopped at its budget of {budget:.0f} s")
                return
    except Exception as error:
        where = traceback.extract_tb(error.__traceback__)[-1]
        yield problem(name, f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})")


def run_apart(name: str, options: argparse.Namespace, budget: float) -> Iterator[dict[str, Any]]:
    """The same in a process of its own, which is ended a little after its budget."""
    command = [sys.executable, "-m", "bireme.bench.gpu", "--section", name, "--device", options.device]
    command += [flag for flag, on in (("--tiny", options.tiny), ("--quick", options.quick)) if on]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, errors="replace") as process:
        late = threading.Timer(budget + GRACE, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            for text in process.stdout:
                if text.startswith("{"):
                    yield json.loads(text)
            code = process.wait()
        finally:
            late.cancel()
            process.kill()
    if code:
        yield problem(name, f"its process ended with code {code}" + (", killed after its budget" if code < 0 else ""))


def problem(name: str, text: str) -> dict[str, Any]:
    return {"section": name, "problem": text}


def gpu_name(device: str) -> str:
    """For people; asked in a way that leaves the device untouched."""
    if not device.startswith("cuda"):
        return device
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version,power.limit", "--format=csv,noheader"]
    try:
        return subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return device


def table(figures: Figures, machine: dict[str, Any]) -> str:
    """Markdown."""
    lines = [f"{machine['gpu']}; {line(machine)}"]
    if machine["tiny"]:
        lines.append("\n**Tiny shapes under the names of large ones: these figures mean nothing.**")
    for name, title in TITLES.items():
        mine = [each for each in figures if each["section"] == name]
        if not mine:
            continue
        lines += ["", f"### {title}", ""]
        rows = [each for each in mine if "problem" not in each]
        if rows:
            lines += ["| | | | share | |", "|---|---:|---|---:|---|"]
        for row in rows:
            share = "" if row["share"] is None else f"{row['share']:.0%} of {row['of']}"
            lines.append(f"| {row['what']} | {_figure(row['value'])} | {row['unit']} | {share} | {row['note']} |")
        lines += [f"\n**{each['problem']}**" for each in mine if "problem" in each]
    return "\n".join([*lines, *summary(figures)])


def summary(figures: Figures) -> list[str]:
    """What the figures come to: right or wrong, the ratio to transformers, the aims for one H200."""
    lines = ["", "### In short", ""]
    rows = {each["what"]: each for each in figures if "problem" not in each}
    wrong = [what for what, row in rows.items() if row["note"].startswith("WRONG")]
    if any(row["section"] == "check" for row in rows.values()):
        lines.append(f"* kernels: {'all as plain torch' if not wrong else 'WRONG: ' + ', '.join(wrong)}")
    ours, theirs = ([each for each in rows.values() if each["section"] == name] for name in ("mixed", "peer"))
    if ours and theirs and theirs[0]["value"]:
        lines.append(f"* mixed load: {ours[0]['value'] / theirs[0]['value']:.2f} times transformers' tokens per second")
    lines += [
        f"* {what}: {rows[what]['value']:.0f} tok/s; the aim on one H200 is {least:.0f}"
        for what, least in AIMS
        if what in rows
    ]
    attention = [each["share"] for what, each in rows.items() if what.startswith("attention") and each["share"]]
    if attention:
        lines.append(f"* decode attention: up to {max(attention):.0%} of the copy's bandwidth; the aim is 85%")
    problems = [f"{each['section']}: {each['problem']}" for each in figures if "problem" in each]
    return [*lines, *(f"* {text}" for text in problems)]


def _figure(value: float) -> str:
    return f"{value:.2e}" if 0 < abs(value) < 0.01 else f"{value:,.2f}" if abs(value) < 100 else f"{value:,.0f}"


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bireme.bench.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", default="cuda", help="a torch device; cpu with --tiny runs each line without a GPU")
    parser.add_argument("--tiny", action="store_true", help="tiny shapes: to try the benchmark, not to measure")
    parser.add_argument("--quick", action="store_true", help="fewer sizes and models")
    parser.add_argument("--only", nargs="+", choices=BUDGETS, metavar="SECTION", help=f"of {', '.join(BUDGETS)}")
    parser.add_argument("--json", type=Path, default=Path("gpu.json"), help="where everything measured is written")
    parser.add_argument("--one-process", action="store_true", help="run the sections here, one after the other")
    parser.add_argument("--section", choices=BUDGETS, help=argparse.SUPPRESS)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    options = options_of(arguments)
    if options.device == "cpu":
        os.environ.setdefault("TRITON_INTERPRET", "1")
    if options.section:
        for record in run_here(options.section, options, BUDGETS[options.section], STARTED):
            print(json.dumps(record), flush=True)
        return 0
    machine = describe() | {"gpu": gpu_name(options.device), "tiny": options.tiny}
    figures: Figures = []
    run = run_here if options.one_process else run_apart
    for name in options.only or BUDGETS:
        start = time.monotonic()
        print(f"{TITLES[name]} ...", file=sys.stderr, flush=True)
        for record in run(name, options, BUDGETS[name]):
            figures.append(record)
            # what is known is on disk, whatever comes
            options.json.write_text(json.dumps({"machine": machine, "figures": figures}, indent=1) + "\n")
        print(f"  {time.monotonic() - start:.0f} s", file=sys.stderr, flush=True)
    print(table(figures, machine))
    bad = [each for each in figures if "problem" in each or str(each.get("note", "")).startswith("WRONG")]
    return 1 if bad else 0


if __name__ == "__main__":
    raise SystemExit(main())
