"""``bireme simulate`` behind its options."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ..core.config import EngineConfig
from ..core.slo import parse_slo
from ..planner.open import open_shape
from .data import draw
from .dataset import Drawn
from .level import Load
from .machine import describe
from .objective import Objective, parse_objective
from .policies import Policy, policies
from .routing import ROUTINGS
from .serve_options import asked, check_outputs
from .simulated_machine import Simulated, simulated_machine
from .simulation import Outcome, simulate
from .simulation_table import outcome_table, user_table
from .sources import IdSource
from .timeline import timeline
from .traffic import Traffic
from .traffic_options import Options, numbers, traffic_of

_UNLIMITED = 1 << 20  # waiting requests
_MADE_UP = 1 << 19  # ids of a vocabulary that no tokenizer has
_RECORDED = 400  # steps of a timeline


def run_simulate(options: Options) -> int:
    """Predict as asked, and print one table."""
    check_outputs(options)
    config, traffic = _config(options), traffic_of(options)
    simulated = simulated_machine(options, open_shape(options["model"]), config)
    machine = simulated.machine
    weights = {f"user {i + 1}": weight for i, weight in enumerate(numbers("weights", options["weights"]))}
    chosen = _chosen(options["policies"], policies(config, machine.pool_tokens, machine.max_len, len(weights)))
    if options["routing"] not in ROUTINGS:
        raise ValueError(f"routing is {options['routing']!r}; it must be one of {', '.join(ROUTINGS)}")
    objective, source = _objective(options, config), _source(options)
    outcomes: list[Outcome] = []
    notes = dict.fromkeys(simulated.notes)
    before = 0
    for number, load in enumerate(traffic.loads()):
        drawn = _drawn(traffic, source, load, number, before, tuple(weights))
        before += len(drawn.sessions)
        notes |= dict.fromkeys(drawn.notes)
        for policy in chosen:
            keep = _RECORDED if options["html_path"] and not outcomes else 0
            replicas, routing = options["replicas"], options["routing"]
            outcomes.append(simulate(machine, policy, load, drawn, objective, replicas, keep, routing, weights))
    _finish(options, simulated, outcomes, weights, list(notes))
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


def _source(options: Options) -> IdSource:
    """Made-up ids; text of a file by the model's own tokenizer where its files are here."""
    model = Path(options["model"]).expanduser()
    if options["dataset"] not in ("sharegpt", "jsonl") or not (options["model"] == "demo" or model.exists()):
        return IdSource(_MADE_UP)
    if model.suffix == ".json" or (model.is_dir() and not any((*model.glob("tokenizer*"), *model.glob("*.gguf")))):
        return IdSource(_MADE_UP)
    from .serve import id_source

    return IdSource(_MADE_UP, encode=id_source(options["model"]).encode)


def _drawn(traffic: Traffic, source: IdSource, load: Load, number: int, before: int, users: tuple[str, ...]) -> Drawn:
    """A level's requests as token ids, dealt out in turn to ``users``."""
    count = traffic.num_prompts or (8 * (load.concurrency or 1) if load.loop == "closed" else 1000)
    if traffic.data.kind == "trace" and not traffic.num_prompts:
        count = _UNLIMITED
    drawn = draw(traffic.data, source, count, number, before)
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
        due = traffic.due(load, len(sessions), number)
    return Drawn(sessions, due, (*drawn.notes, *traffic.idle_users(load, len(sessions))))


def _finish(
    options: Options, on: Simulated, outcomes: list[Outcome], weights: Mapping[str, float], notes: list[str]
) -> None:
    simulated, wall = (sum(getattr(one, name) for one in outcomes) for name in ("simulated", "wall"))
    basis = f"{on.basis}; {outcomes[0].level.load.about}"
    print(f"Simulated, not measured: {basis}.")
    print(outcome_table(outcomes))
    if weights:
        print(f"\n{user_table(outcomes, weights)}\n")
    notes += [f"{one.policy}, {one.level.load.name}: {one.level.failed_line()}" for one in outcomes if one.level.failed]
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
        page = timeline(title, first.records, on.machine.pool_tokens // options["block_size"], basis)
        options["html_path"].write_text(page, encoding="utf-8")


def _record(outcome: Outcome) -> dict[str, Any]:
    found = {k: v for k, v in asdict(outcome).items() if k not in ("level", "records", "by_user")}
    found |= {"speed": outcome.speed, "load": outcome.level.load.name} | outcome.level.as_dict()
    if outcome.by_user:
        found["by_user"] = {user: level.as_dict() for user, level in outcome.by_user.items()}
    return found
