"""A model's shape out of GGUF metadata and its table of tensors, for any decoder."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

from ..core.memory import LayerCache
from ..models.config import MAX_LAYERS, ModelConfig, MoeConfig
from ..models.gguf import GgufFile, GgufTensor
from ..models.settings import Settings
from .architectures import PATTERNS
from .shape import ModelShape, Part, Weights, sum_weights, window_note

#: Tensors of all experts, or of one.
_EXPERT = re.compile(r"ffn_\w+(_exps|\.\d+)\.")
_LATENT = "attention.kv_lora_rank"
_ROUTER = ".ffn_gate_inp."


def shape_from_gguf(files: Sequence[GgufFile]) -> ModelShape:
    """The shape of an opened model; ``files[0]`` holds the metadata.

    Raises:
        CheckpointError: a size is missing or out of range.
    """
    metadata = Settings(files[0].metadata, str(files[0].path))
    keys = Settings(metadata.values, metadata.source, metadata.text("general.architecture") + ".")
    tensors = {tensor.name: tensor for file in files for tensor in file.tensors.values()}
    layers = _layers(keys)
    config = _decoder(keys, tensors, len(layers))
    return ModelShape(
        name=metadata.text("general.name", files[0].path.stem),
        layers=layers,
        weights=_weights(keys, tensors.values(), tied="output.weight" not in tensors),
        config=config,
        quantization=_label(tensors.values()),
        max_position=keys.integer("context_length", 4096),
        notes=_notes(layers),
        head_dim=layers[0].elements if keys.has(_LATENT) else config.head_dim,
        latent=keys.has(_LATENT),
    )


def _per_layer(keys: Settings, key: str, num_layers: int, default: int) -> list[int]:
    """A value per layer: one number for all, or a list of them."""
    value: Any = keys.get(key)
    if value is None:
        return [default] * num_layers
    if isinstance(value, list):
        if len(value) != num_layers or not all(isinstance(item, int) and item >= 0 for item in value):
            raise keys.fail(key, f"{num_layers} whole numbers, one per layer")
        return [int(item) for item in value]
    return [keys.integer(key, least=0)] * num_layers


def _layers(keys: Settings) -> tuple[LayerCache, ...]:
    num_layers = keys.integer("block_count", most=MAX_LAYERS)
    heads = max(_per_layer(keys, "attention.head_count", num_layers, 1))
    width = keys.integer("attention.key_length", max(1, keys.integer("embedding_length") // max(1, heads)))
    kv_heads = _per_layer(keys, "attention.head_count_kv", num_layers, heads)
    each = width + keys.integer("attention.value_length", width)
    if keys.has(_LATENT):
        latent = keys.integer(_LATENT) + keys.integer("rope.dimension_count", 64)
        return (LayerCache(latent),) * num_layers
    state = _state_bytes(keys)
    interval = keys.integer("full_attention_interval", 4 if keys.prefix == "qwen3next." else 0, least=0)
    window, slides = _windows(keys, num_layers)
    found = []
    for layer, count in enumerate(kv_heads):
        recurrent = not count or (interval and (layer + 1) % interval)
        if recurrent:
            found.append(LayerCache(0, None, state))
        else:
            both = state if keys.prefix == "falcon-h1." else 0
            found.append(LayerCache(count * each, window if slides[layer] else None, both))
    return tuple(found)


def _windows(keys: Settings, num_layers: int) -> tuple[int | None, list[bool]]:
    window = keys.integer("attention.sliding_window", 0, least=0) or None
    given: Any = keys.get("attention.sliding_window_pattern")
    architecture = keys.prefix.removesuffix(".")
    if window is None or architecture.startswith("qwen"):
        return None, [False] * num_layers
    if isinstance(given, list) and len(given) == num_layers:
        return window, [bool(item) for item in given]
    every = given if isinstance(given, int) and given > 0 else PATTERNS.get(architecture)
    return window, [not every or (layer + 1) % every != 0 for layer in range(num_layers)]


def _state_bytes(keys: Settings) -> int:
    """The float32 state of a recurrent layer as llama.cpp keeps it: convolution and state space, or a convolution."""
    if keys.has("shortconv.l_cache"):
        return 4 * keys.integer("embedding_length") * (keys.integer("shortconv.l_cache") - 1)
    inner, state = keys.integer("ssm.inner_size", 0, least=0), keys.integer("ssm.state_size", 0, least=0)
    if not inner:
        return 0
    convolved = inner + 2 * keys.integer("ssm.group_count", 0, least=0) * state
    return 4 * (inner * state + (keys.integer("ssm.conv_kernel", 1) - 1) * convolved)


def _decoder(keys: Settings, tensors: dict[str, GgufTensor], num_layers: int) -> ModelConfig:
    hidden = keys.integer("embedding_length")
    heads = max(_per_layer(keys, "attention.head_count", num_layers, 1))
    embedding = tensors.get("token_embd.weight")
    forward = keys.integer("expert_feed_forward_length", 4 * hidden)
    inner = max(_per_layer(keys, "feed_forward_length", num_layers, forward)) or forward
    return ModelConfig(
        architecture=keys.prefix.removesuffix("."),
        vocab_size=embedding.shape[0] if embedding else 32000,
        hidden_size=hidden,
        intermediate_size=inner,
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=max(_per_layer(keys, "attention.head_count_kv", num_layers, heads)),
        head_dim=keys.integer("attention.key_length", max(1, hidden // max(1, heads))),
        max_position=keys.integer("context_length", 4096),
        rms_norm_eps=1e-6,
        tie_embeddings="output.weight" not in tensors,
        moe=_moe(keys, inner),
    )


def _moe(keys: Settings, inner: int) -> MoeConfig | None:
    """As far as work memory depends on it; ``inner``: the width of a plain feed-forward part."""
    count, used = (keys.integer(key, 0, least=0) for key in ("expert_count", "expert_used_count"))
    return MoeConfig(count, used, keys.integer("expert_feed_forward_length", inner)) if count and used else None


def _weights(keys: Settings, tensors: Iterable[GgufTensor], tied: bool) -> Weights:
    count, used = (keys.integer(key, 0, least=0) for key in ("expert_count", "expert_used_count"))
    parts = (
        Part(t.type.name, prod(t.shape), t.nbytes, _role(t.name, len(t.shape), tied), bool(_EXPERT.search(t.name)))
        for t in tensors
    )
    return sum_weights(parts, count, used, "the file's table of tensors")


def _role(name: str, dimensions: int, tied: bool) -> str:
    if name == "token_embd.weight":
        return "tied" if tied else "table"
    if name == "per_layer_token_embd.weight":
        return "table"
    if _ROUTER in name and dimensions > 1:
        return "router"
    return "vector" if dimensions == 1 else "matrix"


def _label(tensors: Iterable[GgufTensor]) -> str:
    sizes: Counter[str] = Counter()
    for tensor in tensors:
        sizes[tensor.type.name] += tensor.nbytes
    return " + ".join(kind for kind, size in sizes.most_common(3) if size * 10 >= sizes.total())


def _notes(layers: Sequence[LayerCache]) -> tuple[str, ...]:
    slides = sum(layer.window is not None for layer in layers)
    return (window_note(slides, len(layers)),) if slides else ()
