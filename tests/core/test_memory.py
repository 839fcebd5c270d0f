"""KV bytes and the memory plan."""

from __future__ import annotations

import pytest

from bireme.core.memory import MemoryPlan, buffer_bytes, kv_bytes, kv_bytes_per_token, kv_element_bytes, plan_memory
from bireme.models.config import ModelConfig


def model(layers: int, hidden: int, heads: int, kv_heads: int, head_dim: int, windows: list[int | None] | None = None):  # type: ignore[no-untyped-def]
    return ModelConfig(
        "llama",
        32000,
        hidden,
        4 * hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        131072,
        1e-5,
        windows=tuple(windows or ()),
    )


SLIDING = [None if layer % 6 == 5 else 1024 for layer in range(62)]
ALTERNATING = [128, None] * 12


@pytest.mark.parametrize(
    ("config", "context", "wanted"),
    [
        (model(32, 4096, 32, 8, 128), 8192, 1073741824),  # kv heads, not heads
        (model(28, 1024, 16, 8, 128), 32768, 3758096384),  # head_dim is not hidden / heads
        (model(32, 4096, 32, 32, 128), 4096, 2147483648),
        (model(62, 5376, 32, 16, 128, SLIDING), 131072, 11173625856),  # every sixth layer sees all
        (model(24, 2880, 64, 8, 64, ALTERNATING), 32768, 808452096),
        (model(28, 3584, 28, 4, 128), 32768, 1879048192),
    ],
)
def test_kv_bytes(config: ModelConfig, context: int, wanted: int) -> None:
    assert kv_bytes(config, context) == wanted


def test_a_window_longer_than_the_context_changes_nothing() -> None:
    full, windowed = model(4, 64, 4, 2, 16), model(4, 64, 4, 2, 16, [512] * 4)
    assert kv_bytes(windowed, 100) == kv_bytes(full, 100) == 100 * kv_bytes_per_token(full)


@pytest.mark.parametrize(("bits", "factor"), [(34 / 32, 34 / 64), (18 / 32, 18 / 64), (4.0, 2.0)])
def test_quantised_kv(bits: float, factor: float) -> None:
    config = model(32, 4096, 32, 8, 128)
    assert kv_bytes(config, 8192, bits) == 1073741824 * factor


@pytest.mark.parametrize(
    ("config", "computed", "full", "int8"),
    [
        (model(32, 4096, 32, 8, 128), 2.0, 131072, 67584),  # of half precision: 1.94 times the conversations
        (model(30, 576, 9, 3, 64), 4.0, 46080, 12240),  # of float32: 3.76 times
    ],
)
def test_int8_kv_counts_codes_and_scales(config: ModelConfig, computed: float, full: int, int8: int) -> None:
    found = [kv_bytes_per_token(config, kv_element_bytes(name, config.head_dim, computed)) for name in ("auto", "int8")]
    assert found == [full, int8]
    assert kv_element_bytes("fp8", config.head_dim, computed) == kv_element_bytes("int8", config.head_dim, computed)
    sizes = [
        plan_memory(weight_bytes=0, buffer_bytes=0, kv_bytes_per_token=x, block_size=16, available_bytes=1 << 34)
        for x in found
    ]
    assert sizes[1].conversations == pytest.approx(sizes[0].conversations * full / int8, abs=1)


def plan(available: int = 10_000, **changes: int | None) -> MemoryPlan:
    values: dict[str, int | None] = {"kv_cache_memory": None, "max_tokens": None, **changes}
    return plan_memory(
        weight_bytes=4000,
        buffer_bytes=1000,
        kv_bytes_per_token=10,
        block_size=16,
        available_bytes=available,
        **values,  # type: ignore[arg-type]
    )


def test_the_pool_takes_what_is_left_in_whole_blocks() -> None:
    result = plan()
    assert (result.num_blocks, result.kv_bytes, result.tokens) == (31, 4960, 496)
    assert result.total_bytes == 9960 <= 10_000


def test_the_pool_takes_no_more_than_can_be_used() -> None:
    assert plan(10**9, max_tokens=100).num_blocks == 7
    assert plan(10**9, max_tokens=100, kv_cache_memory=1600).num_blocks == 10


def test_conversations_are_counted_at_4096_tokens() -> None:
    assert plan(kv_cache_memory=4096 * 10 * 5 + 100).conversations == 5


@pytest.mark.parametrize(("available", "kv"), [(5100, None), (100, None), (10**9, 159)])
def test_no_room_is_an_error_with_numbers(available: int, kv: int | None) -> None:
    with pytest.raises(ValueError, match=r"one block of 16 tokens takes 160"):
        plan(available, kv_cache_memory=kv)


def test_buffers_grow_with_tokens_and_logits() -> None:
    config = model(4, 64, 4, 2, 16)
    assert buffer_bytes(config, 0, 3) == 3 * 2 * 4 * 32000
    assert buffer_bytes(config, 0, 3, 2.0, 14.0) == 3 * 14 * 32000
    assert buffer_bytes(config, 10, 0) == 10 * (4 * 64 + 3 * 256) * 4
