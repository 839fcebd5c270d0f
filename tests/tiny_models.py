"""Tiny random models of each architecture, made by transformers and saved as both kinds of file."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers

from bireme.models.names import gguf_from_canonical

VOCAB = 320
SHAPE = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "attn_implementation": "eager",
    "bos_token_id": 256,
    "eos_token_id": 257,
}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
GEMMA3 = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "head_dim": 16,
    "sliding_window": 24,
    "query_pre_attn_scalar": 16,  # GGUF files do not hold it: it is the head's dims
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_type": "linear", "factor": 8.0},
}
#: name -> (transformers class prefix, what differs from SHAPE)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("Llama", {}),
    "llama_tied": ("Llama", {"tie_word_embeddings": True}),
    "llama_mha_dim24": ("Llama", {"num_key_value_heads": 4, "head_dim": 24}),
    "llama3_rope": ("Llama", {"rope_parameters": {**LLAMA3, "original_max_position_embeddings": 64}}),
    "llama_linear": ("Llama", {"rope_parameters": {"rope_type": "linear", "factor": 4.0}}),
    "llama_yarn": (
        "Llama",
        {"rope_parameters": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "mistral": ("Mistral", {"sliding_window": 24, "head_dim": 16}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 32}),
    "mixtral": ("Mixtral", {"num_local_experts": 4}),
    "qwen3_moe": (
        "Qwen3Moe",
        {
            "head_dim": 32,
            "num_experts": 4,
            "num_experts_per_tok": 2,
            "moe_intermediate_size": 64,
            "mlp_only_layers": [1],
            "norm_topk_prob": True,
        },
    ),
    "gemma3": ("Gemma3", GEMMA3),
}
#: Those with experts.
MIXTURES = ("mixtral", "qwen3_moe")


@dataclass(frozen=True)
class TinyModel:
    """The transformers model, its folder and its GGUF file."""

    name: str
    reference: Any
    folder: Path
    gguf: Path

    def logits(self, ids: list[int]) -> np.ndarray:
        """[len(ids), VOCAB] float32."""
        with torch.no_grad():
            return self.reference(torch.tensor([ids])).logits[0].numpy()


def make_tiny(name: str, folder: Path) -> TinyModel:
    """Build variant ``name`` with weights large enough that logits differ by whole units."""
    prefix, changes = VARIANTS[name]
    rope = {"rope_theta": 10000.0, "rope_type": "default", **changes.get("rope_parameters", {})}
    kind = prefix + "Config"
    if prefix == "Gemma3":
        local = {"rope_theta": 100.0, "rope_type": "default"}
        rope, kind = {"full_attention": rope, "sliding_attention": local}, "Gemma3TextConfig"
    config = getattr(transformers, kind)(**{**SHAPE, **changes, "rope_parameters": rope})
    model = getattr(transformers, prefix + "ForCausalLM")(config).eval()
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in dict(model.named_parameters()).values():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim >= 2:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5 * 1.5)
            elif parameter.mean() == 1:  # a norm
                parameter.copy_(1 + 0.1 * noise)
            else:
                parameter.copy_(0.2 * noise)
    target = folder / name
    model.save_pretrained(target)
    (target / "tokenizer.json").write_text(json.dumps(_tokenizer_json()))
    file = folder / f"{name}.gguf"
    write_gguf(model, prefix.lower(), file)
    return TinyModel(name, model, target, file)


def _tokenizer_json() -> dict[str, Any]:
    vocab = {f"t{i}": i for i in range(VOCAB)}
    return {"version": "1.0", "added_tokens": [], "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "t0"}}


def write_gguf(model: Any, architecture: str, path: Path) -> None:
    """All tensors as F32, in llama.cpp's names and, for the llama architecture, its order of q and k rows."""
    config = model.config
    arch = "llama" if architecture in ("mistral", "mixtral") else architecture
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    writer = gguf.GGUFWriter(str(path), arch)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    rope = config.rope_parameters
    if arch == "gemma3":
        writer.add_rope_freq_base_swa(rope["sliding_attention"]["rope_theta"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config.layer_types])
        rope = rope["full_attention"]
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    if getattr(config, "sliding_window", None):
        writer.add_sliding_window(config.sliding_window)
    if getattr(config, "num_experts", 0):
        writer.add_expert_count(config.num_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if getattr(config, "moe_intermediate_size", None):
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    _write_rope(writer, rope, head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list([f"t{i}" for i in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges([])
    writer.add_bos_token_id(config.bos_token_id)
    writer.add_eos_token_id(config.eos_token_id)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        values = tensor.detach().numpy()
        part = name.split(".")[-2]
        if arch == "llama" and part in heads:
            values = permute(values, heads[part])
        if arch == "gemma3" and name.endswith("norm.weight"):
            values = values + 1
        for one, matrix in _experts(name, values):
            writer.add_tensor(gguf_from_canonical(one, arch), np.ascontiguousarray(matrix))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _experts(name: str, values: np.ndarray) -> list[tuple[str, np.ndarray]]:
    """transformers' stacked experts as GGUF has them, gate and up apart; any other tensor as it is."""
    stem, _, part = name.rpartition(".")
    if part == "down_proj":
        return [(f"{stem}.0.down_proj.weight", values)]
    if part != "gate_up_proj":
        return [(name, values)]
    halves = zip(("gate_proj", "up_proj"), np.split(values, 2, axis=1), strict=True)
    return [(f"{stem}.0.{half}.weight", matrix) for half, matrix in halves]


def _write_rope(writer: gguf.GGUFWriter, rope: dict[str, Any], head_dim: int) -> None:
    kind = rope["rope_type"]
    if kind in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(kind))
        writer.add_rope_scaling_factor(rope["factor"])
    if kind == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if kind == "llama3":
        writer.add_tensor("rope_freqs.weight", llama3_divisors(rope, head_dim).astype(np.float32))


def llama3_divisors(rope: dict[str, Any], head_dim: int) -> np.ndarray:
    """What ``rope_freqs.weight`` holds: long waves are slowed by the factor, those between by less."""
    wave = 2 * np.pi * rope["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim)
    turns = rope["original_max_position_embeddings"] / wave
    share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
    share = share.clip(0, 1)
    return 1 / ((1 - share) / rope["factor"] + share)


def permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """Half-split rows to the interleaved pairs of llama GGUF files."""
    return rows.reshape(heads, 2, -1, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)
