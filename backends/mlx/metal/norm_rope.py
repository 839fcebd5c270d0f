"""Query and key heads normed and turned in one launch."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

from .kernel import Kernel, Launch, dtype_name


@dataclass(frozen=True, slots=True)
class Heads:
    """What a model fixes. ``pairs``: elements that turn with another; ``norm``: dtype of the norms' weights."""

    heads: int
    kv_heads: int
    head_dim: int
    pairs: int
    dtype: str
    norm: str | None  # None: heads are not normed
    eps: float


@functools.cache
def norm_rope_kernel(shape: Heads) -> Kernel:
    constants = (
        ("T", shape.dtype),
        ("W", shape.norm or shape.dtype),
        ("HEADS", shape.heads),
        ("KV_HEADS", shape.kv_heads),
        ("HEAD_DIM", shape.head_dim),
        ("PAIRS", shape.pairs),
        ("NORMED", int(shape.norm is not None)),
        ("EPS", float(shape.eps)),
    )
    norms = ("q_norm", "k_norm") if shape.norm is not None else ()
    return Kernel(("norm_rope",), ("qkv", "cosines", "sines", *norms), ("q", "k"), constants)


def norm_rope_launch(shape: Heads, tokens: int) -> Launch:
    """The launch of ``norm_rope``: its inputs are qkv, cosines, sines, and the norms' weights where there are some."""
    outputs = tuple(((tokens, heads, shape.head_dim), shape.dtype) for heads in (shape.heads, shape.kv_heads))
    return Launch(norm_rope_kernel(shape), (32, shape.heads + shape.kv_heads, tokens), (32, 1, 1), outputs)


def norm_rope(
    qkv: Any, rotation: Any, heads: int, q_norm: Any | None, k_norm: Any | None, eps: float
) -> tuple[Any, Any]:
    """``qkv`` [T, H + 2 KV, hd]; ``rotation``: a ``rope.Rotation``. Returns q [T, H, hd] and k [T, KV, hd].

    Only where ``kernel.available()``.
    """
    tokens, all_heads, dim = qkv.shape
    normed = q_norm is not None and k_norm is not None
    norm = dtype_name(q_norm.dtype) if q_norm is not None and normed else None
    shape = Heads(heads, (all_heads - heads) // 2, dim, rotation.half, dtype_name(qkv.dtype), norm, eps)
    turn = (rotation.cos.reshape(tokens, dim), rotation.sin.reshape(tokens, dim))
    q, k = norm_rope_launch(shape, tokens).run(qkv, *turn, *((q_norm, k_norm) if normed else ()))
    return q, k
