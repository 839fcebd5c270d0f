"""Random traffic over tiny pools: 200,000 steps, each checked, every token compared with the oracle."""

from __future__ import annotations

import random

import pytest
from simulation import Simulation

from bireme.backends.sim import SimOptions
from bireme.core.config import EngineConfig
from bireme.core.request import RequestRejectedError, SamplingParams

STEPS_EACH = 20_000
SEEDS = range(10)


def test_the_soak_is_long_enough() -> None:
    assert STEPS_EACH * len(SEEDS) >= 200_000


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
def test_soak(seed: int) -> None:
    rng = random.Random(seed)
    steps = 0
    while steps < STEPS_EACH:
        steps += episode(rng)
    assert steps >= STEPS_EACH


def episode(rng: random.Random) -> int:
    """One engine's life: some tens of requests in bursts, aborts at any moment, until all have ended."""
    simulation = Simulation(*settings(rng))
    left = rng.randint(5, 60)
    rate = rng.choice([0.05, 0.2, 1.0])
    heads = [tuple(rng.randrange(5, 12) for _ in range(rng.randint(1, 40))) for _ in range(3)]
    live: list[str] = []
    while left or simulation.engine.has_work():
        if left and rng.random() < rate:
            left -= 1
            live += submit(rng, simulation, heads)
        if live and rng.random() < 0.01:
            simulation.abort(live.pop(rng.randrange(len(live))))
        simulation.step()
        assert simulation.num_steps < 50_000
    stats = simulation.finish()
    seqs = sum(stats.finished.values())
    assert stats.preemptions <= 6 * seqs + 6, "sequences are preempted again and again"
    return simulation.num_steps


def settings(rng: random.Random) -> tuple[SimOptions, EngineConfig]:
    size = rng.choice([1, 2, 3, 4, 8, 16])
    rows = rng.randint(1, 8)
    options = SimOptions(
        num_blocks=max(2, rng.randint(24, 200) // size),
        block_size=size,
        vocab_size=40,
        max_model_len=rng.choice([48, 200]),
        end_ids=frozenset({1, 2}),
        max_in_flight=rng.choice([1, 2]),
        step_seconds=rng.choice([0.0001, 0.05]),
        nan_token=4,
    )
    config = EngineConfig(
        block_size=size,
        max_num_seqs=rows,
        max_num_batched_tokens=rows + rng.choice([0, 3, 16, 64]),
        max_stall_ms=rng.choice([1.0, 60.0, 1e6]),
        enable_prefix_caching=rng.random() < 0.75,
    )
    return options, config


def submit(rng: random.Random, simulation: Simulation, heads: list[tuple[int, ...]]) -> list[str]:
    head = rng.choice(heads)
    prompt = head[: rng.randint(0, len(head))] + tuple(rng.randrange(5, 12) for _ in range(rng.randint(1, 12)))
    if rng.random() < 0.02:
        prompt += (4,)
    params = SamplingParams(
        max_tokens=rng.choice([1, 2, 5, 20, 60, None]),
        min_tokens=rng.choice([0, 0, 3]),
        temperature=rng.choice([0.0, 1.0]),
        n=rng.choice([1, 1, 1, 2, 4]),
        stop_token_ids=rng.choice([(), (3,)]),
        ignore_eos=rng.random() < 0.1,
        logprobs=rng.choice([None, None, 0, 2]),
    )
    try:
        user, salt = rng.choice("abc"), rng.choice(["", "", "x"])
        return [simulation.add(prompt, params, user=user, priority=rng.choice([0, 0, 1]), salt=salt)]
    except RequestRejectedError as error:
        assert error.code in ("context_length_exceeded", "kv_cache_exceeded")
        assert str(len(prompt)) in str(error)
        return []
