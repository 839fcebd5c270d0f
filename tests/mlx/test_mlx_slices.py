"""Rows that are sampled, and tokens that are scored, a few at a time: as all at once, in bounded memory."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from backend_kinds import load
from numpy.typing import NDArray
from steps import ids

from bireme.backends.mlx import work
from bireme.backends.mlx.library import Array, mx
from bireme.backends.mlx.rehearsal import extra_bytes
from bireme.backends.mlx.sampled import Sampled
from bireme.backends.mlx.sampler import Sampler
from bireme.backends.mlx.work import SAMPLED, SLICE_BYTES, sampled_at_once, scored_at_once, work_bytes
from bireme.backends.trial_steps import GREEDY, WIDEST
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import Request, SamplingParams
from bireme.core.step import RowInit, StepMasks
from bireme.models.config import ModelConfig

VOCAB, ROWS, STEPS = 320, 12, 4
MIXED = (
    GREEDY,
    SamplingParams(temperature=1.0),
    WIDEST,
    SamplingParams(temperature=1.3, top_p=0.8, logprobs=2),
    SamplingParams(temperature=0.0, presence_penalty=1.5, frequency_penalty=0.5),
    SamplingParams(temperature=0.7, top_k=5, min_p=0.05),
    SamplingParams(temperature=0.0, logit_bias={7: 50.0}, logprobs=0),
)


def in_slices_of(monkeypatch: pytest.MonkeyPatch, rows: int, vocab: int = VOCAB) -> None:
    monkeypatch.setattr(work, "SLICE_BYTES", rows * SAMPLED * vocab)
    assert sampled_at_once(vocab) == rows


def masks(random: np.random.Generator) -> StepMasks:
    """Of some samples; each allows about a third of the tokens."""
    index = np.sort(random.choice(ROWS, 5, replace=False)).astype(np.int64)
    bits = random.integers(0, 1 << 32, (5, VOCAB // 32), np.uint32) & random.integers(0, 1 << 32, (5, 10), np.uint32)
    return StepMasks(index, bits.view(np.int32))


def drawn(dtype: Array, masked: bool) -> list[Sampled]:
    """What some steps draw: rows in a new order each, one of them with NaN."""
    sampler, random, found = Sampler(ROWS, VOCAB), np.random.default_rng(1), []
    for row in range(ROWS):
        sampler.begin(RowInit(row, MIXED[row % len(MIXED)], seed=row, prompt_ids=(1, 2), end_ids=(0,)))
    for step in range(STEPS):
        logits = random.normal(size=(ROWS, VOCAB)).astype(np.float32) * 4
        logits[step] = np.nan
        rows = random.permutation(ROWS).astype(np.int32)
        where = np.full(ROWS, 9 + step, np.int64)
        found.append(sampler.sample(mx.array(logits).astype(dtype), rows, where, masks(random) if masked else None))
        mx.eval([*sampler.arrays, *found[-1].arrays])
    return found


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
def test_slices_draw_what_all_rows_together_draw(monkeypatch, dtype, masked):
    """Penalties count on from step to step; log-probabilities keep to the rows that asked."""
    wanted = drawn(dtype, masked)
    assert sampled_at_once(VOCAB) >= ROWS and len(np.unique(np.array(wanted[1].tokens))) > 3
    for size in (1, 5, 11):
        in_slices_of(monkeypatch, size)
        for found, whole in zip(drawn(dtype, masked), wanted, strict=True):
            assert whole.logprobs is not None and found.logprobs is not None
            np.testing.assert_array_equal(found.logprobs.asked, whole.logprobs.asked)
            for one, other in zip(found.arrays, whole.arrays, strict=True):
                np.testing.assert_array_equal(np.array(one), np.array(other))


def test_rows_that_want_no_log_probabilities_leave_none(monkeypatch):
    """In a slice of their own, and in all slices."""
    for asking in (2, None):
        in_slices_of(monkeypatch, 2)
        sampler = Sampler(6, VOCAB)
        for row in range(6):
            params = SamplingParams(temperature=1.0, logprobs=asking if row == 3 else None)
            sampler.begin(RowInit(row, params, seed=row, prompt_ids=(1,)))
        found = sampler.sample(mx.zeros((6, VOCAB)), np.arange(6, dtype=np.int32), np.zeros(6, np.int64)).logprobs
        assert (found is None) == (asking is None)
        assert found is None or (found.asked.tolist() == [3] and found.top_ids.shape == (1, 2))


def sampling_bytes(rows: int, vocab: int, params: SamplingParams, dtype: Array) -> int:
    """What sampling ``rows`` takes, their logits and what is kept of their tokens included."""
    sampler, logits = Sampler(rows, vocab), mx.random.normal((rows, vocab)).astype(dtype)
    mx.eval(logits)

    def sample() -> None:
        for row in range(rows):
            sampler.begin(RowInit(row, params, seed=row, prompt_ids=(0,), end_ids=(0,)))
        sampled = sampler.sample(logits * 1.0, np.arange(rows, dtype=np.int32), np.full(rows, 9, np.int64))
        mx.eval([*sampler.arrays, *sampled.arrays])

    return extra_bytes(sample)


def planned_bytes(rows: int, vocab: int) -> int:
    """What a plan says that it takes."""
    model, engine = ModelConfig("llama", vocab, 64, 96, 1, 4, 2, 16, 64, 1e-5), EngineConfig(max_num_seqs=rows)
    least = EngineConfig(max_num_seqs=1)
    other = work_bytes(replace(model, vocab_size=1), least, 4) - work.LOGIT - work.COUNTS - SAMPLED
    return work_bytes(model, engine, 4) - other


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16])
@pytest.mark.parametrize("params", [WIDEST, GREEDY, SamplingParams(temperature=1.0, logprobs=20)])
@pytest.mark.parametrize("at_once", [4, 16])
def test_sampling_over_a_large_vocabulary_stays_within_what_is_planned(monkeypatch, at_once, params, dtype):
    """Rows that ask for everything at once: where the vocabulary is large, this is most of a step's work memory."""
    rows, vocab = 12, 1 << 15
    in_slices_of(monkeypatch, at_once, vocab)
    taken, planned = sampling_bytes(rows, vocab, params, dtype), planned_bytes(rows, vocab)
    assert planned == rows * vocab * (work.LOGIT + work.COUNTS) + min(rows, at_once) * SAMPLED * vocab
    assert taken < planned
    if params is WIDEST:
        assert taken > planned / 2


def test_what_is_planned_stops_growing():
    """Gemma 3's vocabulary: the rows' logits and counts grow, what they are drawn in does not."""
    plans = [planned_bytes(rows, 262_144) for rows in (1, 8, 64, 65)]
    assert plans[1] - plans[0] == 7 * 262_144 * (4 + 5 + 96)
    assert plans[3] - plans[2] == 262_144 * (4 + 5) and plans[2] < 64 * 262_144 * (4 + 5) + SLICE_BYTES
    assert plans[2] < 410 << 20


def scores(path: Path) -> NDArray[np.float32]:
    config = EngineConfig(max_num_seqs=2, kv_cache_memory=1 << 20, max_num_batched_tokens=100)
    engine = Engine(load("mlx", path, config), config)
    engine.add(Request("one", tuple(ids(70)), SamplingParams(max_tokens=3, temperature=0.0, prompt_logprobs=2)))
    found = []
    while engine.has_work():
        for output in engine.step():
            found += [[one.logprob, *one.top_logprobs] for one in output.prompt_logprobs or ()]
    engine.close()
    return np.array(found)


def test_tokens_are_scored_a_few_at_a_time(tiny, monkeypatch):
    """No more together than sampling takes memory for, and with the same result."""
    assert scored_at_once(VOCAB, 64) == 64 > scored_at_once(VOCAB, 2) == 2 * SAMPLED // work.SCORED
    assert scored_at_once(262_144, 64) * 262_144 * work.SCORED <= SLICE_BYTES
    wanted = scores(tiny("llama").folder)
    assert wanted.shape == (69, 3)
    in_slices_of(monkeypatch, 1)
    assert scored_at_once(VOCAB, 2) == 4
    np.testing.assert_allclose(scores(tiny("llama").folder), wanted, atol=1e-5)
