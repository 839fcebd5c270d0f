"""The bytes of a decode step in docs/metal.md are those that are counted."""

from __future__ import annotations

from pathlib import Path

import pytest

from bireme.bench.mlx_traffic import QWEN3_8B, attention_flops, gathered, matrix_elements, paged, table
from bireme.core.memory import kv_bytes_per_token

DOCS = (Path(__file__).parents[2] / "docs" / "metal.md").read_text(encoding="utf-8")


def test_the_documents_numbers_are_the_counted_ones():
    assert table() in DOCS
    before, after = (count(QWEN3_8B, 20, 4096, 5) for count in (gathered, paged))
    assert f"{attention_flops(QWEN3_8B, 20, 4096) / 1e9:.1f} GFLOP" in DOCS
    assert f"{before.total / 200e6:.0f} ms per step at level 0 and {after.total / 200e6:.0f} ms at level 1" in DOCS


def test_counts_agree_with_the_memory_plan():
    context = 20 * 4096
    assert paged(QWEN3_8B, 20, 4096, 5).pool_read == context * kv_bytes_per_token(QWEN3_8B, 2)
    assert gathered(QWEN3_8B, 20, 4096, 5).attention > 2.9 * paged(QWEN3_8B, 20, 4096, 5).attention
    assert matrix_elements(QWEN3_8B) == pytest.approx(7.57e9, rel=1e-3)
    assert paged(QWEN3_8B, 64, 200, 5).partial == 0, "short contexts are not split"
