"""Benchmarks without a server: ``bireme bench throughput | latency | host | kernels``. All give one form of record."""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.request import SamplingParams
from ..llm import LLM
from ..server.commands.fail import EXIT_INTERRUPTED
from .data import draw
from .dataset import DataSpec
from .level import PERCENTILES, Spread
from .machine import describe, line
from .serve import id_source
from .serve_options import check_outputs
from .sources import IdSource

Options = Mapping[str, Any]
Row = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Record:
    """What one of these benchmarks found: ``rows`` of flat figures, and all that they were measured on."""

    bench: str
    options: dict[str, str]
    machine: dict[str, Any]
    rows: tuple[Row, ...]
    interrupted: bool = False  # by Ctrl-C: rows are missing

    def as_dict(self) -> dict[str, Any]:
        found = {"bench": self.bench, "machine": self.machine, "options": self.options, "rows": list(self.rows)}
        return found | ({"interrupted": True} if self.interrupted else {})

    def text(self) -> str:
        """A Markdown table under the machine; a figure that a row lacks is an empty cell."""
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        lines = [line(self.machine), "", "| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
        for row in self.rows:
            lines.append("| " + " | ".join(_cell(row.get(name)) for name in columns) + " |")
        return "\n".join(lines)


def run_offline(bench: str, options: Options) -> int:
    """Measure, print the table, and write the record where it was asked for. After Ctrl-C the rows that are there are
    kept. Returns the exit code."""
    check_outputs(options)
    asked = {key: str(value) for key, value in options.items() if value not in (None, "", ())}
    machine = describe()
    rows: list[Row] = []
    interrupted = False
    try:
        rows.extend(_BENCHES[bench](options))  # which keeps those that came before an end
    except KeyboardInterrupt:
        if not rows:
            raise
        interrupted = True
    record = Record(bench, asked, machine, tuple(rows), interrupted)
    print(record.text())
    if interrupted:
        print("WARNING: INTERRUPTED: rows are missing", file=sys.stderr)
    if options["json_path"]:
        options["json_path"].write_text(json.dumps(record.as_dict(), indent=1, default=str), encoding="utf-8")
    return EXIT_INTERRUPTED if interrupted else 0


def throughput(options: Options) -> Iterator[Row]:
    """All prompts at once: what the engine gets through."""
    with _Engine(options, options["max_num_seqs"]) as (llm, source):
        prompts, params = _prompts(options, source, options["num_prompts"], 1)
        start = time.perf_counter()
        outputs = llm.generate(prompts, params, progress=False)
        seconds = time.perf_counter() - start
    read = sum(len(prompt) for prompt in prompts)
    made = sum(len(one.outputs[0].token_ids) for one in outputs)
    yield {
        "requests": len(outputs),
        "seconds": seconds,
        "req/s": len(outputs) / seconds,
        "tok/s out": made / seconds,
        "tok/s in and out": (read + made) / seconds,
        "tokens in": read,
        "cached": sum(one.cached_tokens for one in outputs),
        "tokens out": made,
    }


def latency(options: Options) -> Iterator[Row]:
    """Batches one after the other, each of new prompts: how long one takes, and how long to its first tokens."""
    for size in options["batch_sizes"]:
        wholes, firsts = [], []
        with _Engine(options, size) as (llm, source):
            for number in range(options["iterations"]):
                prompts, params = _prompts(options, source, size, 2 * number + 1)
                wholes.append(_timed(llm, prompts, params))
                prompts, one = _prompts(dict(options, output_len=1), source, size, 2 * number + 2)
                firsts.append(_timed(llm, prompts, one))
        whole, first = Spread.of(wholes), Spread.of(firsts)
        each = time_per_token(wholes, firsts, options["output_len"] - 1)
        row: Row = {"batch": size, "n": whole.n, "mean ms": whole.mean}
        row |= {f"p{p} ms": whole.percentiles[p] for p in PERCENTILES}
        yield row | {"first tokens ms": first.mean, "ms a token": each}


def time_per_token(wholes: list[float], firsts: list[float], steps: int) -> float | None:
    """Milliseconds of each of ``steps`` tokens after the first; None where there are none, or so few that the two
    kinds of batches differ by chance: no token takes less than no time."""
    more = sum(wholes) / len(wholes) - sum(firsts) / len(firsts)
    return more / steps if steps and more > 0 else None


def host(options: Options) -> Iterator[Row]:
    """What the engine's own work costs per step, over a device that answers at once; microseconds."""
    import numpy as np

    from .host import measure

    clock = time.thread_time if options["cpu_time"] else time.perf_counter
    for count in options["sequences"]:
        timings = measure(count, options["steps"], clock=clock)
        row: Row = {"sequences": count}
        for name, part in (("plan", timings.plan), ("commit", timings.commit), ("step", timings.whole)):
            median, high = np.percentile(part, [50, 99])
            row |= {f"{name} p50 us": float(median), f"{name} p99 us": float(high)}
        yield row


def kernels(options: Options) -> Iterator[Row]:
    """The device's own: linear layers and attention on the CPU, beside plain torch; everything on a GPU; on MLX each
    operation of whole steps of the demo model."""
    from ..backends.select import resolve_device

    device = resolve_device(options["device"])
    if device == "cpu":
        from . import cpu_attention, cpu_linear

        yield from cpu_linear.figures(("Q4_1", "Q8_0"), (1, 8, 64), options["quick"])
        yield from cpu_attention.figures(0.05 if options["quick"] else 0.3, options["quick"])
    elif device == "cuda":
        yield from _on_gpu(options["quick"])
    elif device == "mlx":
        yield from _on_mlx(options["quick"])
    else:
        raise ValueError(f"kernels on {device!r}: there are none to measure")


def _on_mlx(quick: bool) -> Iterator[Row]:
    from .mlx_step import measure
    from .step_times import WHOLE

    columns = measure(["--sequences", "1", "--chunks", "32", "--steps", "2"] if quick else [])
    for name in dict.fromkeys(name for column in columns.values() for name in column):
        yield {"operation": WHOLE.get(name, name)} | {
            f"{title}, ms": column.get(name) for title, column in columns.items()
        }


def _on_gpu(quick: bool) -> Iterator[Row]:
    from . import gpu

    with tempfile.TemporaryDirectory(prefix="bireme-kernels-") as folder:
        path = Path(folder) / "gpu.json"
        gpu.main(["--only", "check", "rates", "--json", str(path), *(("--quick",) if quick else ())])
        found = json.loads(path.read_text(encoding="utf-8"))
    yield from found["figures"]


class _Engine:
    """A loaded model, warmed up, and where its prompts come from."""

    def __init__(self, options: Options, max_num_seqs: int) -> None:
        extra = {} if options["threads"] is None else {"threads": options["threads"]}
        length = options["input_len"] + options["output_len"] + 16
        self.llm = LLM(
            options["model"],
            options["device"],
            progress=False,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max(2048, max_num_seqs),
            max_model_len=length,
            **extra,
        )
        self.source, self.options = id_source(options["model"]), options

    def __enter__(self) -> tuple[LLM, IdSource]:
        prompts, params = _prompts(dict(self.options, output_len=4), self.source, 2, 0)
        self.llm.generate(prompts, params, progress=False)
        return self.llm, self.source

    def __exit__(self, *error: object) -> None:
        self.llm.close()


def _prompts(
    options: Options, source: IdSource, count: int, number: int
) -> tuple[list[tuple[int, ...]], SamplingParams]:
    spec = DataSpec(input_len=options["input_len"], output_len=options["output_len"], seed=options["seed"])
    params = SamplingParams(max_tokens=options["output_len"], temperature=0.0, ignore_eos=True)
    contents = [session.turns[0].content for session in draw(spec, source, count, number).sessions]
    return [tuple(int(item) for item in content if isinstance(item, int)) for content in contents], params


def _timed(llm: LLM, prompts: list[tuple[int, ...]], params: SamplingParams) -> float:
    """Milliseconds."""
    start = time.perf_counter()
    llm.generate(prompts, params, progress=False)
    return (time.perf_counter() - start) * 1e3


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"
    return "" if value is None else str(value)


_BENCHES = {"throughput": throughput, "latency": latency, "host": host, "kernels": kernels}
