"""The fitted cost of a step, and chunks sized by it."""

from __future__ import annotations

import random

import pytest

from bireme.core.chunks import ChunkBudget
from bireme.core.cost import CostModel

TRUE = (0.004, 0.0003, 2e-7)


def seconds(tokens: int, pairs: int) -> float:
    base, per_token, per_pair = TRUE
    return base + per_token * tokens + per_pair * pairs


def fitted(noise: float = 0.0, outliers: float = 0.0, seed: int = 0) -> CostModel:
    rng = random.Random(seed)
    model = CostModel()
    for _ in range(600):
        tokens = rng.choice([1, 4, 16, 64, 300, 1000])
        pairs = tokens * rng.choice([10, 500, 4000])
        measured = seconds(tokens, pairs) * rng.uniform(1 - noise, 1 + noise)
        if rng.random() < outliers:
            measured *= 50
        model.observe(tokens, pairs, measured)
    return model


@pytest.mark.parametrize(("noise", "outliers", "error"), [(0.0, 0.0, 0.02), (0.2, 0.0, 0.15), (0.1, 0.03, 0.35)])
def test_the_fit_predicts(noise: float, outliers: float, error: float) -> None:
    model = fitted(noise, outliers)
    for tokens, pairs in ((1, 100), (32, 20_000), (500, 500_000), (1000, 2_000_000)):
        assert model.seconds(tokens, pairs) == pytest.approx(seconds(tokens, pairs), rel=error)


def test_a_first_step_that_compiled_is_soon_outweighed() -> None:
    model = CostModel()
    model.observe(2048, 2_000_000, 30.0)
    for i in range(40):
        count = min(2048, max(16, model.chunk(1.0, 0)))
        model.observe(count, count * (count + i) // 2, seconds(count, count * (count + i) // 2))
    assert model.chunk(1.0, 0) > 1000


def test_a_long_time_of_decoding_forgets_nothing_about_prompts() -> None:
    model = fitted()
    for i in range(5000):
        model.observe(4, 2000 + i % 50, seconds(4, 2000))
    assert model.seconds(800, 400_000) == pytest.approx(seconds(800, 400_000), rel=0.05)


def test_it_follows_a_machine_that_becomes_slower() -> None:
    model = fitted()
    for _ in range(200):
        for tokens, pairs in ((1, 500), (16, 8000), (300, 300_000), (1000, 500_000), (1000, 4_000_000)):
            model.observe(tokens, pairs, 3 * seconds(tokens, pairs))
    assert model.seconds(300, 300_000) > 2 * seconds(300, 300_000)


@pytest.mark.parametrize("left", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("computed", [0, 1000, 100_000])
def test_a_chunk_is_the_largest_that_fits(left: float, computed: int) -> None:
    model = CostModel()
    model.base, model.per_token, model.per_pair = TRUE
    count = model.chunk(left, computed)

    def added(n: int) -> float:
        return TRUE[1] * n + TRUE[2] * (n * computed + n * n / 2)

    assert added(count) <= left * (1 + 1e-9) and added(count + 1) > left


def test_nonsense_is_ignored() -> None:
    model = CostModel(0.5)
    model.observe(0, 0, 1.0)
    model.observe(5, 5, float("nan"))
    model.observe(5, 5, float("inf"))
    model.observe(5, 5, -1.0)
    assert model.seconds(2, 0) == 1.0
    assert model.chunk(0.0, 0) == model.chunk(-1.0, 0) == 0


def test_free_tokens_are_bounded() -> None:
    model = CostModel()
    model.base = model.per_token = model.per_pair = 0.0
    assert model.chunk(1.0, 10) == 2**31


def test_the_budget_is_two_sided() -> None:
    cost = CostModel(0.001)
    rich = ChunkBudget(cost, 2048, 1e6, 16)
    assert rich.grant(0, 5000) == 2048 and not rich.is_open()
    timed = ChunkBudget(cost, 2048, 0.1, 16)
    assert timed.grant(0, 60) == 60 and timed.is_open()
    assert timed.grant(0, 60) in (39, 40) and timed.grant(0, 60) == 1 and not timed.is_open()
    poor = ChunkBudget(cost, 2048, -5.0, 16)
    assert poor.is_open() and poor.grant(0, 10) == 10
    assert poor.is_open() and poor.grant(0, 10) == 6 and not poor.is_open()
