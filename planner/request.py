"""From what was asked, as people write it, to a plan."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.config import EngineConfig
from ..core.memory import SCALED_KV, LayerCache
from ..models import gemma, gguf_config, hf_config
from ..models.config import MAX_LAYERS
from ..server.sizes import parse_size
from .devices import FORMS, held_on, work_bytes
from .plan import Plan
from .shape import ModelShape, Weights
from .tensor_parallel import SHARING, share_of

#: Names, in either format, of what Bireme runs.
_RUNS = frozenset((*hf_config.ARCHITECTURES, *gguf_config.ARCHITECTURES, *gemma.MODEL_TYPES))
#: A memory below this, without a unit, is one that was left out.
_LEAST_MEMORY = 1 << 20


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """Sizes are text such as ``16GB``; None: what the model and the device give."""

    concurrency: int = 20
    context: int = 4096
    kv_cache_dtype: str | None = None
    device: str = "any"
    memory: str | None = None
    weights: str | None = None
    buffers: str | None = None
    max_num_batched_tokens: int = EngineConfig().max_num_batched_tokens
    tensor_parallel: int = 1  # devices that share the model


def typed_shape(
    layers: int | None, kv_heads: int | None, head_dim: int | None, window: int | None, global_every: int | None
) -> ModelShape:
    """A shape of numbers alone.

    Raises:
        ValueError: one is missing, there are more layers than any model has, or a pattern has no window.
    """
    for name, value in (("--layers", layers), ("--kv-heads", kv_heads), ("--head-dim", head_dim)):
        if value is None:
            raise ValueError(f"{name} is missing: without a model --layers, --kv-heads and --head-dim are all needed")
    assert layers and kv_heads and head_dim
    if layers > MAX_LAYERS:
        raise ValueError(f"--layers is {layers}; it must be {MAX_LAYERS} at most")
    if global_every and window is None:
        raise ValueError(f"--global-every is {global_every} and no layer slides: give the others' --window too")
    kept = tuple(
        LayerCache(2 * kv_heads * head_dim, None if global_every and (i + 1) % global_every == 0 else window)
        for i in range(layers)
    )
    return ModelShape(f"{layers} layers, {kv_heads} KV heads of {head_dim}", kept, Weights(0, 0), head_dim=head_dim)


def make_plan(shape: ModelShape, asked: PlanRequest) -> Plan:
    """The plan.

    Raises:
        ValueError: an unknown device or type of the cache, a size that is none, a context beyond the model's, devices
            that can't share the model.
    """
    if asked.device not in FORMS:
        raise ValueError(f"device is {asked.device!r}; it must be one of {', '.join(FORMS)}")
    dtype = kv_type(asked.kv_cache_dtype, asked.device)
    if shape.max_position is not None and asked.context > shape.max_position:
        raise ValueError(f"context is {asked.context} tokens; the model was made for {shape.max_position} at most")
    if asked.tensor_parallel > 1 and asked.device not in SHARING:
        raise ValueError(f"tensor-parallel: {asked.device} shares no model; {', '.join(SHARING)} do")
    model = held_on(shape, asked.device)
    if asked.weights is not None:
        model = replace(model, weights=_typed_weights(model.weights, _size("weights", asked.weights)))
    model, whole = share_of(_noted(model, asked.device), asked.tensor_parallel), model
    engine = EngineConfig(
        max_num_seqs=asked.concurrency,
        max_num_batched_tokens=max(asked.max_num_batched_tokens, asked.concurrency),
        max_model_len=asked.context,
        kv_cache_dtype=dtype if dtype in SCALED_KV else "auto",
    )
    buffers = work_bytes(model, asked.device, engine)
    return Plan(
        model=model,
        whole=whole,
        device=asked.device,
        devices=asked.tensor_parallel,
        concurrency=asked.concurrency,
        context=asked.context,
        kv_cache_dtype=dtype,
        weight_bytes=model.weights.total_bytes,
        buffer_bytes=buffers if asked.buffers is None else _size("buffers", asked.buffers),
        memory_bytes=None if asked.memory is None else _size("memory", asked.memory),
    )


def kv_type(asked: str | None, device: str) -> str:
    """What ``device`` keeps keys and values as; its own type where nothing, or "auto", is asked for.

    Raises:
        ValueError: it can't keep that; the message says what it can.
    """
    form, name = FORMS[device], (asked or "auto").lower()
    if name == "auto":
        return form.kv
    if name not in form.kv_types:
        whose = "it must be" if device == "any" else f"on {device} it must be"
        raise ValueError(f"kv-cache-dtype is {asked!r}; {whose} auto, {', '.join(form.kv_types)}")
    return name


def _noted(model: ModelShape, device: str) -> ModelShape:
    """With a word where none of Bireme's devices would run it."""
    architecture = model.config.architecture if model.config else ""
    if device == "any" or not architecture or architecture in _RUNS:
        return model
    return replace(model, notes=(*model.notes, f"Bireme has no {architecture} yet: this is how {device} would hold it"))


def budget(text: str) -> int:
    """A memory that somebody typed, in bytes.

    Raises:
        ValueError: no size, or one that lacks its unit.
    """
    size = _size("memory", text)
    if size < _LEAST_MEMORY and text.strip().isdecimal():
        raise ValueError(f"memory: {text!r} is {size:,} bytes; write the unit too, as in 16GB or 24GiB")
    return size


def _typed_weights(known: Weights, size: int) -> Weights:
    """``known`` in the proportions that it has, ``size`` bytes in all."""
    scale = size / known.total_bytes if known.total_bytes else 1.0
    return replace(
        known,
        total_bytes=size,
        active_bytes=round(known.active_bytes * scale) if known.active_bytes else size,
        expert_bytes=round(known.expert_bytes * scale),
        source="typed in",
        parts=(),
    )


def _size(name: str, text: str) -> int:
    try:
        return parse_size(text)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
