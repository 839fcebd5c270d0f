"""Masks of what a grammar allows, on every backend: forbidden tokens count as -inf, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from automaton import chain, random_automaton
from backend_kinds import draw, load, new_sampler
from tiny_models import VOCAB as TINY_VOCAB

from bireme.backends.rows import unpack_masks
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.grammar import GrammarSpec, Mask, allow, mask_width
from bireme.core.request import FinishReason, Request, SamplingParams
from bireme.core.step import RowInit, StepMasks

VOCAB = 77  # no multiple of 32
PARAMS = (
    SamplingParams(temperature=0.0),
    SamplingParams(temperature=1.5),
    SamplingParams(temperature=1.0, top_k=3, logprobs=2),
    SamplingParams(temperature=0.7, top_p=0.5, min_p=0.1),
    SamplingParams(temperature=1.0, repetition_penalty=1.7, presence_penalty=0.5, frequency_penalty=0.5),
    SamplingParams(temperature=0.0, logit_bias={3: 100.0, 5: -100.0}),
    SamplingParams(temperature=1.0, min_tokens=4),
    SamplingParams(temperature=0.0, logprobs=0),
)
SPEC = GrammarSpec("grammar", "an automaton")


def packed(allowed: list[set[int]]) -> np.ndarray[Any, Any]:
    bits = np.zeros((len(allowed), mask_width(VOCAB)), np.int32)
    for row, ids in zip(bits, allowed, strict=True):
        allow(row, tuple(ids), True)
    return bits


def begun(device: str) -> Any:
    sampler = new_sampler(device, len(PARAMS), VOCAB)
    for row, params in enumerate(PARAMS):
        sampler.begin(RowInit(row, params, seed=row, prompt_ids=(1, 2, 3), end_ids=(0,) if params.min_tokens else ()))
    return sampler


def test_packed_masks_and_single_bits_agree() -> None:
    rng = np.random.default_rng(3)
    allowed = [set(rng.choice(VOCAB, n, replace=False).tolist()) for n in (1, 5, 40, VOCAB)]
    bits = packed(allowed)
    assert [set(np.flatnonzero(row).tolist()) for row in unpack_masks(bits, VOCAB)] == allowed
    mask: Mask = bits[2]
    allow(mask, (31, 32, 63), True)
    allow(mask, (31, 63), False)
    found = unpack_masks(mask[None], VOCAB)[0]
    assert found[32] and not found[31] and not found[63]


@pytest.mark.parametrize("seed", range(6))
def test_a_mask_is_minus_infinity(device: str, seed: int) -> None:
    """As drawing from logits in which every forbidden token has -inf; the other rows as without masks."""
    rng = np.random.default_rng(seed)
    masked, plain = begun(device), begun(device)
    rows = np.arange(len(PARAMS))
    for position in range(4):
        logits = rng.normal(0, 4, (len(PARAMS), VOCAB)).astype(np.float32)
        index = np.sort(rng.choice(len(PARAMS), 5, replace=False)).astype(np.int64)
        allowed = [set(rng.choice(np.arange(1, VOCAB), int(rng.integers(1, 9)), replace=False).tolist()) for _ in index]
        forbidden = logits.copy()
        bits = packed(allowed)
        forbidden[index] = np.where(unpack_masks(bits, VOCAB), logits[index], -np.inf)
        positions = np.full(len(PARAMS), 3 + position)
        got = draw(masked, logits, rows, positions, StepMasks(index, bits))
        want = draw(plain, forbidden, rows, positions)
        assert got.tokens.tolist() == want.tokens.tolist()
        assert all(int(got.tokens[i]) in ids for i, ids in zip(index.tolist(), allowed, strict=True))


def test_logprobs_and_nan_flags_are_those_without_a_mask(device: str) -> None:
    logits = np.random.default_rng(1).normal(0, 2, (len(PARAMS), VOCAB)).astype(np.float32)
    logits[1, 7] = np.nan
    index = np.arange(len(PARAMS), dtype=np.int64)
    rows, positions = np.arange(len(PARAMS)), np.full(len(PARAMS), 3)
    got = draw(begun(device), logits, rows, positions, StepMasks(index, packed([{9, 10}] * len(PARAMS))))
    want = draw(begun(device), logits, rows, positions)
    assert got.nan.tolist() == want.nan.tolist() == [row == 1 for row in range(len(PARAMS))]
    np.testing.assert_array_equal(got.logprobs.top_ids, want.logprobs.top_ids)
    assert all(int(token) in (9, 10) for row, token in enumerate(got.tokens) if row != 1)


def test_every_row_plain_and_greedy(device: str) -> None:
    sampler = new_sampler(device, 2, VOCAB)
    for row in range(2):
        sampler.begin(RowInit(row, SamplingParams(temperature=0.0), 0, (1,)))
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 5], logits[:, 70] = 3, 2
    masks = StepMasks(np.array([1], np.int64), packed([{70, 4}]))
    assert draw(sampler, logits, [0, 1], [1, 1], masks).tokens.tolist() == [5, 70]
    assert draw(sampler, logits, [0, 1], [2, 2]).tokens.tolist() == [5, 5]


@pytest.fixture
def engine(device: str, tiny: Any) -> Any:
    config = EngineConfig(max_num_seqs=8, kv_cache_memory=1 << 20)
    path: Path = tiny("llama").folder
    one = Engine(load(device, path, config), config, check_every_step=True)
    yield one
    one.close()


def test_an_engine_keeps_to_grammars_and_serves_others_as_before(engine: Engine) -> None:
    grammars = {f"g{i}": random_automaton(i, TINY_VOCAB) for i in range(4)} | {"g4": chain([9, 8, 7], TINY_VOCAB)}
    free = SamplingParams(temperature=1.0, seed=5, max_tokens=12, ignore_eos=True)
    alone = run(engine, {"free": (free, None)})["free"]
    hot = {
        name: SamplingParams(temperature=1.5, seed=i, max_tokens=12, grammar=SPEC) for i, name in enumerate(grammars)
    }
    found = run(engine, {"free": (free, None)} | {name: (hot[name], grammars[name]) for name in grammars})
    assert found["free"] == alone
    ends = engine.backend.info.end_ids
    for name, grammar in grammars.items():
        tokens, reason = found[name]
        assert grammar.reads([one for one in tokens if one not in ends]) or reason is FinishReason.LENGTH
    assert found["g4"] == ([9, 8, 7], FinishReason.STOP)


def run(engine: Engine, requests: dict[str, tuple[SamplingParams, Any]]) -> dict[str, tuple[list[int], Any]]:
    tokens: dict[str, list[int]] = {}
    reasons = {}
    for name, (params, grammar) in requests.items():
        engine.add(Request(name, (3, 4, 5, 6), params), grammar)
    while engine.has_work():
        for output in engine.step():
            assert output.error is None
            tokens.setdefault(output.request_id, []).extend(output.token_ids)
            if output.finish_reason is not None:
                reasons[output.request_id] = output.finish_reason
    return {name: (tokens[name], reasons[name]) for name in requests}
