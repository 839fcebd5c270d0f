"""The options of ``bireme bench serve``, checked and made into what is to be measured."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from .ask import Target
from .objective import parse_objective
from .probe import find_model
from .serve import Plan
from .traffic_options import Options, check_search, traffic_of


def plan_of(options: Options) -> Plan:
    """What is to be measured.

    Raises:
        ValueError: options that are wrong, or that say nothing together.
    """
    _check_together(options)
    objective = parse_objective([*(options["goodput"] or ()), *(options["terms"] or ())])
    if "attainment" in options["named"] and objective is None:
        raise ValueError("--attainment is the share of requests that meet an objective; give one: --goodput ttft:1000")
    traffic = traffic_of(options, usual=(1,) if options["find_goodput"] else (1, 4, 8, 16))
    if options["find_goodput"]:
        check_search(traffic, objective)
    return Plan(traffic, options["num_warmups"], objective, options["attainment"])


def _check_together(options: Options) -> None:
    """Options that are right by themselves and not together: none is passed over in silence."""
    stray = [term for term in options["terms"] or () if ":" not in term]
    if stray:
        raise ValueError(f"{stray[0]!r} belongs to no option; a server is named by --url, its model by --model")
    for option in ("--against-model", "--against-api-key"):
        if options[option.strip("-").replace("-", "_")] and not options["against"]:
            raise ValueError(f"{option} is of a second server; give its address with --against")
    if "rounds" in options["named"] and not options["against"]:
        raise ValueError("--rounds is of two servers in turn; give the second's address with --against")
    if options["find_goodput"] and options["against"]:
        raise ValueError("--find-goodput and --against are two measurements; give one of them")


def check_outputs(options: Options) -> None:
    """That what is measured can be written where it is wanted, before anything is measured.

    Raises:
        ValueError: there is no such folder, or it is one.
    """
    for name in ("json_path", "html_path"):
        path = options.get(name)
        if path and (path.is_dir() or not path.absolute().parent.is_dir()):
            option, folder = f"--{name.removesuffix('_path')}", path.absolute().parent
            wrong = "is a folder; name a file in it" if path.is_dir() else f"can't be written: {folder} is no folder"
            raise ValueError(f"{option} {path} {wrong}")


def target_of(options: Options, url: str, model: str | None, key: str) -> Target:
    """The server at ``url``, asked with ``key`` if it isn't empty; of models its first, where none is named.

    Raises:
        ValueError: it can't be reached, or the fields to send are wrong.
    """
    try:
        extra = json.loads(options["extra_body"])
    except ValueError as error:
        raise ValueError(f"extra-body is no JSON: {error}") from None
    if not isinstance(extra, dict):
        raise ValueError("extra-body must be a JSON object")
    fixed = [name for name in ("stream", "stream_options") if name in extra]
    if fixed:
        raise ValueError(f"extra-body sets {fixed[0]}; latencies are measured on streams that end with their usage")
    if options["ignore_eos"]:
        extra = {"ignore_eos": True} | extra
    target = Target(url, model or "", key, extra, options["timeout"])
    if not model:
        target = replace(target, model=find_model(target))
    return target


def asked(options: Options) -> dict[str, Any]:
    """What was asked for, to be kept with what came of it: the bounds in one place, no key."""
    left_out = {"named", *(key for key in options if key.endswith("_key"))}
    found = {key: value for key, value in options.items() if value not in (None, "", ()) and key not in left_out}
    bounds = [*found.pop("goodput", ()), *found.pop("terms", ())]
    found |= {"goodput": " ".join(bounds)} if bounds else {}
    for key, value in found.items():
        if isinstance(value, Path) or value == float("inf"):  # JSON knows neither
            found[key] = str(value)
    return found
