"""What a row may depend on: itself. Also embeddings, which read the same tiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from cpu_weights import EXACT_GGML, KINDS, expected, ggml_weight, mlx_weight, random_weight

from bireme.backends.cpu.qembedding import QuantizedEmbedding
from bireme.backends.cpu.qlinear import QuantizedLinear
from bireme.backends.cpu.threads import pool


@pytest.fixture
def threads() -> Iterator[None]:
    """Leave the pool as it was."""
    before = pool().threads
    yield
    pool().resize(before)


def layer_and_rows(kind: str, rows: int = 70, columns: int = 512) -> tuple[QuantizedLinear, torch.Tensor]:
    rng = np.random.default_rng(11)
    layer = QuantizedLinear([random_weight(kind, 44, columns, rng)])
    return layer, torch.from_numpy(rng.normal(0, 1, (rows, columns)).astype(np.float32))


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_alone_is_the_row_in_any_batch(kind: str) -> None:
    layer, x = layer_and_rows(kind)
    together = layer(x)
    for row in range(len(x)):
        assert torch.equal(layer(x[row : row + 1])[0], together[row])
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
    assert torch.equal(layer(x[order]), together[order])
    for start, stop in ((0, 3), (1, 6), (5, 70), (2, 67)):
        assert torch.equal(layer(x[start:stop]), together[start:stop])


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_threads_change_nothing(count: int, threads: None) -> None:
    layer, x = layer_and_rows("Q4_1", rows=130)
    pool().resize(1)
    alone = layer(x)
    pool().resize(count)
    for _ in range(20):
        assert torch.equal(layer(x), alone)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q6_K", "Q8_0"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf"), -float("inf")])
def test_a_broken_row_breaks_itself_only(kind: str, poison: float) -> None:
    layer, x = layer_and_rows(kind, rows=9)
    clean = layer(x)
    x[4, 77] = poison
    broken = layer(x)
    assert broken[4].isnan().all()
    others = [row for row in range(9) if row != 4]
    assert torch.equal(broken[others], clean[others])


def test_zeros_specks_and_giants() -> None:
    layer, x = layer_and_rows("Q4_1", rows=4)
    x[0], x[1], x[2] = 0.0, x[1] * 1e-37, x[2] * 1e30
    y = layer(x)
    assert not y[0].any() and not y[1].any()
    wanted, size = expected(x[2:].numpy(), layer.dequantize())
    assert np.all(np.abs(y[2:].numpy() - wanted) <= 1e-5 * size)


def test_no_rows_and_given_room() -> None:
    layer, x = layer_and_rows("Q4_0", rows=6)
    assert layer(x[:0]).shape == (0, 44)
    room = torch.full((6, 44), float("nan"))
    assert layer(x, room) is room
    assert torch.equal(room, layer(x))
    strided = torch.cat((x, x), dim=1)[:, :512]
    assert torch.equal(layer(strided), room)


@pytest.mark.parametrize("kind", EXACT_GGML)
def test_embedding_rows_are_exact(kind: str) -> None:
    weight = ggml_weight(kind, 101, 256, np.random.default_rng(12))
    table = QuantizedEmbedding(QuantizedLinear([weight]))
    ids = torch.tensor([0, 100, 7, 7, 8, 55] * 20)
    np.testing.assert_array_equal(table(ids).numpy(), weight.dequantize()[ids.numpy()])
    assert table(ids[:0]).shape == (0, 256)


def test_embedding_of_a_width_that_is_no_whole_group() -> None:
    weight = mlx_weight(4, 16, 9, 48, np.random.default_rng(13))
    rows = QuantizedEmbedding(QuantizedLinear([weight]))(torch.tensor([8, 0]))
    np.testing.assert_array_equal(rows.numpy(), weight.dequantize()[[8, 0]])
    assert rows.is_contiguous()


def test_embedding_refuses_ids_outside_and_layers_of_parts() -> None:
    rng = np.random.default_rng(14)
    table = QuantizedEmbedding(QuantizedLinear([ggml_weight("Q4_0", 9, 32, rng)]))
    for bad in (-1, 9):
        with pytest.raises(IndexError, match=f"token id {bad} is outside the embedding of 9 rows"):
            table(torch.tensor([0, bad]))
    with pytest.raises(ValueError, match="2 parts"):
        QuantizedEmbedding(QuantizedLinear([ggml_weight(kind, 8, 32, rng) for kind in ("Q4_0", "Q8_0")]))
