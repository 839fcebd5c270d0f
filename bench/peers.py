"""Our server beside others on the same machine, weights, prompts and load: ``make bench-peers``.

All run in one session, each in its own processes; while one is measured the others are stopped, so that they share no
core. Phases alternate, and each phase's prompts are new to every server. Requests go to /v1/completions, greedy, with a
fixed number of tokens out, in a closed loop: as token ids, or as text where a peer takes no ids.

llama.cpp reads the same GGUF file, or one with its weights as Q4_0. ``mlx-lm`` (mlx_lm.server) and ``transformers``
(`transformers serve --continuous-batching`) read a float32 folder that is made of it, and its end token is one that no
answer holds. Everything goes into an HTML report, with each peer's ratios as the paired mode of `bireme bench serve`
gives them.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from ..models.hub import resolve
from ..models.tokenizer import Tokenizer
from ..server.commands.fail import EXIT_FAILED, EXIT_INTERRUPTED, fail
from .ask import Prompt
from .closed_level import closed_level
from .machine import describe
from .mlx_folder import float32_folder
from .peers_options import LLAMA, LLAMA_Q4_0, MLX_LM, OURS, TRANSFORMERS, parser
from .peers_page import peers_page
from .peers_text import Measured, duration, markdown, paired
from .requantise import requantised
from .results import warnings
from .serve_options import check_outputs
from .servers import Server, start_bireme, start_llama, start_mlx_lm, start_transformers
from .text import PromptMaker, load_tokenizer

TEXT_ONLY = (MLX_LM, TRANSFORMERS)  # they take no token ids, and read the float32 folder
REQUESTS = {1: 6, 4: 16, 8: 24, 16: 32}  # per phase and round; others: twice the concurrency


@dataclass(frozen=True, slots=True)
class Phase:
    """One load, put on each server in turn."""

    name: str
    concurrency: int
    prompts: tuple[Prompt, ...]
    warm: tuple[Prompt, ...] = ()  # asked before anything is measured


def main() -> int:
    """Measure as asked. Returns the exit code: 1 if a server did not come up or requests failed, 130 after Ctrl-C."""
    asked = parser(__doc__ or "").parse_args()
    try:
        return _run(asked)
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except RuntimeError as error:  # with a server's last words, on lines of their own
        _say(f"bireme: {error}")
        return EXIT_FAILED
    except (ValueError, OSError) as error:
        fail(error)


def _run(asked: argparse.Namespace) -> int:
    check_outputs({"json_path": asked.json, "html_path": asked.html})
    model = resolve(asked.model)
    tokenizer = load_tokenizer(model)
    maker = PromptMaker(tokenizer)
    machine = describe()
    rounds = [_phases(maker, asked) for _ in range(asked.rounds)]
    if set(TEXT_ONLY) & set(asked.peers):
        rounds = [[_as_text(phase, tokenizer) for phase in phases] for phases in rounds]
    with tempfile.TemporaryDirectory(prefix="bireme-peers-") as scratch:
        servers = _start(model, asked, Path(scratch))
        try:
            measured, interrupted = _measure(rounds, servers)
            memory = {server.label: server.memory() for server in servers}
        finally:
            for server in servers:
                server.stop()
    commands = {server.label: " ".join(server.command[1:]) for server in servers}
    notes = ["INTERRUPTED: only what every server has ended is shown"] if interrupted else []
    notes += [f"{row.server}, {row.phase}: {note}" for row in measured for note in warnings([row.level])]
    about = {"machine": machine, "commands": commands, "memory_bytes": memory, "options": vars(asked)}
    _report(asked, measured, about | {"interrupted": interrupted, "notes": list(dict.fromkeys(notes))})
    if interrupted:
        return EXIT_INTERRUPTED
    return EXIT_FAILED if any(row.level.failures for row in measured) else 0


def _measure(rounds: Sequence[Sequence[Phase]], servers: Sequence[Server]) -> tuple[list[Measured], bool]:
    """(what every server has ended, whether Ctrl-C came before the end)"""
    measured: list[Measured] = []
    try:
        for number, phases in enumerate(rounds):
            measured.extend(_round(number, phases, servers))  # which keeps what came before an end
    except KeyboardInterrupt:
        ended = Counter((row.phase, row.concurrency, row.round) for row in measured)
        whole = [row for row in measured if ended[row.phase, row.concurrency, row.round] == len(servers)]
        if not whole:
            raise
        return whole, True
    return measured, False


def _report(asked: argparse.Namespace, measured: Sequence[Measured], about: dict[str, Any]) -> None:
    """Print the tables and what must be known of them, and write the record and the page where they were asked for."""
    ratios = paired(measured, OURS)
    print(markdown(about["machine"], measured, _titles(asked), about["memory_bytes"], OURS))
    print("\n" + ratios)
    for note in about["notes"]:
        _say(f"WARNING: {note}")
    for row in measured:
        if row.level.failures:
            _say(f"{row.server}, {row.phase}: {row.level.failed_line()}")
    if asked.json:
        rows = [asdict(row) | {"level": row.level.as_dict()} for row in measured]
        asked.json.write_text(json.dumps(about | {"measured": rows}, indent=1, default=str), encoding="utf-8")
    if asked.html:
        asked.html.write_text(peers_page(measured, OURS, ratios, about), encoding="utf-8")
        _say(f"report: {asked.html.absolute()}")


def _titles(asked: argparse.Namespace) -> dict[str, str]:
    tail = f"{asked.output_tokens} tokens out"
    return {
        "distinct": f"{asked.prompt_tokens}-token prompts that share nothing, {tail}",
        "shared": f"a shared prefix of {asked.prefix_tokens} tokens and 30 of each request's own, {tail}",
    }


def _phases(maker: PromptMaker, asked: argparse.Namespace) -> list[Phase]:
    """New prompts for one round."""
    phases = []
    for concurrency in asked.concurrency:
        count = REQUESTS.get(concurrency, 2 * concurrency)
        prompts = [maker.distinct(asked.prompt_tokens) for _ in range(count)]
        phases.append(_phase("distinct", concurrency, prompts, maker, asked))
    if asked.prefix_tokens:
        phases.append(_phase("shared", 8, maker.shared(asked.prefix_tokens, 30, 24), maker, asked))
    return phases


def _phase(
    name: str, concurrency: int, prompts: Sequence[tuple[int, ...]], maker: PromptMaker, asked: argparse.Namespace
) -> Phase:
    warm = (Prompt(maker.distinct(40), 4),) * min(2, concurrency)
    return Phase(name, concurrency, tuple(Prompt(ids, asked.output_tokens) for ids in prompts), warm)


def _as_text(phase: Phase, tokenizer: Tokenizer) -> Phase:
    prompts, warm = (
        tuple(replace(one, content=tokenizer.decode(_ids(one))) for one in some) for some in (phase.prompts, phase.warm)
    )
    return replace(phase, prompts=prompts, warm=warm)


def _ids(prompt: Prompt) -> list[int]:
    return [item for item in prompt.content if isinstance(item, int)]


def _start(model: Path, asked: argparse.Namespace, scratch: Path) -> list[Server]:
    parallel = max([*asked.concurrency, 8])
    longest = max(asked.prompt_tokens, asked.prefix_tokens + 30) + asked.output_tokens
    context = -(-longest // 256) * 256
    servers: list[Server] = []

    @cache
    def folder() -> Path:
        return float32_folder(model, scratch / "model", never_ends=True)

    starts: dict[str, Callable[[], Server]] = {
        OURS: lambda: start_bireme(OURS, model, device=asked.device, threads=asked.threads, parallel=parallel),
        LLAMA: lambda: start_llama(LLAMA, model, threads=asked.threads, parallel=parallel, context=context),
        LLAMA_Q4_0: lambda: start_llama(
            LLAMA_Q4_0, requantised(model), threads=asked.threads, parallel=parallel, context=context
        ),
        MLX_LM: lambda: start_mlx_lm(MLX_LM, folder()),
        TRANSFORMERS: lambda: start_transformers(TRANSFORMERS, folder()),
    }
    try:
        for label in [OURS, *asked.peers]:
            servers.append(starts[label]())
            with servers[-1].awake():
                _say(f"{label} is up")
    except BaseException:
        for server in servers:
            server.stop()
        raise
    return servers


def _round(number: int, phases: Sequence[Phase], servers: Sequence[Server]) -> Iterator[Measured]:
    """Every phase on every server; the order turns around from phase to phase."""
    for turn, phase in enumerate(phases):
        for server in servers if (turn + number) % 2 == 0 else servers[::-1]:
            with server.awake() as target:
                closed_level(target, phase.warm, len(phase.warm))
                level = closed_level(target, phase.prompts, phase.concurrency)
            yield Measured(phase.name, phase.concurrency, number, server.label, level)
            _say(
                f"round {number + 1}, {phase.name}, {phase.concurrency} at once, {server.label}: "
                f"{level.output_throughput:.1f} tok/s, TTFT p50 {duration(level.spreads['ttft'].percentiles[50])}"
                f"{' ' + level.failed_line() if level.failures else ''}"
            )


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
