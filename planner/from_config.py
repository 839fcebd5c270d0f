"""A model's shape out of its ``config.json``, for any decoder, whether Bireme runs it or not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..core.memory import LayerCache
from ..models import gemma
from ..models.config import MAX_LAYERS, ModelConfig, MoeConfig
from ..models.hf_config import text_part
from ..models.rope_config import hf_rope
from ..models.settings import Settings
from ..models.weight import CheckpointError
from .architectures import TIED, layer_kinds, state_bytes, window
from .shape import ModelShape, Part, Weights, sum_weights, window_note


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of one layer; a dense model has none."""

    count: int = 0
    used: int = 0
    layers: int = 0  # that have them
    width: int = 0  # of one expert's feed-forward
    shared_width: int = 0


def shape_from_config(config: Mapping[str, Any], source: str, weights: Weights | None = None) -> ModelShape:
    """The shape; without ``weights`` (of the files) their size is reckoned from the layers and the named dtype.

    Raises:
        CheckpointError: a size is missing or out of range, or a kind of layer is not known.
    """
    inner = text_part(config)[0]
    inner.setdefault("model_type", str(config.get("model_type", "unknown")))
    keys = _completed(Settings(inner, source))
    num_layers = keys.integer("num_hidden_layers", most=MAX_LAYERS)
    try:
        kinds, tokens = layer_kinds(keys.values, num_layers), window(keys.values)
    except ValueError as error:
        raise CheckpointError(f"{source}: {error}") from None
    if tokens is None and "sliding" in kinds:  # a list of layer kinds is a switch of its own
        tokens = keys.integer("sliding_window")
    elements, state = _elements(keys), state_bytes(inner)
    layers = tuple(_layer(kind, elements, tokens, state) for kind in kinds)
    experts = _experts(keys, num_layers)
    moe = MoeConfig(experts.count, experts.used, experts.width) if experts.count else None
    model = replace(_decoder(keys, num_layers), moe=moe)
    found = weights or _reckoned(keys, model, experts)
    return ModelShape(
        name=str(config.get("_name_or_path") or source),
        layers=layers,
        weights=found,
        config=model,
        quantization=_quantization(keys),
        max_position=_context(keys, model.head_dim),
        notes=_notes(keys, kinds, state),
        head_dim=elements if keys.has("kv_lora_rank") else model.head_dim,
        latent=keys.has("kv_lora_rank"),
    )


def _completed(keys: Settings) -> Settings:
    """With what the model's code knows and its configuration leaves out."""
    return gemma.completed(keys) if keys.text("model_type") in gemma.MODEL_TYPES else keys


def _context(keys: Settings, head_dim: int) -> int | None:
    """The longest context, the scaling of the rotary embedding taken in as the engine does; None: not said."""
    if not keys.has("max_position_embeddings"):
        return None
    if keys.text("model_type") not in gemma.MODEL_TYPES:  # whose own has its scaling in it already
        try:
            return hf_rope(keys, head_dim)[1]
        except CheckpointError:  # a kind that no loader here computes
            pass
    return keys.integer("max_position_embeddings")


def _layer(kind: str, elements: int, tokens: int | None, state: int) -> LayerCache:
    if kind == "recurrent":
        return LayerCache(0, None, state)
    return LayerCache(elements, tokens if kind == "sliding" else None, state if kind == "both" else 0)


def _elements(keys: Settings) -> int:
    """K and V elements of one token in one layer."""
    if keys.has("kv_lora_rank"):  # MLA (arXiv:2405.04434): one latent and the rotated part of K serve all heads
        return keys.integer("kv_lora_rank") + keys.integer("qk_rope_head_dim")
    heads = keys.integer("num_attention_heads")
    kv_heads = 1 if keys.get("multi_query") is True else keys.integer("num_key_value_heads", heads)
    return 2 * kv_heads * _head_dim(keys, heads)


def _head_dim(keys: Settings, heads: int) -> int:
    return keys.integer("head_dim", max(1, keys.integer("hidden_size") // heads))


def _decoder(keys: Settings, num_layers: int) -> ModelConfig:
    heads = keys.integer("num_attention_heads")
    hidden = keys.integer("hidden_size")
    return ModelConfig(
        architecture=keys.text("model_type"),
        vocab_size=keys.integer("vocab_size", 32000),
        hidden_size=hidden,
        intermediate_size=keys.integer("intermediate_size", keys.integer("moe_intermediate_size", 4 * hidden)),
        num_layers=num_layers,
        num_heads=heads,
        num_kv_heads=keys.integer("num_key_value_heads", heads),
        head_dim=_head_dim(keys, heads),
        max_position=keys.integer("max_position_embeddings", 4096),
        rms_norm_eps=1e-6,
        tie_embeddings=keys.boolean("tie_word_embeddings", keys.text("model_type") in TIED),
    )


def _experts(keys: Settings, num_layers: int) -> Experts:
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((keys.integer(name, least=0) for name in names if keys.has(name)), 0)
    if not count:
        return Experts()
    used = next((keys.integer(n) for n in ("num_experts_per_tok", "num_experts_per_token") if keys.has(n)), 1)
    width = keys.integer("moe_intermediate_size", keys.integer("intermediate_size", 1))
    shared = keys.integer("n_shared_experts", 0, least=0) * width
    shared = keys.integer("shared_expert_intermediate_size", shared, least=0)
    dense = set(range(keys.integer("first_k_dense_replace", 0, least=0))).union(keys.get("mlp_only_layers") or ())
    every = keys.integer("decoder_sparse_step", 1)
    layers = sum((layer + 1) % every == 0 and layer not in dense for layer in range(num_layers))
    return Experts(count, min(used, count), layers, width, shared)


def _reckoned(keys: Settings, model: ModelConfig, experts: Experts) -> Weights:
    """Parameters by the usual layers, times the bytes of the dtype or quantisation named."""
    hidden, heads = model.hidden_size, model.num_heads
    attention = hidden * model.head_dim * 2 * (heads + model.num_kv_heads)
    if keys.has("kv_lora_rank"):
        attention = _mla_parameters(keys, hidden, heads)
    dense = 3 * hidden * model.intermediate_size * (model.num_layers - experts.layers)
    shared = 3 * hidden * experts.shared_width * experts.layers
    routed = 3 * hidden * experts.width * experts.layers * experts.count
    table = model.vocab_size * hidden
    bits = round(8 * _bytes_per_parameter(keys), 3)
    kind = _kind(keys, bits)

    def part(elements: int, role: str = "matrix", expert: bool = False) -> Part:
        return Part(kind, elements, round(elements * bits / 8), role, expert, int(bits) if kind == "codes" else 0)

    parts = [part(attention * model.num_layers + dense + shared), part(routed, expert=True)]
    parts.append(part(hidden * experts.count * experts.layers, "router"))
    parts += [part(table, "tied")] if model.tie_embeddings else [part(table), part(table, "table")]
    source = f"reckoned from config.json at {bits:g} bits a parameter"
    return sum_weights([one for one in parts if one.elements], experts.count, experts.used, source)


def _mla_parameters(keys: Settings, hidden: int, heads: int) -> int:
    rank, rope, nope = (keys.integer(n) for n in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim"))
    value = keys.integer("v_head_dim", nope)
    query_rank = keys.integer("q_lora_rank", 0, least=0)
    queries = heads * (nope + rope)
    query = hidden * query_rank + query_rank * queries if query_rank else hidden * queries
    return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def _bytes_per_parameter(keys: Settings) -> float:
    given = keys.get("quantization") or keys.get("quantization_config")
    if isinstance(given, Mapping):
        bits = given.get("bits")
        if isinstance(bits, int):
            group = given.get("group_size")
            return (bits + (32 / group if isinstance(group, int) and group > 0 else 0)) / 8
        if "mxfp4" in str(given.get("quant_method")):
            return 4.25 / 8
        if "fp8" in str(given.get("quant_method")):
            return 1.0
    return 4.0 if "32" in str(keys.get("torch_dtype") or keys.get("dtype") or "") else 2.0


def _kind(keys: Settings, bits: float) -> str:
    given = keys.get("quantization") or keys.get("quantization_config")
    method = str(given.get("quant_method")) if isinstance(given, Mapping) else ""
    named = next((kind for word, kind in (("fp8", "F8_E4M3"), ("mxfp4", "MXFP4")) if word in method), None)
    return named or {16.0: "BF16", 32.0: "F32"}.get(bits, "codes")


def _quantization(keys: Settings) -> str:
    given = keys.get("quantization") or keys.get("quantization_config")
    if isinstance(given, Mapping):
        return f"{given.get('quant_method') or 'MLX'} {given.get('bits', '')}".strip()
    return str(keys.get("torch_dtype") or keys.get("dtype") or "16 bits assumed")


def _notes(keys: Settings, kinds: tuple[str, ...], state: int) -> tuple[str, ...]:
    notes = []
    if keys.has("kv_lora_rank"):
        notes.append("MLA: the cache holds one latent per token; an engine that stores full K and V needs far more")
    if "sliding" in kinds:
        notes.append(window_note(kinds.count("sliding"), len(kinds)))
    if {"recurrent", "both"} & set(kinds) and not state:
        notes.append("the size of the recurrent layers' state is not in config.json and is not counted")
    return tuple(notes)
