"""What Gemma 3's files say beyond the Llama family's, in either format (arXiv:2503.19786).

Five layers of six have a window and a rotary embedding of their own. A ``config.json`` may leave out nearly everything:
then the values are those of transformers. GGUF files leave to the program what is the same in all Gemma 3 models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .config import ModelConfig, RopeConfig
from .rope_config import hf_ropes_by_kind
from .settings import Settings
from .weight import CheckpointError

ARCHITECTURE = "gemma3"
#: What ``model_type`` a configuration names: the language model alone, or with vision around it.
MODEL_TYPES = ("gemma3_text", "gemma3")
#: Every n-th layer sees everything, the others slide.
PATTERN = 6
LOCAL_THETA = 10_000.0
ACTIVATION = "gelu_pytorch_tanh"
#: What transformers takes for a key that ``config.json`` doesn't have.
_DEFAULTS: Mapping[str, Any] = {
    "vocab_size": 262_208,
    "hidden_size": 2304,
    "intermediate_size": 9216,
    "num_hidden_layers": 26,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 256,
    "max_position_embeddings": 131_072,
    "rms_norm_eps": 1e-6,
    "query_pre_attn_scalar": 256,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}
_SOFT_CAPS = ("attn_logit_softcapping", "final_logit_softcapping")
#: A GGUF file of so many layers is the 27B model's, the one whose scores are scaled otherwise than by the head's dims.
_LAYERS_27B = 62


def completed(config: Settings) -> Settings:
    """``config`` with transformers' values for the keys it lacks."""
    return replace(config, values={**_DEFAULTS, **config.values})


def hf_gemma(config: Settings, model: ModelConfig) -> ModelConfig:
    """``model``, read from the keys that all families share, with what ``config``, ``completed``, says beyond.

    Raises:
        CheckpointError: a feature that Gemma 3 has no use for and Bireme doesn't compute, or a bad value.
    """
    if config.text("hidden_activation", ACTIVATION) != ACTIVATION:
        raise config.fail("hidden_activation", ACTIVATION)
    _refuse_soft_caps(config)
    if config.boolean("use_bidirectional_attention", False):
        raise config.fail("use_bidirectional_attention", "false: attention here looks back, never ahead")
    rope, local = hf_ropes_by_kind(config, model.head_dim, local_theta=LOCAL_THETA)
    return replace(
        _gemma(model, local if any(model.windows) else None),
        rope=rope,
        max_position=config.integer("max_position_embeddings"),  # with its scaling in it already
        attention_scale=config.number("query_pre_attn_scalar") ** -0.5,
    )


def gguf_gemma(keys: Settings, model: ModelConfig) -> ModelConfig:
    """The same for a GGUF file's keys."""
    _refuse_soft_caps(keys)
    window = keys.integer("attention.sliding_window", 0, least=0)
    local = RopeConfig(theta=keys.number("rope.freq_base_swa", LOCAL_THETA), rotary_dim=model.rope.rotary_dim)
    scaled = model.hidden_size // model.num_heads if model.num_layers == _LAYERS_27B else model.head_dim
    return replace(
        _gemma(model, local if window else None),
        windows=_gguf_windows(keys, window, model.num_layers),
        attention_scale=scaled**-0.5,
    )


def _gemma(model: ModelConfig, local: RopeConfig | None) -> ModelConfig:
    return replace(
        model,
        qk_norm=True,
        local_rope=local,
        embedding_scale=math.sqrt(model.hidden_size),
        activation="gelu_tanh",
        post_norms=True,
        wide_norms=True,
    )


def slides(every: int, layers: int) -> list[bool]:
    """Which of ``layers`` have a window: all but every ``every``-th."""
    return [bool((layer + 1) % every) for layer in range(layers)]


def _gguf_windows(keys: Settings, window: int, layers: int) -> tuple[int | None, ...]:
    """Whether a layer slides is a list of its own in some files, a period in others, and left out in most."""
    key = "attention.sliding_window_pattern"
    given = keys.get(key)
    if not window:
        return ()
    which = given if isinstance(given, list) else slides(keys.integer(key, PATTERN), layers)
    if len(which) != layers or not all(isinstance(one, int) for one in which):
        raise keys.fail(key, f"{layers} times true or false, or a number of layers")
    return tuple(window if one else None for one in which)


def _refuse_soft_caps(keys: Settings) -> None:
    for key in _SOFT_CAPS:
        if keys.number(key, 0.0, above=-1.0):
            raise CheckpointError(
                f"{keys.source}: {keys.prefix}{key} is {keys.get(key)}: soft-capping, which Gemma 2 has and Gemma 3 "
                "has not, is not supported"
            )
