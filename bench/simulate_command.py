"""``bireme simulate`` behind its options."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..core.config import EngineConfig
from ..core.slo import parse_slo
from ..planner.open import open_shape
from ..server.commands.fail import EXIT_INTERRUPTED
from .dataset import TEXTS
from .machine import describe
from .objective import Objective, parse_objective
from .policies import Policy, policies
from .routing import ROUTINGS
from .serve_options import asked, check_outputs
from .simulated_levels import SimulatedLevels
from .simulated_machine import Simulated, simulated_machine
from .simulation import Outcome
from .simulation_table import outcome_table, user_table
from .sources import IdSource
from .timeline import timeline
from .traffic_options import Options, check_search, numbers, traffic_of

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
    objective = _objective(options, config)
    if options["find_goodput"]:
        check_search(traffic, objective)
        if traffic.concurrencies and options["replicas"] > 1:
            raise ValueError("--find-goodput over --replicas needs an open loop; give one --request-rate to start at")
    elif "attainment" in options["named"]:
        raise ValueError("--attainment is what --find-goodput searches for; give both")
    levels = SimulatedLevels(
        machine,
        traffic,
        _source(options),
        objective,
        weights,
        options["replicas"],
        options["routing"],
        _RECORDED if options["html_path"] else 0,
        notes=dict.fromkeys(simulated.notes),
    )
    headlines, interrupted = _put(options, levels, chosen)
    _finish(options, simulated, levels, headlines)
    return EXIT_INTERRUPTED if interrupted else 0


def _put(options: Options, levels: SimulatedLevels, chosen: list[Policy]) -> tuple[list[str], bool]:
    """(what a search found, whether Ctrl-C came before the end). What has ended until then is kept."""
    try:
        if options["find_goodput"]:
            assert levels.objective is not None
            return levels.search(chosen, options["attainment"], levels.objective.text), False
        levels.sweep(chosen)
    except KeyboardInterrupt:
        if not levels.outcomes:
            raise
        levels.notes["INTERRUPTED: this is a part of what was asked"] = None
        return [], True
    return [], False


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
    if options["dataset"] not in TEXTS or not (options["model"] == "demo" or model.exists()):
        return IdSource(_MADE_UP)
    if model.suffix == ".json" or (model.is_dir() and not any((*model.glob("tokenizer*"), *model.glob("*.gguf")))):
        return IdSource(_MADE_UP)
    from .serve import id_source

    return IdSource(_MADE_UP, encode=id_source(options["model"]).encode)


def _finish(options: Options, on: Simulated, levels: SimulatedLevels, headlines: list[str]) -> None:
    outcomes, notes = levels.outcomes, list(levels.notes)
    simulated, wall = (sum(getattr(one, name) for one in outcomes) for name in ("simulated", "wall"))
    basis = f"{on.basis}; {outcomes[0].level.load.about}"
    print(f"Simulated, not measured: {basis}.")
    print(outcome_table(outcomes))
    if levels.weights:
        print(f"\n{user_table(outcomes, levels.weights)}\n")
    if on.reach is not None:
        notes += dict.fromkeys(note for one in outcomes for note in on.reach.notes(one.level))
    notes += [f"{one.policy}, {one.level.load.name}: {one.level.failed_line()}" for one in outcomes if one.level.failed]
    for note in notes:
        print(f"NOTE: {note}")
    for text in headlines:
        print(text)
    fold = simulated / max(wall, 1e-9)
    print(f"{simulated:.0f} s of device time simulated in {wall:.1f} s: {fold:.0f} times real time.")
    if options["json_path"]:
        about = {"basis": basis, "options": asked(options), "machine": describe(), "notes": notes}
        about |= {"found": headlines} if headlines else {}
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
