"""Tensor names: the canonical (Hugging Face) ones a decoder has, and GGUF's names for them."""

from __future__ import annotations

import re

from .config import MAX_MATRICES, ModelConfig

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
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.*.gate_proj",
    "ffn_up_exps": "mlp.experts.*.up_proj",
    "ffn_down_exps": "mlp.experts.*.down_proj",
    "ffn_gate_up_exps": "mlp.experts.*.gate_up_proj",
}
#: Gemma's files call two norms otherwise: "ffn_norm" is what stands before the feed-forward, as everywhere.
_GGUF_GEMMA = {
    "ffn_norm": "pre_feedforward_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_GGUF_NAME = re.compile(
    r"(?:blk\.(?P<layer>0|[1-9]\d{0,5})\.)?(?P<part>[a-z_]+)(?:\.(?P<expert>0|[1-9]\d{0,5}))?\.(?P<kind>weight|bias)"
)
_EXPERT = re.compile(r"\.experts\.(\d+)\.")
#: Matrices of an expert by the names that Mixtral's folders give them.
_MIXTRAL = {"w1": "gate_proj", "w2": "down_proj", "w3": "up_proj"}
_MIXTRAL_EXPERT = re.compile(r"(\.block_sparse_moe\.experts\.\d+)\.(w[123])\.")
#: What transformers 5 calls them where it saves them as it holds them.
_STACKED = re.compile(r"\.mlp\.experts\.(gate_up_proj|down_proj)$")


def canonical_from_gguf(name: str, architecture: str = "llama") -> str | None:
    """``blk.3.attn_q.weight`` -> ``model.layers.3.self_attn.q_proj.weight``; None for a name no decoder here has.

    A tensor that holds the matrices of all experts has a ``*`` in the place of the expert's number.
    """
    match = _GGUF_NAME.fullmatch(name)
    if match is None:
        return None
    layer, part, kind = match["layer"], match["part"], match["kind"]
    if layer is None:
        return f"{_GGUF_TOP[part]}.{kind}" if part in _GGUF_TOP and not match["expert"] else None
    names = _layer_names(architecture)
    if match["expert"]:  # files from before April 2024 have a tensor for each expert: "blk.3.ffn_up.7.weight"
        known = names.get(f"{part}_exps", "").replace("*", match["expert"])
    else:
        known = names.get(part, "")
    return f"model.layers.{layer}.{known}.{kind}" if known else None


def _layer_names(architecture: str) -> dict[str, str]:
    return _GGUF_LAYER | _GGUF_GEMMA if architecture == "gemma3" else _GGUF_LAYER


def gguf_from_canonical(name: str, architecture: str = "llama") -> str:
    """The inverse, for messages about tensors that a GGUF file lacks; unknown names come back as they are."""
    stem, _, kind = of_all_experts(name).rpartition(".")
    for part, known in _GGUF_TOP.items():
        if stem == known:
            return f"{part}.{kind}"
    match = re.fullmatch(r"model\.layers\.(\d+)\.(.+)", stem)
    for part, known in _layer_names(architecture).items():
        if match is not None and match[2] == known:
            return f"blk.{match[1]}.{part}.{kind}"
    return name


def expected_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor a model of this configuration must have, with its shape; matrices are (out, in)."""
    hidden = config.hidden_size
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
    }
    if config.attention_bias:
        layer |= {"self_attn.q_proj.bias": (q,), "self_attn.k_proj.bias": (kv,), "self_attn.v_proj.bias": (kv,)}
    if config.qk_norm:
        layer |= {"self_attn.q_norm.weight": (config.head_dim,), "self_attn.k_norm.weight": (config.head_dim,)}
    if config.post_norms:
        layer |= {"pre_feedforward_layernorm.weight": (hidden,), "post_feedforward_layernorm.weight": (hidden,)}
    for index in range(config.num_layers):
        every = layer | _feed_forward(config, index)
        shapes |= {f"model.layers.{index}.{name}": shape for name, shape in every.items()}
    return shapes


def _feed_forward(config: ModelConfig, layer: int) -> dict[str, tuple[int, ...]]:
    moe = config.experts(layer)
    if moe is None:
        return _gated("mlp", config.hidden_size, config.intermediate_size)
    shapes: dict[str, tuple[int, ...]] = {"mlp.gate.weight": (moe.num_experts, config.hidden_size)}
    for expert in range(moe.num_experts):
        shapes |= _gated(f"mlp.experts.{expert}", config.hidden_size, moe.intermediate_size)
    return shapes


def _gated(module: str, hidden: int, inner: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{module}.gate_proj.weight": (inner, hidden),
        f"{module}.up_proj.weight": (inner, hidden),
        f"{module}.down_proj.weight": (hidden, inner),
    }


def optional_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Tensors that are applied where the files have them: the projections' biases, but none of experts'."""
    return {
        name.removesuffix("weight") + "bias": shape[:1]
        for name, shape in expected_shapes(config).items()
        if name.endswith("_proj.weight") and expert_of(name) is None
    }


def expert_of(name: str) -> int | None:
    """Which expert's the tensor ``name`` is; None: no expert's."""
    match = _EXPERT.search(name)
    return int(match[1]) if match else None


def of_expert(name: str, expert: int) -> str:
    """The name of an expert's matrix in the tensor ``name``, which holds those of all (it has a ``*``)."""
    return name.replace("*", str(expert))


def matrices_of(name: str) -> tuple[str, ...]:
    """The names of the matrices in the tensor ``name``: two, of as many rows each, the gate's first, where it holds
    both halves of a gated layer; or just ``name``."""
    fused, apart = ".gate_up_proj.", (".gate_proj.", ".up_proj.")
    return tuple(name.replace(fused, part) for part in apart) if fused in name else (name,)


def most_experts(layers: int) -> int:
    """How many experts each of ``layers`` layers may have: ``MAX_MATRICES`` hold three matrices of each."""
    return MAX_MATRICES // (3 * layers)


def of_all_experts(name: str) -> str:
    """The name that a tensor of all experts would have, of which ``name`` is one expert's part."""
    return _EXPERT.sub(".experts.*.", name)


def canonical_from_hf(name: str) -> str:
    """A safetensors name without the wrappers that models with vision put around their language model, and with one
    name for experts, whichever architecture's they are. Tensors of all experts get the ``*`` of GGUF's."""
    name = _MIXTRAL_EXPERT.sub(lambda match: f"{match[1]}.{_MIXTRAL[match[2]]}.", name)
    name = name.replace(".block_sparse_moe.", ".mlp.").replace(".mlp.switch_mlp.", ".mlp.experts.*.")
    name = _STACKED.sub(r".mlp.experts.*.\1.weight", name)
    for prefix in ("language_model.", "model.language_model.", "model.text_model."):
        if name.startswith(prefix):
            rest = name.removeprefix(prefix)
            return rest if rest.startswith(("model.", "lm_head.")) else f"model.{rest}"
    if name.startswith(("layers.", "embed_tokens.", "norm.")):  # saved without the head's class around it
        return f"model.{name}"
    return name
