"""Bytes that one decode step of the MLX backend moves, counted: gathered keys (level 0) beside paged ones (level 1).

``python -m bireme.bench.mlx_traffic`` prints the table of docs/metal.md, for half-precision and for int8 caches. It is
arithmetic: what kernels ask memory for, each byte once for each kernel that reads or writes it; caches and the smaller
kernels of MLX are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..backends.mlx.metal.attention import Geometry, make_spans
from ..core.memory import kv_element_bytes
from ..models.config import ModelConfig

QWEN3_8B = ModelConfig(
    architecture="qwen3",
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=12288,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    max_position=40960,
    rms_norm_eps=1e-6,
    qk_norm=True,
)
BLOCK = 16
HALF = 2  # bytes of an activation, key or value
INDEX = 4
#: Of the table's pairs of columns.
KV_CACHE_DTYPES = ("auto", "int8")


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one step, all layers."""

    weights: float  # read once
    pool_read: float  # keys and values where they lie
    gather_write: float  # their copies
    gather_read: float
    index: float  # which to read: slots, tables, items
    partial: float  # spans' results, written and read

    @property
    def attention(self) -> float:
        """All but the weights."""
        return self.pool_read + self.gather_write + self.gather_read + self.index + self.partial

    @property
    def total(self) -> float:
        return self.weights + self.attention


def matrix_elements(config: ModelConfig) -> int:
    """Weights that every token is multiplied with; the embedding is a look-up."""
    attention = config.hidden_size * config.head_dim * (2 * config.num_heads + 2 * config.num_kv_heads)
    mlp = 3 * config.hidden_size * config.intermediate_size
    return config.num_layers * (attention + mlp) + config.vocab_size * config.hidden_size


def weight_bytes(config: ModelConfig, bits: float) -> float:
    return matrix_elements(config) * bits / 8


def gathered(config: ModelConfig, sequences: int, context: int, bits: float, kv_cache_dtype: str = "auto") -> Traffic:
    """Level 0: take the rows of each KV head out of the pool, then attend to the copy. Codes and scales are copied as
    they are, and the copies made half-precision values."""
    keys = sequences * context * config.num_layers
    elements = keys * 2 * config.num_kv_heads * config.head_dim
    stored, values = elements * kv_element_bytes(kv_cache_dtype, config.head_dim, HALF), elements * HALF
    copies, pools = (values, 2) if kv_cache_dtype == "auto" else (stored + values, 4)
    rows = keys * pools * config.num_kv_heads * INDEX  # read for each pool again
    return Traffic(weight_bytes(config, bits), stored, copies, copies, rows, 0)


def paged(config: ModelConfig, sequences: int, context: int, bits: float, kv_cache_dtype: str = "auto") -> Traffic:
    """Level 1: the kernel of ``paged_attention.metal`` and, where contexts are split, the one that joins."""
    scaled = kv_cache_dtype != "auto"
    shape = Geometry(config.num_heads, config.num_kv_heads, config.head_dim, BLOCK, "float16", scaled)
    positions = np.full(sequences, context - 1, np.int32)
    spans = make_spans(np.arange(sequences, dtype=np.int32), positions, None, shape.threadgroups)
    reads = config.num_heads // config.num_kv_heads // shape.tile  # threadgroups that share a KV head
    elements = sequences * context * config.num_layers * 2 * config.num_kv_heads * config.head_dim * reads
    stored = elements * kv_element_bytes(kv_cache_dtype, config.head_dim, HALF)
    tables = sequences * -(-context // BLOCK) * INDEX * shape.threadgroups
    items = spans.count * 4 * INDEX * shape.threadgroups
    partial = spans.count * config.num_heads * (config.head_dim + 1) * 4 * 2 if spans.split else 0
    index, joined = (config.num_layers * each for each in (tables + items, partial))
    return Traffic(weight_bytes(config, bits), stored, 0, 0, index, joined)


def attention_flops(config: ModelConfig, sequences: int, context: int) -> int:
    """Multiplications and additions of the attention's two products."""
    return sequences * context * config.num_layers * config.num_heads * config.head_dim * 4


def table(config: ModelConfig = QWEN3_8B, sequences: int = 20, context: int = 4096, bits: float = 5) -> str:
    """As Markdown, in GB. ``bits``: of a weight with its share of scale and bias; 4 in groups of 32 are 5."""
    found = [count(config, sequences, context, bits, kv) for kv in KV_CACHE_DTYPES for count in (gathered, paged)]
    lines = [
        "| GB per step | level 0: gather | level 1: paged | level 0, int8 | level 1, int8 |",
        "|---|---|---|---|---|",
    ]
    for name, of in (
        ("weights", "weights"),
        ("keys and values read in the pool", "pool_read"),
        ("their copies written", "gather_write"),
        ("their copies read", "gather_read"),
        ("slots, tables, items", "index"),
        ("spans written and read", "partial"),
        ("attention in all", "attention"),
        ("all", "total"),
    ):
        lines.append(" | ".join((f"| {name}", *(f"{getattr(each, of) / 1e9:.2f}" for each in found))) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table())
