"""Tiny decoders: random weights, files of both kinds made of them, and a plain NumPy forward pass over a checkpoint."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from bireme.bench import mlx_folder
from bireme.models.config import ModelConfig, MoeConfig, RopeConfig
from bireme.models.names import expected_shapes, expert_of, gguf_from_canonical, of_all_experts, of_expert
from bireme.models.weight import Checkpoint

GOLDEN = Path(__file__).parent / "data" / "golden"

Floats = NDArray[np.floating[Any]]
Stored = tuple[str, NDArray[Any]]  # safetensors type name, array (BF16 as uint16)


def golden() -> dict[str, dict[str, Any]]:
    """Per model: ``prompt_ids``, ``last_logits_first8``, ``greedy`` (ids that follow) and ``tol``."""
    return json.loads((GOLDEN / "golden.json").read_text())


#: Experts of the architectures that have them; Qwen3-MoE's first layer has none.
MIXTURES = {
    "mixtral": MoeConfig(4, 2, 96),
    "qwen3_moe": MoeConfig(4, 2, 64, dense_layers=frozenset((0,))),
}
_GGUF_ARCHITECTURES = {"mistral": "llama", "mixtral": "llama", "qwen3_moe": "qwen3moe"}


def tiny_config(architecture: str = "llama", **changes: Any) -> ModelConfig:
    """A decoder of 320 tokens, 64 dims, 2 layers, 4 heads over 2 kv heads of 16 dims."""
    values: dict[str, Any] = {
        "vocab_size": 320,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_layers": 2,
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 16,
        "max_position": 512,
        "rms_norm_eps": 1e-5,
        "attention_bias": architecture == "qwen2",
        "qk_norm": architecture in ("qwen3", "qwen3_moe"),
        "moe": MIXTURES.get(architecture),
    }
    return ModelConfig(architecture=architecture, **(values | changes))


def random_weights(config: ModelConfig, seed: int = 0) -> dict[str, NDArray[np.float32]]:
    """Every tensor of ``config`` under its canonical name; norms lie around 1."""
    rng = np.random.default_rng(seed)
    weights = {}
    for name, shape in expected_shapes(config).items():
        noise = rng.standard_normal(shape)
        values = noise * shape[-1] ** -0.5 if len(shape) == 2 else 0.2 * noise + ("norm" in name)
        weights[name] = values.astype(np.float32)
    return weights


def weights_of(checkpoint: Checkpoint) -> dict[str, NDArray[np.float32]]:
    """All of an opened checkpoint's tensors, decoded."""
    return {name: checkpoint.weight(name).dequantize() for name in checkpoint.names()}


# GGUF


def interleave_rows(rows: NDArray[Any], heads: int) -> NDArray[Any]:
    """Half-split rows as "llama" GGUF files keep them: row i of a head's first half, then row i of its second."""
    out = np.empty_like(rows)
    size = rows.shape[0] // heads
    for head in range(heads):
        first = head * size
        out[first : first + size : 2] = rows[first : first + size // 2]
        out[first + 1 : first + size : 2] = rows[first + size // 2 : first + size]
    return out


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, NDArray[np.float32]],
    *,
    type_of: Callable[[str], str] = lambda name: "F32",
    alignment: int | None = None,
    split: int = 0,
    edit: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
    extra: Mapping[str, NDArray[Any]] | None = None,
) -> Path:
    """Write ``weights`` (canonical names) with the gguf package; matrices in the type that ``type_of`` gives.

    ``split``: tensors per shard, 0 for one file; ``edit`` adds metadata; ``extra``: further tensors by GGUF name.
    Returns the path of the file or of the first shard.
    """
    arch = _GGUF_ARCHITECTURES.get(config.architecture, config.architecture)
    writer = gguf.GGUFWriter(str(path), arch, split_max_tensors=split)
    if alignment is not None:
        writer.add_custom_alignment(alignment)
    _add_metadata(writer, config)
    edit(writer)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    for name, values in weights.items():
        if arch == "llama" and ".q_proj." in name:
            values = interleave_rows(values, config.num_heads)
        if arch == "llama" and ".k_proj." in name:
            values = interleave_rows(values, config.num_kv_heads)
        if config.moe is not None and expert_of(name) is not None:
            if expert_of(name):
                continue  # the first expert's place is that of all
            every = of_all_experts(name)
            values = np.stack([weights[of_expert(every, expert)] for expert in range(config.moe.num_experts)])
        kind = gguf.GGMLQuantizationType[type_of(name) if values.ndim > 1 else "F32"]
        stored = gguf.quants.quantize(np.ascontiguousarray(values), kind)
        writer.add_tensor(gguf_from_canonical(name), stored, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path if not split else sorted(path.parent.glob(f"{path.stem}-00001-of-*.gguf"))[0]


def _add_metadata(writer: gguf.GGUFWriter, config: ModelConfig) -> None:
    writer.add_name("tiny")
    writer.add_context_length(config.max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_layers)
    writer.add_head_count(config.num_heads)
    writer.add_head_count_kv(config.num_kv_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope.theta)
    if config.moe is not None:
        writer.add_expert_count(config.moe.num_experts)
        writer.add_expert_used_count(config.moe.top_k)
        writer.add_expert_feed_forward_length(config.moe.intermediate_size)
    if config.head_dim * config.num_heads != config.hidden_size:
        writer.add_key_length(config.head_dim)
        writer.add_value_length(config.head_dim)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"t{index}" for index in range(config.vocab_size)])
    writer.add_token_types([1] * config.vocab_size)
    writer.add_eos_token_id(5)


# safetensors


def save_safetensors(path: Path, tensors: Mapping[str, Stored]) -> None:
    """Write one file; the types' names are the format's."""
    header, data = {}, b""
    for name, (dtype, values) in tensors.items():
        raw = np.ascontiguousarray(values).tobytes()
        header[name] = {"dtype": dtype, "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def as_f32(weights: Mapping[str, NDArray[np.float32]]) -> dict[str, Stored]:
    return {name: ("F32", values) for name, values in weights.items()}


def hf_settings(config: ModelConfig, **changes: Any) -> dict[str, Any]:
    """The ``config.json`` that says what ``config`` does, RoPE scaling and windows apart, with ``changes``."""
    return mlx_folder.hf_settings(config) | changes


def write_folder(
    folder: Path,
    settings: Mapping[str, Any],
    tensors: Mapping[str, Stored],
    shards: int = 1,
    files: Mapping[str, Any] | None = None,
) -> Path:
    """Write config.json, the tensors in ``shards`` files (several have an index) and further JSON ``files``."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in {"config.json": settings, **(files or {})}.items():
        (folder / name).write_text(content if isinstance(content, str) else json.dumps(content))
    if shards == 1:
        save_safetensors(folder / "model.safetensors", tensors)
        return folder
    names, weight_map = sorted(tensors), {}
    for shard in range(shards):
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        part = names[shard::shards]
        save_safetensors(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def quantize_affine(
    values: NDArray[np.float32], bits: int, group: int
) -> tuple[NDArray[np.uint32], NDArray[np.float32], NDArray[np.float32]]:
    """Words, scales and biases of MLX's affine form, each group from its least to its greatest value."""
    rows = values.shape[0]
    grouped = values.reshape(rows, -1, group)
    low, high = grouped.min(axis=2), grouped.max(axis=2)
    scales = np.maximum((high - low) / (2**bits - 1), np.float32(1e-7)).astype(np.float32)
    codes = np.clip(np.round((grouped - low[:, :, None]) / scales[:, :, None]), 0, 2**bits - 1).astype(np.uint8)
    stream = ((codes.reshape(rows, -1, 1) >> np.arange(bits, dtype=np.uint8)) & 1).reshape(rows, -1)
    words = np.packbits(stream, axis=1, bitorder="little").view("<u4")
    return words, scales, low.astype(np.float32)


# the reference forward pass


def forward(checkpoint: Checkpoint, ids: Sequence[int]) -> Floats:
    """Logits [len(ids), vocab] in float64: no cache, no batching, nothing shared with the engine but the weights."""
    config, weights = checkpoint.config, weights_of(checkpoint)
    x = weights["model.embed_tokens.weight"][list(ids)].astype(np.float64)
    for layer in range(config.num_layers):
        part = {
            name.removeprefix(f"model.layers.{layer}."): values
            for name, values in weights.items()
            if name.startswith(f"model.layers.{layer}.")
        }
        x = x + _attention(config, layer, part, _norm(x, part["input_layernorm.weight"], config.rms_norm_eps))
        y = _norm(x, part["post_attention_layernorm.weight"], config.rms_norm_eps)
        x = x + (_gated(part, "mlp", y) if config.experts(layer) is None else _mixed(config.experts(layer), part, y))
    head = weights["model.embed_tokens.weight" if config.tie_embeddings else "lm_head.weight"]
    return _norm(x, weights["model.norm.weight"], config.rms_norm_eps) @ head.T


def _gated(part: Mapping[str, Floats], module: str, y: Floats) -> Floats:
    gate, up = y @ part[f"{module}.gate_proj.weight"].T, y @ part[f"{module}.up_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ part[f"{module}.down_proj.weight"].T


def _mixed(moe: MoeConfig | None, part: Mapping[str, Floats], y: Floats) -> Floats:
    """Each token by itself through the experts that it is sent to."""
    assert moe is not None
    out = np.zeros_like(y)
    for token, logits in enumerate(y @ part["mlp.gate.weight"].T):
        shares = np.exp(logits - logits.max())
        shares /= shares.sum()
        chosen = np.argsort(-logits, kind="stable")[: moe.top_k]
        total = shares[chosen].sum() if moe.normalise else 1.0
        for expert in chosen:
            out[token] += shares[expert] / total * _gated(part, f"mlp.experts.{expert}", y[token])
    return out


def greedy(checkpoint: Checkpoint, ids: Sequence[int], count: int) -> list[int]:
    """The ``count`` ids that follow."""
    known = list(ids)
    for _ in range(count):
        known.append(int(forward(checkpoint, known)[-1].argmax()))
    return known[len(ids) :]


def _norm(x: Floats, weight: Floats, eps: float) -> Floats:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + eps) * weight


def _attention(config: ModelConfig, layer: int, part: Mapping[str, Floats], x: Floats) -> Floats:
    count, dim, group = len(x), config.head_dim, config.num_heads // config.num_kv_heads
    q, k, v = (
        (x @ part[f"self_attn.{name}_proj.weight"].T + part.get(f"self_attn.{name}_proj.bias", 0)).reshape(
            count, -1, dim
        )
        for name in "qkv"
    )
    if config.qk_norm:
        q = _norm(q, part["self_attn.q_norm.weight"], config.rms_norm_eps)
        k = _norm(k, part["self_attn.k_norm.weight"], config.rms_norm_eps)
    q, k = _rotate(q, config.rope, dim), _rotate(k, config.rope, dim)
    distance = np.arange(count)[:, None] - np.arange(count)
    hidden = (distance < 0) | (distance >= (config.window(layer) or count))
    heads = []
    for head in range(config.num_heads):
        scores = q[:, head] @ k[:, head // group].T / np.sqrt(dim)
        scores[hidden] = -np.inf
        share = np.exp(scores - scores.max(axis=1, keepdims=True))
        heads.append(share / share.sum(axis=1, keepdims=True) @ v[:, head // group])
    return np.concatenate(heads, axis=1) @ part["self_attn.o_proj.weight"].T


def _rotate(x: Floats, rope: RopeConfig, head_dim: int) -> Floats:
    """Turn pairs (i, i + half) of ``x`` [T, heads, head_dim] by position."""
    dim = rope.rotary_dim or head_dim
    speed, magnitude = _speeds(rope, dim)
    angle = np.arange(len(x))[:, None, None] * speed
    cos, sin = np.cos(angle) * magnitude, np.sin(angle) * magnitude
    first, second, rest = x[..., : dim // 2], x[..., dim // 2 : dim], x[..., dim:]
    return np.concatenate((first * cos - second * sin, second * cos + first * sin, rest), axis=-1)


def _speeds(rope: RopeConfig, dim: int) -> tuple[Floats, float]:
    """Radians per position of each pair, and the factor on cos and sin."""
    plain = np.array([rope.theta ** (-2 * i / dim) for i in range(dim // 2)])
    if rope.divisors is not None:
        return plain / np.array(rope.divisors), 1.0
    if rope.kind == "default":
        return plain, 1.0
    if rope.kind == "linear":
        return plain / rope.factor, 1.0
    assert rope.original_max_position is not None
    if rope.kind == "llama3":
        wave = 2 * np.pi / plain
        long, short = (rope.original_max_position / f for f in (rope.low_freq_factor, rope.high_freq_factor))
        smooth = (rope.original_max_position / wave - rope.low_freq_factor) / (
            rope.high_freq_factor - rope.low_freq_factor
        )
        blended = (1 - smooth) * plain / rope.factor + smooth * plain
        return np.where(wave > long, plain / rope.factor, np.where(wave < short, plain, blended)), 1.0
    raise ValueError(rope.kind)
