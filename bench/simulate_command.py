"""``bireme simulate`` behind its options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..core.config import EngineConfig
from ..core.memory import KV_TYPES, kv_bytes_per_token, kv_element_bytes
from ..core.slo import parse_slo
from ..planner.chips import find_chip
from ..planner.devices import work_bytes
from ..planner.open import open_shape
from ..planner.plan import USUAL_HEAD_DIM
from ..planner.roofline import Roofline
from ..planner.shape import ModelShape
from ..planner.tensor_parallel import share_of
from ..server.sizes import parse_size
from .arrivals import schedule
from .data import draw
from .dataset import DataSpec, Drawn
from .fit import fit_front, fit_run
from .level import Load
from .machine import describe
from .objective import Objective, parse_objective
from .policies import Policy, policies
from .results import read_run
from .routing import ROUTINGS
from .serve_options import asked, check_outputs, counts, numbers
from .simulation import Machine, Outcome, simulate
from .simulation_table import outcome_table, user_table
from .sources import IdSource
from .timed_backend import StepCost
from .timeline import timeline

Options = Mapping[str, Any]
_RESERVE = 0.9  # share of a chip's memory that a server may plan for
_UNLIMITED = 1 << 20  # waiting requests
_MADE_UP = 1 << 19  # ids of a vocabulary that no tokenizer has
_RECORDED = 400  # steps of a timeline


def run_simulate(options: Options) -> int:
    """Predict as asked, and print one table."""
    check_outputs(options)
    config, loads = _config(options), _loads(options)
    shape = open_shape(options["model"])
    machine = _machine(options, shape, config)
    weights = {f"user {i + 1}": weight for i, weight in enumerate(numbers("weights", options["weights"]))}
    chosen = _chosen(options["policies"], policies(config, machine.pool_tokens, machine.max_len, len(weights)))
    if options["routing"] not in ROUTINGS:
        raise ValueError(f"routing is {options['routing']!r}; it must be one of {', '.join(ROUTINGS)}")
    objective, source = _objective(options, config), _source(options)
    outcomes: list[Outcome] = []
    notes: dict[str, None] = {}
    before = 0
    for number, load in enumerate(loads):
        drawn = _drawn(options, source, load, number, before, tuple(weights))
        before += len(drawn.sessions)
        notes |= dict.fromkeys(drawn.notes)
        for policy in chosen:
            keep = _RECORDED if options["html_path"] and not outcomes else 0
            replicas, routing = options["replicas"], options["routing"]
            outcomes.append(simulate(machine, policy, load, drawn, objective, replicas, keep, routing, weights))
    _finish(options, machine, outcomes, weights, list(notes))
    return 0


def _config(options: Options) -> EngineConfig:
    """The engine's settings: those that a server would be given. Nothing is refused for a full queue unless asked."""
    sizes = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size", "max_queue_per_user")
    return EngineConfig(
        **{name: options[name] for name in (*sizes, "max_stall_ms", "slo_policy", "enable_prefix_caching")},
        max_queue=options["max_queue"] or _UNLIMITED,
        slo=None if options["slo"] is None else parse_slo(options["slo"]),
        watchdog_s=1e9,
    )


def _chosen(text: str, known: list[Policy]) -> list[Policy]:
    """The policies named, in the table's order."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    if names == ["all"]:
        return known
    unknown = set(names) - {policy.name for policy in known}
    if unknown or not names:
        raise ValueError(f"policies is {text!r}; known here: all, {', '.join(policy.name for policy in known)}")
    return [policy for policy in known if policy.name in names]


def _objective(options: Options, config: EngineConfig) -> Objective | None:
    """That of ``--goodput``, or what ``--slo`` promises."""
    found = parse_objective([*(options["goodput"] or ()), *(options["terms"] or ())])
    if found is not None or config.slo is None:
        return found
    bounds = {"ttft": config.slo.ttft, "tpot": config.slo.tpot}
    return Objective({name: 1e3 * bound for name, bound in bounds.items() if bound is not None})


def _machine(options: Options, shape: ModelShape, config: EngineConfig) -> Machine:
    if options["kv_cache_dtype"] not in KV_TYPES:
        raise ValueError(f"kv-cache-dtype is {options['kv_cache_dtype']!r}; known: {', '.join(KV_TYPES)}")
    devices = options["tensor_parallel"]
    element = kv_element_bytes(options["kv_cache_dtype"], shape.head_dim or USUAL_HEAD_DIM)
    shape = share_of(shape, devices)
    per_token = kv_bytes_per_token(shape.layers, element)
    chip = find_chip(options["chip"])
    memory = parse_size(options["memory"]) if options["memory"] else round(chip.memory_gb * 1e9 * _RESERVE)
    buffers = work_bytes(shape, "any", config)
    room = memory - shape.weights.total_bytes - buffers
    if room < 16 * per_token:
        each = "" if devices == 1 else f" each of {devices} devices"
        raise ValueError(
            f"{shape.name} does not fit{each}: weights {shape.weights.total_bytes} and buffers {buffers} bytes leave "
            f"{room} of {memory} for the KV cache"
        )
    cost: StepCost
    front = 0.0
    if options["fit"]:
        run = read_run(Path(options["fit"]))
        cost = fitted = fit_run(run)
        front = fit_front(run, fitted)
    else:
        cost = Roofline(chip, shape, per_token, options["efficiency"], options["overhead_ms"] / 1e3, devices).seconds
    most = options["max_model_len"] or shape.max_position or 32768
    if options["front_ms"] is not None:
        front = options["front_ms"] / 1e3
    return Machine(cost, max(16, room // max(1, per_token)), most, front=front)


def _loads(options: Options) -> list[Load]:
    users, rates = counts("concurrency", options["concurrency"]), numbers("request-rate", options["request_rate"])
    if options["dataset"] == "trace":
        if users or rates:
            raise ValueError("a trace has times of its own: leave out --concurrency and --request-rate")
        return [Load("open", None, None)]
    if bool(users) == bool(rates):
        raise ValueError("give either --concurrency (closed loop) or --request-rate (open loop)")
    closed = [Load("closed", count, None) for count in users]
    unit = DataSpec(options["dataset"], options["dataset_path"]).unit
    return closed or [Load("open", None, rate, options["burstiness"], unit=unit) for rate in rates]


def _source(options: Options) -> IdSource:
    """Made-up ids; text of a file by the model's own tokenizer where its files are here."""
    model = Path(options["model"]).expanduser()
    if options["dataset"] not in ("sharegpt", "jsonl") or not (options["model"] == "demo" or model.exists()):
        return IdSource(_MADE_UP)
    if model.suffix == ".json" or (model.is_dir() and not any((*model.glob("tokenizer*"), *model.glob("*.gguf")))):
        return IdSource(_MADE_UP)
    from .serve import id_source

    return IdSource(_MADE_UP, encode=id_source(options["model"]).encode)


def _drawn(options: Options, source: IdSource, load: Load, number: int, before: int, users: tuple[str, ...]) -> Drawn:
    """A level's requests as token ids, dealt out in turn to ``users``."""
    names = ("input_len", "output_len", "range_ratio", "prefix_len", "num_prefixes", "turns", "think", "seed")
    spec = DataSpec(options["dataset"], options["dataset_path"], **{name: options[name] for name in names})
    count = options["num_prompts"] or (8 * (load.concurrency or 1) if load.loop == "closed" else 1000)
    if spec.kind == "trace" and not options["num_prompts"]:
        count = _UNLIMITED
    drawn = draw(spec, source, count, number, before)
    sessions = [
        replace(
            session,
            turns=tuple(replace(turn, content=source.ids_of(turn.content)) for turn in session.turns),
            user=users[i % len(users)] if users else "",
        )
        for i, session in enumerate(drawn.sessions)
    ]
    due = drawn.due
    if load.loop == "open" and due is None:
        assert load.rate is not None
        due = schedule(len(sessions), load.rate, load.burstiness, options["seed"] + number)
    return Drawn(sessions, due, drawn.notes)


def _basis(options: Options, machine: Machine) -> str:
    """What the figures stand on, in one line."""
    if options["fit"]:
        basis = f"fitted from {options['fit']}"
    else:
        share = f"{options['efficiency']:.0%} and {options['overhead_ms']:g} ms a step"
        chips = (
            options["chip"] if options["tensor_parallel"] == 1 else f"{options['tensor_parallel']} x {options['chip']}"
        )
        basis = f"a roofline of {chips} at {share}"
    if machine.front:
        basis += f", {machine.front * 1e3:.1f} ms of HTTP a request"
    pool = f"a KV pool of {machine.pool_tokens:,} tokens"
    if options["replicas"] > 1:
        pool = f"{options['replicas']} replicas, each with {pool}, chosen by {options['routing']}"
    return f"{basis}; {pool}"


def _finish(
    options: Options, machine: Machine, outcomes: list[Outcome], weights: Mapping[str, float], notes: list[str]
) -> None:
    simulated, wall = (sum(getattr(one, name) for one in outcomes) for name in ("simulated", "wall"))
    basis = _basis(options, machine)
    print(f"Simulated, not measured: {basis}.")
    print(outcome_table(outcomes))
    if weights:
        print(f"\n{user_table(outcomes, weights)}\n")
    for note in notes:
        print(f"NOTE: {note}")
    fold = simulated / max(wall, 1e-9)
    print(f"{simulated:.0f} s of device time simulated in {wall:.1f} s: {fold:.0f} times real time.")
    if options["json_path"]:
        about = {"basis": basis, "options": asked(options), "machine": describe(), "notes": notes}
        content = about | {"simulated": [_record(one) for one in outcomes]}
        options["json_path"].write_text(json.dumps(content, indent=1), encoding="utf-8")
    if options["html_path"]:
        first = outcomes[0]
        title = f"Simulated: {first.policy}, {first.level.load.name}"
        page = timeline(title, first.records, machine.pool_tokens // options["block_size"], basis)
        options["html_path"].write_text(page, encoding="utf-8")


def _record(outcome: Outcome) -> dict[str, Any]:
    found = {k: v for k, v in asdict(outcome).items() if k not in ("level", "records", "by_user")}
    found |= {"speed": outcome.speed, "load": outcome.level.load.name} | outcome.level.as_dict()
    if outcome.by_user:
        found["by_user"] = {user: level.as_dict() for user, level in outcome.by_user.items()}
    return found
