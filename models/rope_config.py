"""RopeConfig out of a Hugging Face configuration, in each of its spellings.

Old files have ``rope_theta`` beside ``rope_scaling`` (kind under ``type`` or ``rope_type``); new ones have both in
``rope_parameters``, which may hold one object for each kind of layer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from .config import RopeConfig
from .settings import Settings
from .weight import CheckpointError

KINDS = ("default", "linear", "llama3", "yarn")
LAYER_KINDS = ("full_attention", "sliding_attention")


def hf_rope(config: Settings, head_dim: int) -> tuple[RopeConfig, int]:
    """The rotary embedding, and the context length with its scaling taken in.

    Raises:
        CheckpointError: a kind that is not supported, or a parameter missing or out of range; names the key.
    """
    where = next((key for key in ("rope_parameters", "rope_scaling") if config.has(key)), "rope_scaling")
    given = config.get(where) or {}
    if not isinstance(given, dict):
        raise config.fail(where, "an object")
    values = Settings({f"{where}.{key}": value for key, value in given.items()}, config.source, f"{where}.")
    kind = values.text("rope_type", values.text("type", "default"))
    if kind not in KINDS or any(isinstance(value, dict) for value in given.values()):
        raise CheckpointError(
            f"{config.source}: {where} of kind {kind!r} is not supported: {given!r}; supported: {', '.join(KINDS)}"
        )
    context = config.integer("max_position_embeddings")
    original = values.integer(
        "original_max_position_embeddings", config.integer("original_max_position_embeddings", context)
    )
    factor = 1.0 if kind == "default" else values.number("factor")
    rope = RopeConfig(
        theta=values.number("rope_theta", config.number("rope_theta", 10000.0)),
        kind=kind,
        factor=factor,
        original_max_position=original if kind in ("llama3", "yarn") else None,
        low_freq_factor=values.number("low_freq_factor") if kind == "llama3" else 1.0,
        high_freq_factor=values.number("high_freq_factor") if kind == "llama3" else 4.0,
        beta_fast=values.number("beta_fast", 32.0),
        beta_slow=values.number("beta_slow", 1.0),
        attention_factor=_magnitude(values, factor) if kind == "yarn" else None,
        rotary_dim=_rotary_dim(values, config, head_dim),
    )
    if kind == "llama3" and rope.high_freq_factor <= rope.low_freq_factor:
        raise values.fail("high_freq_factor", f"a number above low_freq_factor, {rope.low_freq_factor:g}")
    if kind == "yarn" and not values.boolean("truncate", True):
        raise values.fail("truncate", "true (the other form is not supported)")
    if kind == "yarn" or (kind == "linear" and values.has("original_max_position_embeddings")):
        return rope, max(context, int(original * factor))
    return rope, int(context * factor) if kind == "linear" else context


def hf_ropes_by_kind(config: Settings, head_dim: int, local_theta: float) -> tuple[RopeConfig, RopeConfig]:
    """Of the layers that see everything, and of those with a window: two objects in ``rope_parameters``, or
    ``rope_theta`` with ``rope_scaling`` beside ``rope_local_base_freq``, which nothing scales.

    Args:
        local_theta: of the layers with a window, where nothing is said of it; the others' default is a million.
    """
    given = config.get("rope_parameters")
    if given is None:
        scaling = config.get("rope_scaling") or {}
        if not isinstance(scaling, dict):
            raise config.fail("rope_scaling", "an object")
        given = {
            "full_attention": {"rope_theta": config.get("rope_theta"), **scaling},
            "sliding_attention": {"rope_theta": config.get("rope_local_base_freq")},
        }
    if not isinstance(given, dict) or not all(key in LAYER_KINDS and isinstance(given[key], dict) for key in given):
        raise config.fail("rope_parameters", f"an object with one for {' and one for '.join(LAYER_KINDS)}")
    whole, local = (given.get(kind, {}) for kind in LAYER_KINDS)
    return _one_kind(config, whole, head_dim, 1e6), _one_kind(config, local, head_dim, local_theta)


def _one_kind(config: Settings, given: dict[str, Any], head_dim: int, theta: float) -> RopeConfig:
    values = {key: value for key, value in config.values.items() if not key.startswith("rope_")}
    parameters = given if given.get("rope_theta") is not None else given | {"rope_theta": theta}
    return hf_rope(replace(config, values={**values, "rope_parameters": parameters}), head_dim)[0]


def _magnitude(values: Settings, factor: float) -> float | None:
    """yarn's scale of cos and sin, where the file says more than the factor does."""
    if values.has("attention_factor"):
        return values.number("attention_factor")
    over, under = values.number("mscale", 0.0, above=-1.0), values.number("mscale_all_dim", 0.0, above=-1.0)
    if not over or not under or factor <= 1:
        return None
    return (0.1 * over * math.log(factor) + 1.0) / (0.1 * under * math.log(factor) + 1.0)


def _rotary_dim(values: Settings, config: Settings, head_dim: int) -> int | None:
    """Dims rotated; None for all of the head's."""
    share = values.number("partial_rotary_factor", config.number("partial_rotary_factor", 1.0))
    rotary = int(head_dim * share)
    if share > 1 or rotary % 2 or rotary == 0:
        raise CheckpointError(
            f"{config.source}: partial_rotary_factor {share:g} of heads of {head_dim} dims is no even number of dims"
        )
    return None if rotary == head_dim else rotary
