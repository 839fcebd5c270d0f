"""What each of several devices holds that share one model, dealt out as ``backends/cuda/tensor_parallel`` does it."""

from __future__ import annotations

import math
from dataclasses import replace

from ..backends.cuda.tensor_parallel.shares import Shares
from ..core.memory import LayerCache
from ..models.config import ModelConfig
from ..models.ggml_types import BY_NAME
from .shape import ModelShape, Part, Weights, sum_weights

#: Devices as in ``devices.FORMS`` that can share a model.
SHARING = ("any", "cuda", "cpu-exact")


def share_of(model: ModelShape, size: int) -> ModelShape:
    """What the first of ``size`` devices holds, which is as much as any does.

    Matrices, the vocabulary and the cache's heads are split; norms, routers, a latent that stands for all heads, and
    key-value heads that are fewer than the devices lie whole where they are needed.

    Raises:
        ValueError: the heads can't be shared so; the message has the numbers of devices that work.
    """
    if size == 1:
        return model
    if model.config is None:
        return _typed_share(model, size)
    unit = math.lcm(*(BY_NAME[part.kind].block for part in model.weights.parts if part.kind in BY_NAME))
    shares = Shares.of_config(model.config, size, (unit, unit), model.name)
    part = shares.config_of(0)
    heads = 1.0 if model.latent else part.num_kv_heads / model.config.num_kv_heads
    notes = (*model.notes, "the latent of MLA lies whole on every device") if model.latent else model.notes
    return replace(model, layers=_cache(model, heads), weights=_weights(model, shares, part), config=part, notes=notes)


def _typed_share(model: ModelShape, size: int) -> ModelShape:
    """Of numbers alone: the key-value heads are known, the attention heads are not."""
    count = model.layers[0].elements // (2 * (model.head_dim or 1))
    if count % size and size % count:
        raise ValueError(
            f"tensor_parallel is {size}, and {count} key-value heads can neither be shared nor repeated evenly then"
        )
    layers = _cache(model, max(count // size, 1) / count)
    return replace(model, layers=layers, weights=_split_evenly(model.weights, size))


def _cache(model: ModelShape, part: float) -> tuple[LayerCache, ...]:
    return tuple(replace(layer, elements=round(layer.elements * part)) for layer in model.layers)


def _weights(model: ModelShape, shares: Shares, part: ModelConfig) -> Weights:
    known, whole = model.weights, shares.config
    if not known.parts:
        return _split_evenly(known, shares.size)
    matrices = sum(one.elements for one in known.parts if one.role == "matrix" and not one.expert)
    matrix = _matrix_share(whole, part, matrices)
    rows = shares.vocab_rows / whole.vocab_size
    shrunk = {"matrix": matrix, "table": rows, "tied": rows, "vector": 1.0, "router": 1.0}
    parts = (_scaled(one, 1 / shares.size if one.expert else shrunk[one.role]) for one in known.parts)
    return sum_weights(parts, known.num_experts, known.experts_used, known.source)


def _matrix_share(whole: ModelConfig, part: ModelConfig, matrices: int) -> float:
    """The part of all ``matrices`` (elements) that a device holds: attention by heads, the rest by the feed-forward."""
    layers = whole.num_layers * whole.hidden_size * whole.head_dim
    queries, keys = 2 * layers * whole.num_heads, 2 * layers * whole.num_kv_heads
    rest = max(0, matrices - queries - keys) * part.intermediate_size / whole.intermediate_size
    held = queries * part.num_heads / whole.num_heads + keys * part.num_kv_heads / whole.num_kv_heads + rest
    return min(1.0, held / max(1, matrices, queries + keys))


def _split_evenly(weights: Weights, size: int) -> Weights:
    """Weights of which only the sums are known."""
    return replace(
        weights,
        total_bytes=-(-weights.total_bytes // size),
        active_bytes=-(-weights.active_bytes // size),
        expert_bytes=-(-weights.expert_bytes // size),
        parameters=None if weights.parameters is None else -(-weights.parameters // size),
        active_parameters=None if weights.active_parameters is None else -(-weights.active_parameters // size),
    )


def _scaled(one: Part, share: float) -> Part:
    return replace(one, elements=round(one.elements * share), nbytes=round(one.nbytes * share))
