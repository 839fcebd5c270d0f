"""``bireme simulate`` behind its options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.config import EngineConfig
from ..core.memory import KV_TYPES, kv_bytes_per_token, kv_element_bytes
from ..planner.chips import find_chip
from ..planner.devices import work_bytes
from ..planner.open import open_shape
from ..planner.plan import USUAL_HEAD_DIM
from ..planner.roofline import Roofline
from ..planner.shape import ModelShape
from ..server.sizes import parse_size
from .arrivals import schedule
from .data import draw
from .dataset import DataSpec, Drawn
from .fit import fit_front, fit_run
from .level import Load
from .objective import parse_objective
from .policies import policies
from .results import read_run
from .serve_command import numbers
from .simulation import ROUTINGS, Machine, Outcome, outcome_table, simulate
from .sources import IdSource
from .timed_backend import StepCost
from .timeline import timeline

Options = Mapping[str, Any]
_RESERVE = 0.9  # share of a chip's memory that a server may plan for


def run_simulate(options: Options) -> int:
    """Predict as asked, and print one table."""
    shape = open_shape(options["model"])
    config = EngineConfig(
        max_num_seqs=options["max_num_seqs"],
        max_num_batched_tokens=options["max_num_batched_tokens"],
        max_queue=1 << 20,
        watchdog_s=1e9,
    )
    machine = _machine(options, shape, config)
    every = policies(config, machine.pool_tokens, machine.max_len)
    names = [name.strip() for name in options["policies"].split(",")]
    chosen = every if names == ["all"] else [policy for policy in every if policy.name in names]
    if not chosen:
        raise ValueError(f"policies is {options['policies']!r}; known: all, {', '.join(p.name for p in every)}")
    if options["routing"] not in ROUTINGS:
        raise ValueError(f"routing is {options['routing']!r}; it must be one of {', '.join(ROUTINGS)}")
    objective = parse_objective([*(options["goodput"] or ()), *(options["terms"] or ())])
    outcomes: list[Outcome] = []
    for number, load in enumerate(_loads(options)):
        drawn = _drawn(options, load, number)
        for policy in chosen:
            keep = 400 if options["html_path"] and not outcomes else 0
            replicas, routing = options["replicas"], options["routing"]
            outcomes.append(simulate(machine, policy, load, drawn, objective, replicas, keep, routing))
    _finish(options, machine, outcomes)
    return 0


def _machine(options: Options, shape: ModelShape, config: EngineConfig) -> Machine:
    if options["kv_cache_dtype"] not in KV_TYPES:
        raise ValueError(f"kv-cache-dtype is {options['kv_cache_dtype']!r}; known: {', '.join(KV_TYPES)}")
    element = kv_element_bytes(options["kv_cache_dtype"], shape.head_dim or USUAL_HEAD_DIM)
    per_token = kv_bytes_per_token(shape.layers, element)
    chip = find_chip(options["chip"])
    memory = parse_size(options["memory"]) if options["memory"] else round(chip.memory_gb * 1e9 * _RESERVE)
    buffers = work_bytes(shape, "any", config)
    room = memory - shape.weights.total_bytes - buffers
    if room < 16 * per_token:
        raise ValueError(
            f"{shape.name} does not fit: weights {shape.weights.total_bytes} and buffers {buffers} bytes leave "
            f"{room} of {memory} for the KV cache"
        )
    cost: StepCost
    front = 0.0
    if options["fit"]:
        run = read_run(Path(options["fit"]))
        cost = fitted = fit_run(run)
        front = fit_front(run, fitted)
    else:
        cost = Roofline(chip, shape, per_token, options["efficiency"], options["overhead_ms"] / 1e3).seconds
    most = options["max_model_len"] or shape.max_position or 32768
    if options["front_ms"] is not None:
        front = options["front_ms"] / 1e3
    return Machine(cost, max(16, room // max(1, per_token)), most, front=front)


def _loads(options: Options) -> list[Load]:
    users, rates = numbers("concurrency", options["concurrency"]), numbers("request-rate", options["request_rate"])
    if options["dataset"] == "trace":
        return [Load("open", None, None)]
    if bool(users) == bool(rates):
        raise ValueError("give either --concurrency (closed loop) or --request-rate (open loop)")
    closed = [Load("closed", int(count), None) for count in users]
    return closed or [Load("open", None, rate, options["burstiness"]) for rate in rates]


def _drawn(options: Options, load: Load, number: int) -> Drawn:
    names = ("input_len", "output_len", "range_ratio", "prefix_len", "num_prefixes", "turns", "think", "seed")
    spec = DataSpec(options["dataset"], options["dataset_path"], **{name: options[name] for name in names})
    count = options["num_prompts"] or (8 * (load.concurrency or 1) if load.loop == "closed" else 1000)
    drawn = draw(spec, IdSource(1 << 19), count, number)
    if load.loop == "closed" or drawn.due is not None:
        return drawn
    assert load.rate is not None
    return Drawn(drawn.sessions, schedule(len(drawn.sessions), load.rate, load.burstiness, options["seed"] + number))


def _finish(options: Options, machine: Machine, outcomes: list[Outcome]) -> None:
    simulated, wall = (sum(getattr(one, name) for one in outcomes) for name in ("simulated", "wall"))
    basis = (
        f"fitted from {options['fit']}"
        if options["fit"]
        else (
            f"a roofline of {options['chip']} at {options['efficiency']:.0%} and {options['overhead_ms']:g} ms a step"
        )
    )
    if machine.front:
        basis += f", {machine.front * 1e3:.1f} ms of HTTP a request"
    pool = f"{options['replicas']} device(s), each with a KV pool of {machine.pool_tokens:,} tokens"
    if options["replicas"] > 1:
        pool += f", chosen by {options['routing']}"
    print(f"Simulated, not measured: {basis}; {pool}.")
    print(outcome_table(outcomes))
    fold = simulated / max(wall, 1e-9)
    print(f"{simulated:.0f} s of device time simulated in {wall:.1f} s: {fold:.0f} times real time.")
    if options["json_path"]:
        rows = []
        for one in outcomes:
            extra = {k: v for k, v in asdict(one).items() if k not in ("level", "records")}
            extra["speed"] = one.speed
            rows.append(extra | {"load": one.level.load.name} | one.level.as_dict())
        options["json_path"].write_text(json.dumps({"simulated": rows}, indent=1), encoding="utf-8")
    if options["html_path"]:
        first = outcomes[0]
        title = f"Simulated: {first.policy}, {first.level.load.name}"
        options["html_path"].write_text(timeline(title, first.records), encoding="utf-8")
