"""What architectures leave to their code: which layers have a window or none, and what recurrent layers keep.

The facts are those of the models' own implementations in transformers 5 and llama.cpp.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..models.hf_config import MISTRAL_WINDOW

#: Every n-th layer is global, the others slide, where a configuration names a window and no pattern.
PATTERNS = {
    "gemma2": 2,
    "gemma3": 6,
    "gemma3_text": 6,
    "gemma3n": 5,
    "gemma3n_text": 5,
    "gpt_oss": 2,
    "gpt-oss": 2,
    "cohere2": 4,
    "llama4": 4,
    "exaone4": 4,
    "olmo2": 4,
    "olmo3": 4,
}

_GEMMA = ("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text")
#: Those that use their embedding as the head where a configuration doesn't say.
TIED = (*_GEMMA, "cohere", "cohere2", "smollm3", "starcoder2")

#: A window these name is always off unless a switch of their own says otherwise.
_SWITCHED = ("qwen2", "qwen2_moe", "qwen3", "qwen3_moe")
_IGNORED = ("llama",)
_SLIDING = ("sliding_attention", "chunked_attention", "local_attention", "sliding_window")
_RECURRENT = ("linear_attention", "mamba", "mamba2", "conv", "recurrent", "ssm")
_ATTENDING = ("full_attention", "global_attention", "attention", "full")


def layer_kinds(config: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    """Per layer "full", "sliding", "recurrent" or "both" (attention and a state side by side), of a ``config.json``.

    Raises:
        ValueError: ``layer_types`` has another length, or names a kind that is not known.
    """
    given = config.get("layer_types") or config.get("layers_block_type")
    if isinstance(given, list):
        if len(given) != num_layers:
            raise ValueError(f"layer_types has {len(given)} entries; num_hidden_layers is {num_layers}")
        return tuple(_kind(str(name)) for name in given)
    if str(config.get("model_type")) == "falcon_h1":
        return ("both",) * num_layers
    interval = config.get("full_attention_interval")
    if isinstance(interval, int) and interval > 0:
        return tuple("full" if (layer + 1) % interval == 0 else "recurrent" for layer in range(num_layers))
    period = config.get("attn_layer_period")
    if isinstance(period, int) and period > 0:
        offset = int(config.get("attn_layer_offset") or 0)
        return tuple("full" if layer % period == offset else "recurrent" for layer in range(num_layers))
    if window(config) is None:
        return ("full",) * num_layers
    return _by_pattern(config, num_layers)


def window(config: Mapping[str, Any]) -> int | None:
    """The window in use: null, 0 and a switch that is off mean none."""
    architecture = str(config.get("model_type"))
    usual = MISTRAL_WINDOW if architecture == "mistral" and "sliding_window" not in config else None
    size = config.get("sliding_window") or config.get("attention_chunk_size") or usual
    if not size:
        return None
    if isinstance(size, bool) or not isinstance(size, int) or size < 1:
        raise ValueError(f"sliding_window is {size!r}; wanted: a whole number of tokens")
    switch = config.get("use_sliding_window")
    on = bool(switch) if switch is not None else architecture not in (*_SWITCHED, *_IGNORED)
    return size if on else None


def _by_pattern(config: Mapping[str, Any], num_layers: int) -> tuple[str, ...]:
    architecture = str(config.get("model_type"))
    pattern = config.get("sliding_window_pattern") or config.get("_sliding_window_pattern")
    if isinstance(pattern, str) and pattern:  # EXAONE writes it in letters, L for local
        return tuple("sliding" if pattern[i % len(pattern)] == "L" else "full" for i in range(num_layers))
    every = pattern if isinstance(pattern, int) else PATTERNS.get(architecture)
    if every:
        return tuple("full" if (layer + 1) % every == 0 else "sliding" for layer in range(num_layers))
    first = int(config.get("max_window_layers") or 28) if architecture.startswith("qwen") else 0
    return tuple("sliding" if layer >= first else "full" for layer in range(num_layers))


def _kind(name: str) -> str:
    for known, kind in ((_SLIDING, "sliding"), (_RECURRENT, "recurrent"), (_ATTENDING, "full")):
        if name in known:
            return kind
    if name == "hybrid":
        return "both"
    names = ", ".join((*_ATTENDING, *_SLIDING, *_RECURRENT))
    raise ValueError(f"layer_types names {name!r}; known: {names}")


def state_bytes(config: Mapping[str, Any]) -> int:
    """The float32 state of one recurrent layer and sequence; 0 where the keys that would say are missing.

    Gated delta nets (Qwen3-Next), Mamba and Mamba 2, short convolutions (LFM2).
    """

    def size(*names: str) -> int:
        return next((int(config[name]) for name in names if isinstance(config.get(name), int | float)), 0)

    if size("linear_num_value_heads"):
        key_heads, key = size("linear_num_key_heads"), size("linear_key_head_dim")
        heads, value = size("linear_num_value_heads"), size("linear_value_head_dim")
        convolved = 2 * key_heads * key + heads * value
        return 4 * (heads * key * value + (size("linear_conv_kernel_dim") - 1) * convolved)
    if size("conv_L_cache"):
        return 4 * size("hidden_size") * (size("conv_L_cache") - 1)
    state = size("mamba_d_state", "ssm_state_size", "state_size")
    if not state:
        return 0
    heads, dim = size("mamba_n_heads", "mamba_num_heads"), size("mamba_d_head", "mamba_head_dim")
    inner = heads * dim or size("mamba_d_ssm") or size("mamba_expand", "expand") * size("hidden_size")
    groups = size("mamba_n_groups", "n_groups") if heads else 0
    kernel = size("mamba_d_conv", "conv_kernel")
    return 4 * (inner * state + max(0, kernel - 1) * (inner + 2 * groups * state))
