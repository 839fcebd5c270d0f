"""ModelConfig out of GGUF metadata."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

from . import gemma
from .config import MAX_LAYERS, ModelConfig, MoeConfig, RopeConfig
from .names import most_experts
from .settings import Settings
from .weight import CheckpointError

ARCHITECTURES = ("llama", "qwen2", "qwen3", "qwen3moe", "gemma3")  # Mistral's and Mixtral's files say "llama"
_WITH_EXPERTS = ("llama", "qwen3moe")
_CANONICAL = {"qwen3moe": "qwen3_moe"}
_ROPE_KINDS = ("none", "linear", "yarn")


def gguf_architecture(metadata: Settings) -> str:
    """The file's ``general.architecture``, if it is one this program runs."""
    architecture = metadata.text("general.architecture")
    if architecture in ARCHITECTURES:
        return architecture
    raise CheckpointError(
        f"{metadata.source}: unsupported architecture {architecture}; supported: {', '.join(ARCHITECTURES)}"
    )


def gguf_config(
    metadata: Settings,
    vocab_size: int,
    tied: bool,
    attention_bias: bool,
    divisors: NDArray[np.float32] | None,
    routed_layers: Collection[int] = (),
) -> ModelConfig:
    """The configuration of an opened file.

    Args:
        vocab_size: rows of the embedding; ``tied``: whether the file lacks an output matrix;
        attention_bias: whether its q, k and v projections have biases;
        divisors: the values of ``rope_freqs.weight``, float32 [rotary dims / 2], if there is one;
        routed_layers: those that have a router.
    """
    architecture = gguf_architecture(metadata)
    keys = Settings(metadata.values, metadata.source, f"{architecture}.")
    hidden, heads = keys.integer("embedding_length"), keys.integer("attention.head_count")
    kv_heads = keys.integer("attention.head_count_kv", heads)
    layers = keys.integer("block_count", most=MAX_LAYERS)
    head_dim = _head_dim(keys, hidden, heads)
    if heads % kv_heads:
        raise keys.fail("attention.head_count_kv", f"a divisor of the {heads} heads")
    window = keys.integer("attention.sliding_window", 0, least=0) if architecture == "llama" else 0
    model = ModelConfig(
        architecture=_CANONICAL.get(architecture, architecture),
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=keys.integer("feed_forward_length"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=keys.integer("context_length"),
        rms_norm_eps=keys.number("attention.layer_norm_rms_epsilon"),
        rope=_rope(keys, architecture, head_dim, divisors),
        tie_embeddings=tied,
        attention_bias=attention_bias,
        qk_norm=architecture in ("qwen3", "qwen3moe"),
        windows=(window,) * layers if window else (),
        moe=_moe(keys, architecture, layers, routed_layers),
    )
    return gemma.gguf_gemma(keys, model) if architecture == gemma.ARCHITECTURE else model


def _moe(keys: Settings, architecture: str, layers: int, routed_layers: Collection[int]) -> MoeConfig | None:
    """The experts, if there are any: in the layers that have a router, their shares always divided by their sum, as
    llama.cpp does for these architectures."""
    count = keys.integer("expert_count", 0, least=0, most=most_experts(layers))
    if not count:
        return None
    if architecture not in _WITH_EXPERTS:
        raise keys.fail("expert_count", f"0 in a {architecture} file")
    for key, usual in (("expert_gating_func", 1), ("expert_shared_count", 0), ("expert_group_count", 0)):
        if keys.integer(key, usual, least=0) not in (usual, 0):
            raise keys.fail(key, f"{usual}, as {architecture} files have it")
    if keys.number("expert_weights_scale", 1.0, above=-1.0) not in (0.0, 1.0):
        raise keys.fail("expert_weights_scale", f"1, as {architecture} files have it")
    return MoeConfig(
        num_experts=count,
        top_k=keys.integer("expert_used_count", most=count),
        intermediate_size=keys.integer("expert_feed_forward_length", keys.integer("feed_forward_length")),
        normalise=keys.boolean("expert_weights_norm", True),
        dense_layers=frozenset(range(layers)).difference(routed_layers),
    )


def _head_dim(keys: Settings, hidden: int, heads: int) -> int:
    head_dim = keys.integer("attention.key_length", hidden // heads)
    if not keys.has("attention.key_length") and hidden % heads:
        raise keys.fail("attention.head_count", f"a divisor of embedding_length {hidden}, or a key_length beside it")
    if head_dim % 2:
        raise CheckpointError(f"{keys.source}: heads of {head_dim} dims; rotary embedding needs an even number")
    if keys.integer("attention.value_length", head_dim) != head_dim:
        raise keys.fail("attention.value_length", f"{head_dim}, the key length")
    return head_dim


def _rope(keys: Settings, architecture: str, head_dim: int, divisors: NDArray[np.float32] | None) -> RopeConfig:
    rotary = keys.integer("rope.dimension_count", head_dim)
    if rotary > head_dim or rotary % 2 or (architecture == "llama" and rotary != head_dim):
        raise keys.fail("rope.dimension_count", f"the head's {head_dim} dims")
    kind = keys.text("rope.scaling.type", "linear" if keys.has("rope.scale_linear") else "none")
    if kind not in _ROPE_KINDS:
        raise keys.fail("rope.scaling.type", f"one of {', '.join(_ROPE_KINDS)}")
    factor = keys.number("rope.scaling.factor", keys.number("rope.scale_linear", 1.0))
    original = keys.integer("rope.scaling.original_context_length", 0, least=0)
    if kind == "yarn" and not original:
        raise keys.missing("rope.scaling.original_context_length")
    magnitude = None
    if kind == "yarn" and keys.has("rope.scaling.attn_factor"):
        magnitude = keys.number("rope.scaling.attn_factor") * float(0.1 * np.log(factor) + 1.0)
    if divisors is not None and kind == "linear":  # both divide
        divisors, kind = divisors * np.float32(factor), "none"
    if divisors is not None and kind == "yarn":
        raise CheckpointError(f"{keys.source}: yarn scaling beside a rope_freqs.weight tensor is not supported")
    plain = kind == "none" or factor == 1.0
    return RopeConfig(
        theta=keys.number("rope.freq_base", 10000.0),
        kind="default" if plain else kind,
        factor=1.0 if plain else factor,
        original_max_position=original or None,
        beta_fast=keys.number("rope.scaling.yarn_beta_fast", 32.0),
        beta_slow=keys.number("rope.scaling.yarn_beta_slow", 1.0),
        attention_factor=magnitude,
        divisors=_divisors(keys, rotary, divisors),
        rotary_dim=None if rotary == head_dim else rotary,
    )


def _divisors(keys: Settings, rotary: int, divisors: NDArray[np.float32] | None) -> tuple[float, ...] | None:
    if divisors is None:
        return None
    if divisors.shape != (rotary // 2,):
        raise CheckpointError(
            f"{keys.source}: tensor rope_freqs.weight has shape {divisors.shape}, expected ({rotary // 2},)"
        )
    if not bool(np.all(np.isfinite(divisors) & (divisors > 0))):
        raise CheckpointError(f"{keys.source}: tensor rope_freqs.weight holds values that are no positive numbers")
    return tuple(float(value) for value in divisors)
