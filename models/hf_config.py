"""ModelConfig out of a Hugging Face ``config.json``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from . import gemma
from .config import MAX_LAYERS, ModelConfig, MoeConfig, RopeConfig
from .names import most_experts
from .rope_config import LAYER_KINDS, hf_rope
from .settings import Settings
from .weight import CheckpointError

ARCHITECTURES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3")
_CLASSES = {
    "LlamaForCausalLM": "llama",
    "MistralForCausalLM": "mistral",
    "MixtralForCausalLM": "mixtral",
    "Qwen2ForCausalLM": "qwen2",
    "Qwen3ForCausalLM": "qwen3",
    "Qwen3MoeForCausalLM": "qwen3_moe",
    "Gemma3ForCausalLM": "gemma3_text",
    "Gemma3ForConditionalGeneration": "gemma3",
}
_EXPERT_KEYS = ("num_local_experts", "num_experts", "n_routed_experts")
_WITH_EXPERTS = ("mixtral", "qwen3_moe")
MISTRAL_WINDOW = 4096  # what transformers takes where a Mistral configuration lacks the key altogether


def text_part(config: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
    """The language model's settings, and whether they were nested (a model with vision or audio). Inner values win."""
    inner = config.get("text_config")
    if not isinstance(inner, dict):
        return dict(config), False
    outer = {key: value for key, value in config.items() if key not in ("text_config", "model_type", "architectures")}
    return outer | inner, True


def hf_config(config: Settings, has_head: bool) -> ModelConfig:
    """The configuration. ``config``: the language model's part; ``has_head``: whether the files hold ``lm_head``.

    Raises:
        CheckpointError: an unsupported architecture or feature, or a key missing or out of range.
    """
    architecture = _architecture(config)
    is_gemma = architecture == gemma.ARCHITECTURE
    if is_gemma:
        config = gemma.completed(config)
    _refuse_unsupported(config, architecture)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    if heads % kv_heads:
        raise config.fail("num_key_value_heads", f"a divisor of the {heads} heads")
    head_dim = config.integer("head_dim", hidden // heads)
    if not config.has("head_dim") and hidden % heads:
        raise config.fail("num_attention_heads", f"a divisor of hidden_size {hidden}, or a head_dim beside it")
    if head_dim % 2:
        raise CheckpointError(f"{config.source}: heads of {head_dim} dims; rotary embedding needs an even number")
    layers = config.integer("num_hidden_layers", most=MAX_LAYERS)
    rope, context = (RopeConfig(), 1) if is_gemma else hf_rope(config, head_dim)
    model = ModelConfig(
        architecture=architecture,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden,
        intermediate_size=config.integer("intermediate_size"),
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        max_position=context,
        rms_norm_eps=config.number("rms_norm_eps"),
        rope=rope,
        tie_embeddings=config.boolean("tie_word_embeddings", False) or not has_head,
        attention_bias=architecture == "qwen2" or config.boolean("attention_bias", False),
        qk_norm=architecture in ("qwen3", "qwen3_moe"),
        windows=_windows(config, architecture, layers),
        moe=_moe(config, architecture, layers),
    )
    return gemma.hf_gemma(config, model) if is_gemma else model


def _architecture(config: Settings) -> str:
    classes = config.get("architectures") or []
    guess = _CLASSES.get(str(classes[0]), str(classes[0])) if isinstance(classes, list) and classes else None
    name = config.text("model_type", guess)
    if name in gemma.MODEL_TYPES:
        return gemma.ARCHITECTURE
    if name in ARCHITECTURES:
        return name
    raise CheckpointError(
        f"{config.source}: unsupported architecture {name} ({classes or 'no class named'}); "
        f"supported: {', '.join(ARCHITECTURES)}"
    )


def _refuse_unsupported(config: Settings, architecture: str) -> None:
    for key in _EXPERT_KEYS if architecture not in _WITH_EXPERTS else ():
        if config.has(key) and config.integer(key, least=0):
            raise config.fail(key, f"0 in a {architecture} model; those with experts are {', '.join(_WITH_EXPERTS)}")
    if architecture != gemma.ARCHITECTURE and config.text("hidden_act", "silu") not in ("silu", "swish"):
        raise config.fail("hidden_act", "silu")


def _moe(config: Settings, architecture: str, layers: int) -> MoeConfig | None:
    """The experts, if there are any; what is left out has the value that transformers takes for it."""
    if architecture not in _WITH_EXPERTS:
        return None
    mixtral = architecture == "mixtral"
    default = 8 if mixtral else 128
    most = most_experts(layers)
    count = config.integer("num_local_experts", default, least=0, most=most)
    count = config.integer("num_experts", count, least=0, most=most)
    if not count:
        return None
    every, dense = config.integer("decoder_sparse_step", 1), config.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(isinstance(layer, int) for layer in dense):
        raise config.fail("mlp_only_layers", "a list of layers")
    return MoeConfig(
        num_experts=count,
        top_k=config.integer("num_experts_per_tok", 2 if mixtral else 8, most=count),
        intermediate_size=config.integer("intermediate_size" if mixtral else "moe_intermediate_size"),
        normalise=mixtral or config.boolean("norm_topk_prob", False),
        dense_layers=frozenset(layer for layer in range(layers) if (layer + 1) % every or layer in dense),
    )


def _windows(config: Settings, architecture: str, layers: int) -> tuple[int | None, ...]:
    """Per layer what transformers makes of ``sliding_window`` and its companions; () where no layer has a window."""
    window = _window(config, architecture)
    if window is None:
        return ()
    kinds = config.get("layer_types")
    if kinds is None:
        slides = _slides(config, architecture, layers)
    elif isinstance(kinds, list) and len(kinds) == layers and all(kind in LAYER_KINDS for kind in kinds):
        slides = [kind == "sliding_attention" for kind in kinds]
    else:
        raise config.fail("layer_types", f"{layers} times sliding_attention or full_attention")
    return tuple(window if slide else None for slide in slides) if any(slides) else ()


def _slides(config: Settings, architecture: str, layers: int) -> list[bool]:
    """Which layers have the window where ``layer_types`` doesn't say."""
    if architecture == gemma.ARCHITECTURE:
        return gemma.slides(config.integer("sliding_window_pattern", gemma.PATTERN), layers)
    first = config.integer("max_window_layers", 28, least=0) if architecture in ("qwen2", "qwen3") else 0
    return [layer >= first for layer in range(layers)]


def _window(config: Settings, architecture: str) -> int | None:
    switch = architecture.startswith("qwen")
    if architecture == gemma.ARCHITECTURE:
        return config.integer("sliding_window")
    if architecture == "llama" or (switch and not config.boolean("use_sliding_window", False)):
        return None
    if config.has("sliding_window"):
        return config.integer("sliding_window")
    left_out = architecture == "mistral" and f"{config.prefix}sliding_window" not in config.values
    return MISTRAL_WINDOW if left_out else None
