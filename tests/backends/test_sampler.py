"""The vectorised sampler against a scalar one that follows the definitions word for word."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from backend_kinds import DEVICES, MLX, draw, new_sampler
from hypothesis import given, settings
from hypothesis import strategies as st

from bireme.backends.cuda import sampler as torch_module
from bireme.backends.cuda.sampler import fraction
from bireme.backends.philox import token_words
from bireme.core.request import SamplingParams
from bireme.core.step import RowInit

VOCAB = 50


def begin(sampler: Any, row: int, params: SamplingParams, **init) -> None:
    sampler.begin(RowInit(**{"row": row, "params": params, "seed": 0, "prompt_ids": (1, 2), **init}))


def make(device: str, *params: SamplingParams, vocab: int = VOCAB, **init) -> Any:
    sampler = new_sampler(device, max(8, len(params)), vocab)
    for row, each in enumerate(params):
        begin(sampler, row, each, **init)
    return sampler


def adjusted(logits: np.ndarray, init: RowInit, made: list[int]) -> np.ndarray:
    """One row's logits after penalties, bias and masks, in float32 as the sampler has them."""
    params, out = init.params, logits.astype(np.float32).copy()
    for token in set(init.prompt_ids) | set(made):
        out[token] = (
            out[token] / np.float32(params.repetition_penalty)
            if out[token] > 0
            else out[token] * np.float32(params.repetition_penalty)
        )
    for token in set(made):
        out[token] -= np.float32(params.frequency_penalty) * np.float32(made.count(token))
        out[token] -= np.float32(params.presence_penalty)
    for token, bias in params.logit_bias.items():
        out[token] += np.float32(bias)
    if len(made) < params.min_tokens:
        out[list(init.end_ids)] = -np.inf
    return out


def expected(logits: np.ndarray, init: RowInit, made: list[int], position: int) -> int:
    """What one row draws, in Python integers."""
    params, out = init.params, adjusted(logits, init, made)
    if params.temperature == 0 or params.top_k == 1 or params.top_p == 0:
        return int(out.argmax())
    scaled = torch.from_numpy(out) / np.float32(params.temperature)  # torch's exp, as the sampler's
    weights = [int(w) for w in (torch.exp(scaled - scaled.max()) * 2.0**30).to(torch.int64)]
    order = sorted(range(len(weights)), key=lambda i: -weights[i])
    kept = order[: params.top_k] if params.top_k > 0 else order
    mass, needed, prefix = sum(weights[i] for i in kept), 0, []
    for token in kept:
        if prefix and needed >= mass * round(params.top_p * 2**32) // 2**32:
            break
        prefix.append(token)
        needed += weights[token]
    least = max(weights[prefix[-1]], math.ceil(params.min_p * 2**30))
    weights = [w if w >= least else 0 for w in weights]
    word = int(token_words(np.array([init.seed], np.uint64), np.array([position], np.int64))[0])
    left = sum(weights) * word // 2**32
    for token, weight in enumerate(weights):
        left -= weight
        if left < 0:
            return token
    raise AssertionError("weights sum to less than their total")


parameters = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 1e-5, 0.3, 1.0, 2.5, 100.0]),
    top_k=st.sampled_from([-1, 0, 1, 2, 5, 49, 50, 1000]),
    top_p=st.sampled_from([0.0, 1e-4, 0.3, 0.9, 0.999, 1.0]),
    min_p=st.sampled_from([0.0, 0.05, 0.5, 1.0]),
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.5, -1.0]),
    frequency_penalty=st.sampled_from([0.0, 0.4, -0.5]),
    logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.floats(-100, 100, width=32), max_size=3),
    min_tokens=st.integers(0, 3),
    logprobs=st.sampled_from([None, None, 0, 3]),
)
rows_of_params = st.lists(parameters, min_size=1, max_size=6)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=60, deadline=None, derandomize=True)
@given(rows=rows_of_params, seed=st.integers(0, 2**32), ranks=st.sampled_from([1, 4, 256]))
def test_each_row_draws_what_the_definitions_say(device, rows, seed, ranks):
    """Four steps of a mixed batch, in a new order each; ``ranks`` makes top-k and top-p look further in between."""
    random = np.random.default_rng(seed)
    inits = [
        RowInit(n, params, seed * 7919 + n, prompt_ids=(1, 2, 2), output_ids=(3,) * (n % 2), end_ids=(0, n + 4))
        for n, params in enumerate(rows)
    ]
    sampler = new_sampler(device, 8, VOCAB)
    made = [list(init.output_ids) for init in inits]
    for init in inits:
        sampler.begin(init)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch_module, "FIRST_RANKS", ranks)
        for step in range(4):
            order = random.permutation(len(rows))
            logits = (random.standard_normal((len(rows), VOCAB)) * 4).astype(np.float32)
            logits[:, 7] = logits[:, 8]  # a tie
            found = draw(sampler, logits, order.tolist(), [step + 10] * len(rows))
            for line, row, token in zip(logits, order, found.tokens.tolist(), strict=True):
                assert token == expected(line, inits[row], made[row], step + 10)
                made[row].append(token)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=200, deadline=None, derandomize=True)
@given(total=st.integers(0, 2**48 - 1), numerator=st.integers(0, 2**32))
def test_fractions_are_exact(device, total, numerator):
    if device == "mlx":
        from bireme.backends.mlx.library import mx
        from bireme.backends.mlx.sampler import fraction as mlx_fraction

        found = mlx_fraction(mx.array([total], mx.int64), mx.array([numerator], mx.int64))
    else:
        found = fraction(torch.tensor([total]), torch.tensor([numerator]))
    assert int(found.item()) == total * numerator // 2**32


def test_draws_follow_the_distribution(device):
    logits = np.log(np.array([0.5, 0.25, 0.125, 0.1, 0.025], np.float32))
    sampler = make(device, SamplingParams(temperature=1.0), vocab=5)
    drawn = [int(draw(sampler, logits[None], [0], [n]).tokens[0]) for n in range(4000)]
    share = np.bincount(drawn, minlength=5) / len(drawn)
    np.testing.assert_allclose(share, np.exp(logits), atol=0.025)


def test_a_seeded_row_ignores_its_neighbours(device):
    logits = np.random.default_rng(1).standard_normal((4, VOCAB)).astype(np.float32)
    warm = SamplingParams(temperature=1.0)
    others = [warm, SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_k=5)]

    def text(rows: list[int], at: int, seed: int = 42) -> list[int]:
        sampler = make(device, *others, *others)
        begin(sampler, 5, warm, seed=seed)
        return [
            int(draw(sampler, logits[[3 if r == 5 else r for r in rows]], rows, [n] * len(rows)).tokens[at])
            for n in range(30)
        ]

    alone = text([5], 0)
    assert text([0, 1, 5, 2], 2) == alone and text([5, 2, 1], 0) == alone and text([2, 5], 1) == alone
    assert text([5], 0, seed=43) != alone
    assert len(set(alone)) > 5


def test_a_bad_row_harms_nobody(device):
    """NaN, an overflow to infinity and a wholly masked row, beside a masked greedy row and a warm one."""
    params = SamplingParams(temperature=1.0, top_p=0.9, top_k=10, repetition_penalty=1.2, logprobs=2)
    logits = np.random.default_rng(2).standard_normal((5, VOCAB)).astype(np.float32)
    logits[3, 10:] = -np.inf  # as a grammar's mask leaves it

    def tokens(rows: list[int]) -> dict[int, int]:
        sampler = make(device, params, params, params, SamplingParams(temperature=0.0), params)
        found = draw(sampler, logits[rows], rows, [3] * len(rows))
        assert not found.nan[[rows.index(r) for r in (3, 4)]].any()
        return dict(zip(rows, found.tokens.tolist(), strict=True))

    good = tokens([3, 4])
    logits[0, 5], logits[1, 6], logits[2] = np.nan, np.inf, -np.inf
    rows = [0, 4, 1, 3, 2]
    sampler = make(device, params, params, params, SamplingParams(temperature=0.0), params)
    found = draw(sampler, logits[rows], rows, [3] * 5)
    assert found.nan.tolist() == [True, False, True, False, True]
    assert [found.tokens[1], found.tokens[3]] == [good[4], good[3]]
    assert ((found.tokens >= 0) & (found.tokens < VOCAB)).all()
    assert found.logprobs is not None and np.isfinite(found.logprobs.top_logprobs[1]).all()


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0.0, "top_p": 0.0},
        {"temperature": 0.0, "top_p": 1e-4, "top_k": -1},
        {"temperature": 0.0, "top_k": 1},
        {"temperature": 1e-5},
        {"temperature": 1.0, "top_p": 0.0},
        {"temperature": 1.0, "top_k": 1},
        {"temperature": 1.0, "top_p": 1e-4},
        {"temperature": 1.0, "min_p": 1.0},
    ],
)
def test_extreme_settings_take_the_most_likely_token(device, params):
    logits = np.random.default_rng(4).standard_normal((1, VOCAB)).astype(np.float32) * 30
    sampler = make(device, SamplingParams(**params))
    found = [draw(sampler, logits, [0], [n]) for n in range(10)]
    assert {int(f.tokens[0]) for f in found} == {int(logits.argmax())}
    assert not any(bool(f.nan[0]) for f in found)


def test_greedy_ties_go_to_the_lowest_id(device):
    logits = np.zeros((2, VOCAB), np.float32)
    logits[0, [9, 33]] = 1.0
    sampler = make(device, SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, top_k=1))
    assert draw(sampler, logits, [0, 1], [0, 0]).tokens.tolist() == [9, 0]


def test_all_greedy_steps_skip_the_rest(device, monkeypatch):
    sampler = make(device, SamplingParams(temperature=0.0), SamplingParams(temperature=0.0, min_tokens=2), end_ids=(3,))
    logits = np.random.default_rng(6).standard_normal((2, VOCAB))
    draw(sampler, logits, [0, 1], [0, 0])
    draw(sampler, logits, [0, 1], [1, 1])
    monkeypatch.setattr(type(sampler), "_adjust", None)  # the two tokens are made: from here nothing but the argmax
    assert draw(sampler, logits, [0, 1], [2, 2]).tokens.tolist() == logits.argmax(-1).tolist()


def test_end_ids_wait_for_min_tokens_also_after_preemption(device):
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3], logits[0, 4] = 9.0, 8.0
    params = SamplingParams(temperature=0.0, min_tokens=3)
    sampler = make(device, params, end_ids=(3,))
    assert [int(draw(sampler, logits, [0], [n]).tokens[0]) for n in range(5)] == [4, 4, 4, 3, 3]
    begin(sampler, 0, params, end_ids=(3,), output_ids=(4, 4))
    assert [int(draw(sampler, logits, [0], [n]).tokens[0]) for n in range(2, 5)] == [4, 3, 3]


def test_a_new_sequence_inherits_nothing(device):
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 3], logits[0, 4] = 1.0, 0.9
    sampler = make(device, SamplingParams(temperature=0.0, presence_penalty=1.0, logit_bias={4: 0.5}))
    assert [int(draw(sampler, logits, [0], [n]).tokens[0]) for n in range(3)] == [4, 3, 4]
    begin(sampler, 0, SamplingParams(temperature=0.0, presence_penalty=1.0))
    assert [int(draw(sampler, logits, [0], [n]).tokens[0]) for n in range(2)] == [3, 4]


def test_logprobs_are_of_the_raw_distribution(device):
    logits = np.random.default_rng(8).standard_normal((3, VOCAB)).astype(np.float32)
    raw = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    asks = SamplingParams(temperature=0.0, logit_bias={11: 100.0}, logprobs=4)
    sampler = make(device, asks, SamplingParams(temperature=0.0), SamplingParams(temperature=0.5, seed=1, logprobs=0))
    found = draw(sampler, logits, [0, 1, 2], [0, 0, 0])
    assert found.tokens[0] == 11 and found.tokens[1] == logits[1].argmax()
    assert found.logprobs is not None and found.logprobs.asked.tolist() == [0, 2]
    np.testing.assert_allclose(found.logprobs.chosen, [raw[0, 11], raw[2, int(found.tokens[2])]], atol=1e-5)
    order = np.argsort(-raw[0])[:4]
    assert found.logprobs.top_ids[0].tolist() == order.tolist()
    np.testing.assert_allclose(found.logprobs.top_logprobs[0], raw[0, order], atol=1e-5)


def test_ids_outside_the_vocabulary_change_nothing(device):
    sampler = make(device, SamplingParams(temperature=0.0, logit_bias={VOCAB: 9.0}, min_tokens=1), end_ids=(VOCAB + 3,))
    logits = np.random.default_rng(9).standard_normal((1, VOCAB))
    assert int(draw(sampler, logits, [0], [0]).tokens[0]) == logits.argmax()


def test_rows_outside_the_table_are_refused(device):
    with pytest.raises(IndexError, match="row 8 is outside the backend's 8 rows"):
        begin(make(device, SamplingParams()), 8, SamplingParams())


@pytest.mark.parametrize("other", [MLX])
@settings(max_examples=40, deadline=None, derandomize=True)
@given(rows=rows_of_params, seed=st.integers(0, 2**63 - 1), spread=st.sampled_from([0.3, 4.0, 30.0]))
def test_every_backend_draws_the_same_tokens(other, rows, seed, spread):
    """Same seeds, same logits: the same tokens and log-probabilities as the torch backend's, over 2,000 tokens."""
    vocab, random = 2000, np.random.default_rng(seed)
    samplers = [new_sampler(device, 8, vocab) for device in ("cpu", other)]
    for row, params in enumerate(rows):
        for sampler in samplers:
            begin(sampler, row, params, seed=seed + row, end_ids=(0, 5))
    for step in range(3):
        logits = (random.standard_normal((len(rows), vocab)) * spread).astype(np.float32)
        order = random.permutation(len(rows)).tolist()
        ours, theirs = (draw(sampler, logits, order, [step + 40] * len(rows)) for sampler in samplers)
        assert ours.tokens.tolist() == theirs.tokens.tolist() and ours.nan.tolist() == theirs.nan.tolist()
        assert (ours.logprobs is None) == (theirs.logprobs is None)
        if ours.logprobs is not None:
            np.testing.assert_allclose(theirs.logprobs.chosen, ours.logprobs.chosen, atol=2e-5)
            np.testing.assert_allclose(theirs.logprobs.top_logprobs, ours.logprobs.top_logprobs, atol=2e-5)
