"""From what a user types to a shape: a path, a Hub id or ``demo``. Headers are read, weights never."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Set
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from ..models.gguf_split import open_gguf_files
from ..models.hf_config import text_part
from ..models.hf_text import read_json
from ..models.safetensors import INDEX, SafeTensor, open_safetensors
from .from_config import shape_from_config
from .from_gguf import shape_from_gguf
from .shape import ModelShape, Part, Weights, sum_weights

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+?(?::[\w.-]+)?")
_EXPERT = re.compile(r"\.(experts|switch_mlp)\.")
_ROUTER = re.compile(r"\.(mlp|block_sparse_moe|feed_forward)\.(gate|router)\.")
#: Tensors that belong to a quantised weight and are none themselves.
_BESIDE = frozenset(
    ("qzeros", "g_idx", "weight_scale", "weight_scale_inv", "weight_zero_point", "weight_g_idx", "weight_shape")
)
#: Those that say which group a column is in.
_ORDERS = (".g_idx", ".weight_g_idx")


def open_shape(model: str) -> ModelShape:
    """The shape of ``model``.

    A .gguf file (any shard), a folder, a config.json, a Hub id (``org/name[:QUANT]``: its headers are fetched, a few
    MB), or ``demo``.

    Raises:
        ValueError: no such model, or its headers can't be read; the message says why (``CheckpointError`` and the
            Hub's own errors among them).
    """
    path = Path(model).expanduser()
    if model == "demo":
        from ..models.hub import resolve

        path = resolve(model)
    if path.exists():
        return shape_of_path(path)
    if not _HUB_ID.fullmatch(model) or model.endswith((".gguf", ".json")):
        raise ValueError(f"{model!r} is no file or folder here (looked for {path.absolute()}), and no Hub id")
    from .hub_headers import fetch_headers

    with tempfile.TemporaryDirectory(prefix="bireme-plan-") as folder:
        shape = shape_of_path(fetch_headers(model, Path(folder)))
    return _renamed(shape, model)


def shape_of_path(path: Path) -> ModelShape:
    """The shape of a file or folder that exists."""
    if path.is_file() and path.suffix == ".json":
        return shape_from_config(read_json(path), str(path))
    if path.is_dir() and (path / "config.json").is_file():
        if any(path.glob("*.safetensors")):
            return _shape_of_folder(path)
        if not any(path.glob("*.gguf")):
            shape = shape_from_config(read_json(path / "config.json"), str(path / "config.json"))
            return _renamed(_sized_by_index(shape, path / INDEX), path.name)
    files = open_gguf_files(path)
    try:
        return shape_from_gguf(files)
    finally:
        for file in files:
            file.close()


def _shape_of_folder(folder: Path) -> ModelShape:
    config = read_json(folder / "config.json")
    tensors = open_safetensors(folder)
    try:
        weights = _weights(config, {name: tensor for name, (_, tensor) in tensors.items()})
    finally:
        for file, _ in tensors.values():
            file.close()
    return _renamed(shape_from_config(config, str(folder / "config.json"), weights), folder.name)


def _sized_by_index(shape: ModelShape, index: Path) -> ModelShape:
    """With the size that an index of files that aren't here gives in all, in the proportions reckoned."""
    metadata = read_json(index).get("metadata") if index.is_file() else None
    size = metadata.get("total_size") if isinstance(metadata, dict) else None
    if isinstance(size, bool) or not isinstance(size, int | float) or not size > 0:
        return shape
    known = shape.weights
    parts = [replace(part, nbytes=round(part.nbytes * size / known.total_bytes)) for part in known.parts]
    source = f"{size:,.0f} bytes by {INDEX}, their parts reckoned from config.json"
    return replace(shape, weights=sum_weights(parts, known.num_experts, known.experts_used, source))


def _weights(config: dict[str, Any], tensors: dict[str, SafeTensor]) -> Weights:
    inner = text_part(config)[0]
    names = ("num_local_experts", "num_experts", "n_routed_experts")
    count = next((int(inner[name]) for name in names if inner.get(name)), 0)
    used = int(inner.get("num_experts_per_tok") or inner.get("num_experts_per_token") or 0)
    tied = not any(name.endswith("lm_head.weight") for name in tensors)
    bits, ordered = _packed_bits(inner), _ordered(inner, tensors)
    parts = (_part(name, tensor, tensors, tied, bits, ordered) for name, tensor in tensors.items())
    return sum_weights(parts, count, used, "the safetensors headers")


def _part(
    name: str, tensor: SafeTensor, tensors: dict[str, SafeTensor], tied: bool, packed_bits: int, ordered: Set[str]
) -> Part:
    elements = _elements(name, tensor, tensors, packed_bits)
    kind, bits, half, stem = tensor.dtype, 0, True, name.rpartition(".")[0]
    if not elements:
        kind = "beside"
    elif elements > prod(tensor.shape):
        kind, bits = "codes", 8 * tensor.nbytes // elements
        scales = tensors.get(f"{stem}.scales")
        half = scales is None or scales.dtype == "F16"
    role = "vector" if len(tensor.shape) == 1 else "matrix"
    if "embed_tokens." in name:
        role = "tied" if tied else "table"
    elif "embed_tokens_per_layer." in name:
        role = "table"
    if role == "matrix" and _ROUTER.search(name):
        role = "router"
    in_order = kind != "codes" or stem not in ordered
    return Part(kind, elements, tensor.nbytes, role, bool(_EXPERT.search(name)), bits, half, not in_order)


def _ordered(config: dict[str, Any], tensors: dict[str, SafeTensor]) -> Set[str]:
    """Matrices whose columns may be in the order of activations."""
    if not (config.get("quantization_config") or {}).get("desc_act", True):
        return frozenset()
    return {name.rpartition(".")[0] for name in tensors if name.endswith(_ORDERS)}


def _packed_bits(config: dict[str, Any]) -> int:
    """Bits of a code in AWQ's, GPTQ's and compressed-tensors' words, by the configuration."""
    given = config.get("quantization_config") or {}
    groups = (given.get("config_groups") or {}).values()
    return int(given.get("bits") or next((group["weights"]["num_bits"] for group in groups if group.get("weights")), 4))


def _elements(name: str, tensor: SafeTensor, tensors: dict[str, SafeTensor], packed_bits: int) -> int:
    """Weights in a tensor: packed words count as what they hold, scales and what else belongs to them as nothing."""
    stem, _, part = name.rpartition(".")
    if part in ("qweight", "weight_packed"):
        return 32 * prod(tensor.shape) // packed_bits
    if part in _BESIDE or (part == "scales" and f"{stem}.qweight" in tensors):
        return 0
    if part.endswith("_blocks") and f"{name.removesuffix('_blocks')}_scales" in tensors:  # gpt-oss: two in a byte
        return 2 * prod(tensor.shape)
    if part.endswith("_scales") and f"{name.removesuffix('_scales')}_blocks" in tensors:
        return 0
    packed = tensors.get(f"{stem}.weight")
    if part in ("scales", "biases") and packed is not None and packed.dtype == "U32":
        return 0
    scales = tensors.get(f"{stem}.scales")
    if part == "weight" and tensor.dtype == "U32" and scales is not None:
        return 32 * prod(tensor.shape) // _bits(tensor, scales)
    return prod(tensor.shape)


def _bits(words: SafeTensor, scales: SafeTensor) -> int:
    """Bits a weight: those that make the group one of MLX's sizes; of several the likeliest."""
    group_bits = 32 * words.shape[-1] // scales.shape[-1]
    return next((b for b in (4, 8, 6, 3, 5, 2) if group_bits % b == 0 and group_bits // b in (64, 32, 128, 16)), 4)


def _renamed(shape: ModelShape, name: str) -> ModelShape:
    return replace(shape, name=name)
