"""Our server on MLX beside ``mlx_lm.server``, same weights and prompts: ``python -m bireme.bench.mlx_peers``.

The weights are the model's GGUF decoded to a float32 folder; on Linux both run on the CPU with OpenBLAS. While one
server is measured the other stands still. Prompts are text, greedy, to /v1/completions; every answer has its full
length. Three things are measured: tokens per second at several numbers of users, the time to the first token of a
short request sent while another user's long prompt is being read, and of requests that share a long prefix.

OpenBLAS takes the threads that it finds cores for, the same on both sides; ours starts with one ``--threads``, which
counts our own kernels' threads and so none of it. Run it on a machine that does nothing else: OpenBLAS's threads wait
for each other by spinning, and a step takes twice as long where one of them has to share its core.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from ..models.hub import resolve
from ..models.tokenizer import Tokenizer
from .ask import Prompt, Sample, Target, ask
from .closed_level import closed_level
from .level import Level
from .machine import describe, line
from .mlx_folder import float32_folder
from .servers import Server, start_bireme, start_mlx_lm
from .text import PromptMaker, load_tokenizer

OURS, PEER = "bireme", "mlx_lm.server"
REQUESTS = {1: 3, 4: 8, 8: 16}  # others: twice the concurrency
PARTS = ("rate", "long", "prefix")
LONG_AHEAD = 1.0  # seconds that the long prompt has been read for when the short request comes


@dataclass(frozen=True, slots=True)
class Figure:
    """One thing measured on one server."""

    what: str
    server: str
    value: float | None  # None: nothing ended well
    unit: str
    failed: str = ""


class Bench:
    """The servers, and prompts that are new to both."""

    def __init__(self, servers: Sequence[Server], tokenizer: Tokenizer, asked: argparse.Namespace) -> None:
        self.servers, self.tokenizer, self.asked = servers, tokenizer, asked
        self.maker = PromptMaker(tokenizer)
        self.figures: list[Figure] = []

    def text(self, ids: Sequence[int], tokens: int) -> Prompt:
        return Prompt(self.tokenizer.decode(list(ids)), tokens)

    def distinct(self, length: int, tokens: int) -> Prompt:
        return self.text(self.maker.distinct(length), tokens)

    def run(self) -> None:
        if "rate" in self.asked.parts:
            for concurrency in self.asked.concurrency:
                self.rate(concurrency)
        if "long" in self.asked.parts:
            self.while_a_long_prompt_is_read()
        if "prefix" in self.asked.parts:
            self.shared_prefix()

    def rate(self, concurrency: int) -> None:
        count = REQUESTS.get(concurrency, 2 * concurrency)
        prompts = [self.distinct(self.asked.prompt_tokens, self.asked.output_tokens) for _ in range(count)]
        for server in self.servers:
            with server.awake() as target:
                level = closed_level(target, prompts, concurrency)
            rate, failed = level.output_throughput, level.failed_line()
            self.note(f"tokens out, {concurrency} at once", server, rate, "tok/s", failed)
            self.note(f"TTFT p50, {concurrency} at once", server, _ttft(level), "s")

    def while_a_long_prompt_is_read(self) -> None:
        long, short = self.distinct(self.asked.long_tokens, 2), self.distinct(20, 4)
        for server in self.servers:
            with server.awake() as target:
                first, own = asyncio.run(_overtake(target, long, short))
            self.note(f"TTFT of a short request while {self.asked.long_tokens} tokens are read", server, first, "s")
            self.note("TTFT of that long prompt", server, own, "s")

    def shared_prefix(self) -> None:
        prompts = [self.text(ids, 4) for ids in self.maker.shared(self.asked.prefix_tokens, 20, 5)]
        for server in self.servers:
            with server.awake() as target:
                closed_level(target, prompts[:1], 1)
                level = closed_level(target, prompts[1:], 1)
            what = f"TTFT p50 after a repeated prefix of {self.asked.prefix_tokens} tokens"
            self.note(what, server, _ttft(level), "s", level.failed_line())

    def note(self, what: str, server: Server, value: float | None, unit: str, failed: str = "") -> None:
        self.figures.append(Figure(what, server.label, value, unit, failed))
        shown = "n/a" if value is None else f"{value:.2f} {unit}"
        print(f"{what}, {server.label}: {shown} {failed}", file=sys.stderr, flush=True)


def _ttft(level: Level) -> float | None:
    """The median, in seconds."""
    found = level.spreads["ttft"].percentiles[50]
    return None if found is None else found / 1e3


async def _overtake(target: Target, long: Prompt, short: Prompt) -> tuple[float | None, float | None]:
    """Seconds to the first token of ``short``, sent by somebody else once ``long`` is being read, and of ``long``."""
    one, other = (dataclasses.replace(target, extra=target.extra | {"user": name}) for name in ("one", "other"))
    async with httpx.AsyncClient(timeout=target.timeout, trust_env=False) as client:
        reading = asyncio.create_task(ask(client, one, long, time.perf_counter()))
        await asyncio.sleep(LONG_AHEAD)
        quick = await ask(client, other, short, time.perf_counter())
        slow = await reading
    return _first(quick), _first(slow)


def _first(sample: Sample) -> float | None:
    return None if sample.failure or sample.first is None else sample.first - sample.due


def main(arguments: Sequence[str] | None = None) -> int:
    asked = _parser().parse_args(arguments)
    machine = describe()
    model = resolve(asked.model)
    with tempfile.TemporaryDirectory() as scratch:
        folder = float32_folder(model, Path(scratch) / "model", never_ends=True)
        servers: list[Server] = []
        try:
            servers.append(start_bireme(OURS, folder, device="mlx", threads=1, parallel=max(2, *asked.concurrency)))
            servers.append(start_mlx_lm(PEER, folder))
            bench = Bench(servers, load_tokenizer(folder), asked)
            for server in servers:
                with server.awake() as target:
                    closed_level(target, [bench.distinct(30, 4)], 1)
            bench.run()
        finally:
            for server in servers:
                server.stop()
    print(markdown(machine, bench.figures))
    if asked.json:
        Path(asked.json).write_text(
            json.dumps({"machine": machine, "figures": [dataclasses.asdict(f) for f in bench.figures]})
        )
    return int(any(figure.failed or figure.value is None for figure in bench.figures))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="bireme.bench.mlx_peers", description=__doc__)
    parser.add_argument("--model", default="demo", help="a GGUF file, or what `bireme serve` takes for one")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS), help="measure only these")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--prompt-tokens", type=int, default=180)
    parser.add_argument("--output-tokens", type=int, default=48)
    parser.add_argument("--long-tokens", type=int, default=2000)
    parser.add_argument("--prefix-tokens", type=int, default=1000)
    parser.add_argument("--json", help="also write everything measured to this file")
    return parser


def markdown(machine: dict[str, Any], figures: Sequence[Figure]) -> str:
    """One line per thing measured; the ratio is above 1 where ours is better."""
    rows = [line(machine), "", f"| | {OURS} | {PEER} | ours is better by |", "|---|---|---|---|"]
    for what in dict.fromkeys(figure.what for figure in figures):
        ours, its = (next(f for f in figures if f.what == what and f.server == label) for label in (OURS, PEER))
        ratio = "n/a"
        if ours.value and its.value:
            ratio = f"{ours.value / its.value if ours.unit == 'tok/s' else its.value / ours.value:.2f}"
        rows.append(f"| {what} | {_cell(ours)} | {_cell(its)} | {ratio} |")
    return "\n".join(rows)


def _cell(figure: Figure) -> str:
    shown = "n/a" if figure.value is None else f"{figure.value:.2f} {figure.unit}"
    return f"{shown} ({figure.failed})" if figure.failed else shown


if __name__ == "__main__":
    raise SystemExit(main())
