"""The options that say which load is wanted, alike for a server and for a simulated one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeVar

from .arrivals import Ramp
from .dataset import DATASETS, FILES, DataSpec
from .objective import Objective
from .traffic import Traffic

Options = Mapping[str, Any]
N = TypeVar("N", int, float)
#: Options that some data sets alone read.
_DRAWN = tuple(kind for kind in DATASETS if kind not in FILES)
_READ_BY = {
    "input_len": _DRAWN,
    "range_ratio": _DRAWN,
    "prefix_len": ("prefix",),
    "num_prefixes": ("prefix",),
    "turns": ("multiturn",),
    "think": ("multiturn",),
}
_DATA = ("input_len", "output_len", "range_ratio", "prefix_len", "num_prefixes", "turns", "think", "seed")


def traffic_of(options: Options, usual: tuple[int, ...] = ()) -> Traffic:
    """The load asked for; ``usual``: users at once where no load is named.

    Raises:
        ValueError: options that are wrong, or that say nothing together.
    """
    start, end, kind = options["ramp_up_start_rps"], options["ramp_up_end_rps"], options["dataset"]
    if (start is None) != (end is None):
        raise ValueError("a ramp needs both --ramp-up-start-rps and --ramp-up-end-rps")
    if options["dataset_path"] and kind not in FILES:
        raise ValueError(
            f"--dataset-path is {str(options['dataset_path'])!r}, but --dataset {kind} reads no file; "
            f"give --dataset {', '.join(FILES[:-1])} or {FILES[-1]}"
        )
    _check_named(options)
    names = (*_DATA, "chat") if "chat" in options else _DATA
    data = DataSpec(kind, options["dataset_path"], **{name: options[name] for name in names})
    rates = _distinct("request-rate", numbers("request-rate", options["request_rate"]))
    users = _distinct("concurrency", counts("concurrency", options["concurrency"]))
    if not users and not rates and start is None and data.kind != "trace":
        users = usual
    return Traffic(
        data=data,
        concurrencies=users,
        rates=rates,
        burstiness=options["burstiness"],
        ramp=None if start is None else Ramp(start, end, options["ramp_up_strategy"]),
        max_concurrency=options["max_concurrency"],
        num_prompts=options["num_prompts"],
        seed=options["seed"],
    )


def _check_named(options: Options) -> None:
    """What was named is read by somebody."""
    kind, named = options["dataset"], options["named"]
    for name, kinds in _READ_BY.items():
        if name in named and kind in DATASETS and kind not in kinds:
            option = "--" + name.replace("_", "-")
            raise ValueError(f"{option} says nothing of --dataset {kind}; it is of --dataset {' or '.join(kinds)}")
    if "ramp_up_strategy" in named and options["ramp_up_start_rps"] is None:
        raise ValueError("--ramp-up-strategy is of a ramp; give --ramp-up-start-rps and --ramp-up-end-rps")


def check_search(traffic: Traffic, objective: Objective | None) -> None:
    """That a search for the largest load can start from ``traffic``.

    Raises:
        ValueError: there is no objective, or not one load to start at.
    """
    if objective is None:
        raise ValueError("--find-goodput needs an objective: --goodput ttft:1000 tpot:50")
    if traffic.data.kind == "trace" or traffic.ramp is not None:
        what = "a trace" if traffic.ramp is None else "a ramp"
        raise ValueError(f"--find-goodput tries loads of its own, and {what} has its own times; give one of them")
    if len(traffic.concurrencies) + len(traffic.rates) != 1:
        raise ValueError("--find-goodput tries loads of its own: give one --concurrency or --request-rate to start at")


def _distinct(name: str, loads: tuple[N, ...]) -> tuple[N, ...]:
    twice = [load for load, count in Counter(loads).items() if count > 1]
    if twice:
        raise ValueError(f"{name} has {twice[0]:g} twice; levels are told apart by their load, so give each once")
    return loads


def numbers(name: str, text: str) -> tuple[float, ...]:
    """``1,4,8`` as numbers above 0; () of nothing."""
    try:
        found = tuple(float(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{name} is {text!r}; wanted: numbers with commas between them") from None
    if any(not value > 0 for value in found):
        raise ValueError(f"{name} is {text!r}; every number must be above 0")
    if text and not found:
        raise ValueError(f"{name} is {text!r}; wanted: numbers with commas between them")
    return found


def counts(name: str, text: str) -> tuple[int, ...]:
    """``1,4,8`` as whole numbers from 1 on."""
    found = numbers(name, text)
    if any(value != int(value) for value in found if value < float("inf")) or float("inf") in found:
        raise ValueError(f"{name} is {text!r}; every number must be whole")
    return tuple(int(value) for value in found)
