"""Tensor names: the canonical (Hugging Face) ones a decoder has, and GGUF's names for them."""

from __future__ import annotations

import re

from .config import ModelConfig

HEAD = "lm_head.weight"
EMBEDDING = "model.embed_tokens.weight"
ROPE_DIVISORS = "rope_freqs.weight"  # GGUF only; becomes part of the configuration

_GGUF_TOP = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAME = re.compile(r"(?:blk\.(?P<layer>0|[1-9]\d{0,5})\.)?(?P<part>[a-z_]+)\.(?P<kind>weight|bias)")


def canonical_from_gguf(name: str) -> str | None:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; None for a name no decoder here has."""
    match = _GGUF_NAME.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        return f"{_GGUF_TOP[part]}.{kind}" if part in _GGUF_TOP else None
    return f"model.layers.{layer}.{_GGUF_LAYER[part]}.{kind}" if part in _GGUF_LAYER else None


def gguf_from_canonical(name: str) -> str:
    """The inverse, for messages about tensors that a GGUF file lacks; unknown names come back as they are."""
    stem, _, kind = name.rpartition(".")
    for part, known in _GGUF_TOP.items():
        if stem == known:
            return f"{part}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    for part, known in _GGUF_LAYER.items():
        if match is not None and match[2] == known:
            return f"blk.{match[1]}.{part}.{kind}"
    return name


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a model of this configuration must have, with its shape; matrices are (out, in)."""
    hidden, ff = config.hidden_size, config.intermediate_size
    q, kv = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden), "model.norm.weight": (hidden,)}
    if not config.tie_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    layer: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (hidden,),
        "post_attention_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (q, hidden),
        "self_attn.k_proj.weight": (kv, hidden),
        "self_attn.v_proj.weight": (kv, hidden),
        "self_attn.o_proj.weight": (hidden, q),
        "mlp.gate_proj.weight": (ff, hidden),
        "mlp.up_proj.weight": (ff, hidden),
        "mlp.down_proj.weight": (hidden, ff),
    }
    if config.attention_bias:
        layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    for index in range(config.num_layers):
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in layer.items()}
    return shapes


def optional_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors that are applied where the files have them: the projections' biases."""
    return {
        name.removesuffix("weight") + "bias": shape[:1]
        for name, shape in expected_shapes(config).items()
        if name.endswith("_proj.weight")
    }


def canonical_from_hf(name: str) -> str:
    """A safetensors name without the wrappers that models with vision put around their language model."""
    for prefix in ("language_model.", "model.language_model.", "model.text_model."):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
    if name.startswith(("layers.", "embed_tokens.", "norm.")):  # saved without the head's class around it
        return f"model.{name}"
    return name
