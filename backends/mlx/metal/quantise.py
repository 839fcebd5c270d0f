"""Keys and values as int8 codes with a scale per token and head, in one launch."""

from __future__ import annotations

import functools
from typing import Any

from .kernel import Kernel, Launch, dtype_name

#: The least scale, a normal float32.
LEAST_SCALE = 2.0**-126


@functools.cache
def quantise_kernel(kv_heads: int, head_dim: int, dtype: str) -> Kernel:
    constants = (("T", dtype), ("KV_HEADS", kv_heads), ("HEAD_DIM", head_dim), ("LEAST_SCALE", LEAST_SCALE))
    return Kernel(("quantise",), ("k", "v"), ("k_codes", "v_codes", "k_scales", "v_scales"), constants)


def quantise_launch(tokens: int, kv_heads: int, head_dim: int, dtype: str) -> Launch:
    """The launch of ``quantise``: its inputs are k, v."""
    codes, scales = ((tokens, kv_heads, head_dim), "int8"), ((tokens, kv_heads), "float32")
    kernel = quantise_kernel(kv_heads, head_dim, dtype)
    return Launch(kernel, (32, 2 * kv_heads, tokens), (32, 1, 1), (codes, codes, scales, scales))


def quantise_heads(k: Any, v: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """``k`` and ``v`` [T, KV, hd]: codes int8 and scales float32 [T, KV] of each.

    Only where ``kernel.available()``.
    """
    tokens, kv_heads, head_dim = k.shape
    k_codes, v_codes, k_scales, v_scales = quantise_launch(tokens, kv_heads, head_dim, dtype_name(k.dtype)).run(k, v)
    return (k_codes, k_scales), (v_codes, v_scales)
