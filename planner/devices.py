"""How Bireme's own backends hold a model: which encoding each tensor takes, the K and V, and a step's work memory."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from ..core.config import EngineConfig
from ..core.memory import KV_TYPES, SCALED_KV, buffer_bytes
from ..models.ggml_types import DENSE
from .shape import ModelShape, Part, sum_weights

#: Bits a weight that differ from the file's own, scales included. A test compares each with what the backend makes.
_CPU = {
    **{"Q8_0": 8.5, "IQ4_NL": 8.5, "IQ4_XS": 9, "MXFP4": 9, "F8_E4M3": 9, "Q6_K": 8},
    **{"Q5_K": 7, "Q4_K": 6, "Q3_K": 5, "Q2_K": 6},
    **dict.fromkeys(DENSE, 9.0),
}
_CUDA = {"Q3_K": 3.5625, "Q4_K": 4.625, "Q5_K": 5.625, "IQ4_XS": 4.3125}
_MLX = {"Q4_0": 5, "Q4_1": 5, "Q4_K": 5, "Q5_0": 6, "Q5_1": 6, "Q5_K": 6, "Q8_0": 9, "F8_E4M3": 9}
#: Of experts, whose matrices MLX multiplies in no form but its own.
_MLX_EXPERTS = dict.fromkeys(("Q2_K", "Q3_K", "Q6_K", "IQ4_NL", "IQ4_XS"), 9.0)
#: Names of types of K and V.
_HALF, _FLOAT = ("f16", "float16", "bf16", "bfloat16"), ("f32", "float32")
_ON_CPU = ("f16", "float16", *_FLOAT, "int8")
#: What is never kept quantised.
_DECODED = ("vector", "router")


@dataclass(frozen=True, slots=True)
class Form:
    """What a device keeps. Where nothing is said, the file's bytes."""

    kv: str = "f16"  # type of K and V where none is asked for
    kv_types: tuple[str, ...] = KV_TYPES  # that it can keep
    dense: float | None = None  # bytes of a value of dense tensors, quantised ones among ``all_dense``
    all_dense: bool = False
    bits: Mapping[str, float] | None = None  # of a weight, by the type in the file
    expert_bits: Mapping[str, float] | None = None  # of an expert's, where it differs


FORMS: dict[str, Form] = {
    "any": Form(),
    "mlx": Form("f16", (*_HALF, "int8"), dense=2, bits=_MLX, expert_bits=_MLX_EXPERTS),
    "mlx-linux": Form("f32", (*_FLOAT, "int8"), dense=4, all_dense=True),
    "cuda": Form("bf16", (*_HALF, *SCALED_KV), dense=2, bits=_CUDA),
    "cpu": Form("f16", _ON_CPU, bits=_CPU),
    "cpu-exact": Form("f32", _ON_CPU, dense=4, all_dense=True),
}


def held_on(model: ModelShape, device: str) -> ModelShape:
    """``model`` as ``device`` keeps it in memory: its weights, and of windowed layers every token."""
    if device == "any":
        return model
    model = replace(model, layers=tuple(replace(layer, window=None, sees=layer.window) for layer in model.layers))
    if not model.weights.parts:
        return model
    known = model.weights
    parts = [replace(part, nbytes=round(held_bytes(part, device))) for part in known.parts]
    held = sum_weights(parts, known.num_experts, known.experts_used, f"{known.source}, as {device} holds them")
    return replace(model, weights=held)


def held_bytes(part: Part, device: str) -> float:
    """Bytes that ``part`` takes on ``device``."""
    form = FORMS[device]
    if form.all_dense:
        return part.elements * (form.dense or 0)
    if device == "cpu":
        return _on_cpu(part)
    if part.kind in DENSE or part.role in _DECODED:
        return part.nbytes if form.dense is None else part.elements * form.dense
    bits = (form.expert_bits or {}).get(part.kind) if part.expert else None
    bits = bits or (form.bits or {}).get(part.kind)
    return part.nbytes if bits is None else part.elements * bits / 8


def _on_cpu(part: Part) -> float:
    """Norms and routers are float32; a table that only rows are read of stays in the mapped file, and so does a dense
    one beside the head's 8 bits; packed integers keep their codes, with scales for every 32, but for experts' whose
    columns are in an order of their own: those are rounded to 8 bits."""
    if part.role in _DECODED:
        return 4.0 * part.elements
    if part.role == "table":
        return part.nbytes
    if part.kind == "beside":
        return 0.0
    if part.kind == "codes" and part.ordered and part.expert:
        return part.elements * _CPU["F32"] / 8
    if part.kind == "codes":
        return part.elements * (part.bits + (1 if part.half else 2)) / 8
    bits = _CPU.get(part.kind)
    packed = part.nbytes if bits is None else part.elements * bits / 8
    return packed + (part.nbytes if part.role == "tied" and part.kind in DENSE else 0)


def work_bytes(model: ModelShape, device: str, engine: EngineConfig) -> int:
    """The most that a step of ``engine`` holds beside weights and cache, as the device's backend reckons it before it
    measures; 0 where the layers' shape is not known."""
    if model.config is None:
        return 0
    if device in ("mlx", "mlx-linux"):
        from ..backends.mlx.work import work_bytes as on_mlx

        return on_mlx(model.config, engine, 2 if device == "mlx" else 4)
    tokens, rows = engine.max_num_batched_tokens, engine.max_num_seqs
    if device == "cuda":
        from ..backends.cuda.memory import SAMPLER_BYTES

        return buffer_bytes(model.config, tokens, rows, 2, 2 + SAMPLER_BYTES)
    return buffer_bytes(model.config, tokens, rows)
