"""The bytes of a decode step in docs/metal.md are those that are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.bench.mlx_traffic import KV_CACHE_DTYPES, QWEN3_8B, attention_flops, gathered, matrix_elements, paged, table
from bireme.core.memory import kv_bytes_per_token, kv_element_bytes

DOCS = (Path(__file__).parents[2] / "docs" / "metal.md").read_text(encoding="utf-8")


def test_the_documents_numbers_are_the_counted_ones():
    assert table() in DOCS
    assert f"{attention_flops(QWEN3_8B, 20, 4096) / 1e9:.1f} GFLOP" in DOCS
    floors = [count(QWEN3_8B, 20, 4096, 5, kv).total / 200e6 for kv in KV_CACHE_DTYPES for count in (gathered, paged)]
    full, int8 = (
        f"{before:.0f} ms per step at level 0 and {after:.0f} ms at level 1" for before, after in pairs(floors)
    )
    assert full in DOCS and int8 in DOCS


def pairs(values: list[float]) -> list[tuple[float, float]]:
    return list(zip(values[::2], values[1::2], strict=True))


def test_counts_agree_with_the_memory_plan():
    context = 20 * 4096
    assert paged(QWEN3_8B, 20, 4096, 5).pool_read == context * kv_bytes_per_token(QWEN3_8B, 2)
    per_token = kv_bytes_per_token(QWEN3_8B, kv_element_bytes("int8", QWEN3_8B.head_dim, 2))
    assert paged(QWEN3_8B, 20, 4096, 5, "int8").pool_read == context * per_token
    assert paged(QWEN3_8B, 20, 4096, 5).attention > 1.9 * paged(QWEN3_8B, 20, 4096, 5, "int8").attention
    assert gathered(QWEN3_8B, 20, 4096, 5).attention > 2.9 * paged(QWEN3_8B, 20, 4096, 5).attention
    assert matrix_elements(QWEN3_8B) == pytest.approx(7.57e9, rel=1e-3)
    assert paged(QWEN3_8B, 64, 200, 5).partial == 0, "short contexts are not split"
