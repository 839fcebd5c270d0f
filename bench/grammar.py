"""Grammar libraries beside each other: ``python -m bireme.bench.grammar``.

Each compiles the schemas of a public suite and of real programs, and follows the suite's instances token by token. A
schema runs in a process that may break or be ended; "valid refused" is what a library is too narrow for, "invalid
taken" is what a client would be promised wrongly.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from select import select
from typing import Any

import numpy as np

from ..core.grammar import GrammarError
from ..grammar.vocabulary import TokenTable
from . import machine
from .grammar_data import Case, demo_vocabulary, encode, large_vocabulary, longest_tokens, programs, suite
from .grammar_peers import LIBRARIES, Follower

VOCABULARIES: dict[str, Callable[[], TokenTable]] = {"demo": demo_vocabulary, "large": large_vocabulary}
PARTS: dict[str, Callable[[], list[Case]]] = {"suite": suite, "programs": programs}
#: Seconds for one schema with its instances.
LIMIT = 20.0


@dataclass(slots=True)
class Tally:
    """What became of one part's schemas with one library and vocabulary."""

    schemas: int = 0
    compiled: int = 0
    refused: int = 0
    broken: int = 0  # the process died
    too_long: int = 0
    valid: int = 0
    valid_refused: int = 0
    invalid: int = 0
    invalid_taken: int = 0
    compile_ms: list[float] = field(default_factory=list)
    mask_us: list[float] = field(default_factory=list)

    def take(self, found: dict[str, Any]) -> None:
        if "refused" in found:
            self.refused += 1
            return
        self.compiled += 1
        self.compile_ms.append(found["compile_ms"])
        self.mask_us += found["mask_us"]
        for name in ("valid", "valid_refused", "invalid", "invalid_taken"):
            setattr(self, name, getattr(self, name) + found[name])


def work(library: str, vocabulary: str, part: str, first: int) -> None:
    """Measure cases from ``first`` on; one JSON line each."""
    table = VOCABULARIES[vocabulary]()
    tokens = longest_tokens(table)
    measured = LIBRARIES[library](table)
    print("{}", flush=True)
    for case in PARTS[part]()[first:]:
        start = time.perf_counter()
        try:
            follower = measured.start(case.schema)
        except GrammarError as error:
            print(json.dumps({"refused": str(error)}), flush=True)
            continue
        found: dict[str, Any] = {"compile_ms": (time.perf_counter() - start) * 1e3, "mask_us": []}
        for kind, texts in (("valid", case.valid), ("invalid", case.invalid)):
            taken = [_follows(measured.start(case.schema), text, tokens, found["mask_us"]) for text in texts]
            found[kind] = len(taken)
            found["valid_refused" if kind == "valid" else "invalid_taken"] = taken.count(kind == "invalid")
        del follower
        print(json.dumps(found), flush=True)


def _follows(follower: Follower, text: str, tokens: dict[bytes, int], times: list[float]) -> bool:
    """Whether the whole of ``text`` is let through; each mask's microseconds go to ``times``."""
    for token in encode(text.encode("utf-8", "surrogatepass"), tokens):
        start = time.perf_counter()
        try:
            follower.fill()
        except GrammarError:
            return False
        times.append((time.perf_counter() - start) * 1e6)
        if not follower.accept(token):
            return False
    return follower.whole()


def measure(library: str, vocabulary: str, part: str, count: int) -> Tally:
    """All cases of a part, in as many processes as it takes."""
    tally = Tally(schemas=count)
    done = 0
    while done < count:
        command = [sys.executable, "-m", "bireme.bench.grammar", "--work", library, vocabulary, part, str(done)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0)
        assert process.stdout is not None
        limit = 120.0  # until it has begun
        while done < count:
            if not select([process.stdout], [], [], limit)[0]:
                tally.too_long += 1
                done += 1
                break
            line = process.stdout.readline()
            if not line:
                tally.broken += 1
                done += 1
                break
            if limit == LIMIT:
                tally.take(json.loads(line))
                done += 1
            limit = LIMIT
        process.kill()
        process.wait()
    return tally


def row(library: str, vocabulary: str, part: str, tally: Tally) -> str:
    """A line of the table."""

    def spread(values: list[float]) -> str:
        if not values:
            return "-"
        middle, high, most = np.percentile(values, [50, 95, 100])
        return f"{middle:.1f} / {high:.1f} / {most:.0f}"

    return (
        f"| {part} | {vocabulary} | {library} | {tally.compiled} of {tally.schemas} | {tally.refused} | "
        f"{tally.broken} + {tally.too_long} | {tally.valid_refused} of {tally.valid} | "
        f"{tally.invalid_taken} of {tally.invalid} | {spread(tally.compile_ms)} | {spread(tally.mask_us)} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bireme.bench.grammar", description=__doc__)
    parser.add_argument("--libraries", nargs="+", choices=LIBRARIES, default=list(LIBRARIES))
    parser.add_argument("--vocabularies", nargs="+", choices=VOCABULARIES, default=list(VOCABULARIES))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--work", nargs=4, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.work:
        library, vocabulary, part, first = args.work
        work(library, vocabulary, part, int(first))
        return
    print(machine.line(machine.describe()), end="\n\n")
    print(
        "| schemas | vocabulary | library | compiled | refused | broke + too long | valid refused | invalid taken | ",
        end="",
    )
    print("compile ms p50 / p95 / max | mask us p50 / p95 / max |\n|" + "---|" * 10)
    for part in args.parts:
        count = len(PARTS[part]())
        for vocabulary in args.vocabularies:
            for library in args.libraries:
                print(row(library, vocabulary, part, measure(library, vocabulary, part, count)), flush=True)


if __name__ == "__main__":
    main()
