"""A GGUF model as a float32 safetensors folder, which mlx-lm can read and ours reads to the same weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

from ..models.checkpoint import open_checkpoint
from ..models.config import ModelConfig

#: Llama-like architectures whose configuration needs nothing beyond what ``hf_settings`` writes.
PLAIN = ("llama", "qwen2", "qwen3")


def float32_folder(model: Path, folder: Path, *, never_ends: bool) -> Path:
    """Write ``model`` (a GGUF file) decoded to ``folder``.

    ``never_ends``: name no end token, so that every answer has the length asked for.

    Raises:
        ValueError: an architecture or rotary scaling that is not written here.
    """
    from transformers import AutoTokenizer

    checkpoint = open_checkpoint(model)
    config = checkpoint.config
    if config.architecture not in PLAIN or config.rope.kind != "default" or config.rope.divisors is not None:
        raise ValueError(f"{model}: {config.architecture} with {config.rope.kind} rotary scaling; supported: {PLAIN}")
    folder.mkdir(parents=True, exist_ok=True)
    settings = hf_settings(config) | {"torch_dtype": "float32"}
    settings["eos_token_id"] = config.vocab_size - 1 if never_ends else min(checkpoint.end_ids)
    (folder / "config.json").write_text(json.dumps(settings, indent=1))
    save_file(
        {name: np.ascontiguousarray(checkpoint.weight(name).dequantize()) for name in checkpoint.names()},
        folder / "model.safetensors",
        metadata={"format": "mlx"},
    )
    AutoTokenizer.from_pretrained(str(model.parent), gguf_file=model.name).save_pretrained(str(folder))
    checkpoint.close()
    return folder


def hf_settings(config: ModelConfig) -> dict[str, Any]:
    """The ``config.json`` that says what ``config`` does, RoPE scaling and windows apart."""
    title = "".join(word.capitalize() for word in config.architecture.split("_"))
    return _experts(config) | {
        "architectures": [f"{title}ForCausalLM"],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope.theta,
        "tie_word_embeddings": config.tie_embeddings,
    }


def _experts(config: ModelConfig) -> dict[str, Any]:
    """What it says of experts."""
    moe = config.moe
    if moe is None:
        return {}
    count = "num_local_experts" if config.architecture == "mixtral" else "num_experts"
    return {
        count: moe.num_experts,
        "num_experts_per_tok": moe.top_k,
        "moe_intermediate_size": moe.intermediate_size,
        "norm_topk_prob": moe.normalise,
        "mlp_only_layers": sorted(moe.dense_layers),
    }
