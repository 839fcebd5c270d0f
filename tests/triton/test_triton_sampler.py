"""The sampler's kernels against the reference, over a vocabulary in several chunks of which the last is not full."""

from __future__ import annotations

import numpy as np
import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from torch.utils._python_dispatch import TorchDispatchMode
from triton_sampling import CHUNK, EVERYTHING, VOCAB, Pair, agree

from bireme.backends.cuda import memory
from bireme.backends.cuda.kernels import sampler as kernels
from bireme.core.request import SamplingParams
from bireme.core.step import StepMasks

NAN, INF = float("nan"), float("inf")


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch):
    monkeypatch.setattr(kernels, "CHUNK", CHUNK)


def test_same_logits_and_seed_same_token():
    agree(Pair(EVERYTHING), 3)


@pytest.mark.parametrize("spread", [0.0, 0.01, 30.0])
def test_flat_and_steep(spread):
    """All weights in one range of the table, all of them equal, or nearly all of them nothing."""
    asked = [SamplingParams(top_k=7), SamplingParams(top_p=0.3), SamplingParams(top_k=200, top_p=0.999)]
    agree(Pair(asked), 1, spread)


def test_bounds_at_their_limits():
    """The k-th place is tied; a share so small that one token holds it; nothing lies under the last kept."""
    pair = Pair([SamplingParams(top_k=3, top_p=0.9), SamplingParams(top_p=1e-12), SamplingParams(min_p=1.0)])
    logits = torch.full((3, VOCAB), -2.0)
    logits[:, [5, 63, 64, 65, 299]] = torch.tensor([3.0, 1.0, 1.0, 1.0, 3.0])
    for position in range(3):
        wanted, found = pair.draw(logits, position)
        assert found.tokens.tolist() == wanted.tokens.tolist()


def test_ties_go_to_the_lowest_id_and_unfit_rows_are_named():
    pair = Pair([SamplingParams(temperature=0), *[SamplingParams()] * 4])
    logits = torch.zeros(5, VOCAB)
    logits[0, [70, 200]] = 1.0
    logits[1, 299], logits[2, 130], logits[3] = NAN, INF, -INF
    logits[4, 100:] = -INF  # some tokens that can't be
    wanted, found = pair.draw(logits, 9)
    assert found.nan.tolist() == wanted.nan.tolist() == [False, True, True, True, False]
    assert found.tokens.tolist() == wanted.tokens.tolist() and found.tokens[0] == 70


def test_all_greedy_takes_the_short_way():
    pair = Pair([SamplingParams(temperature=0, logprobs=2)] * 2 + [SamplingParams(temperature=0)])
    assert not pair.kernels.launch(pair.rows).plain
    assert pair.kernels.launch(pair.rows[2:]).plain
    pair.rows = pair.rows[2:]
    logits = torch.randn(1, VOCAB).half()
    wanted, found = pair.draw(logits, 0)
    assert found.tokens.tolist() == wanted.tokens.tolist() == [int(logits[0].argmax())]
    logits[0, 5] = NAN
    assert pair.draw(logits, 1)[1].nan.tolist() == [True]


def test_half_precision_logits_stay_as_they_are():
    pair = Pair([SamplingParams(top_k=9, presence_penalty=1.0, logprobs=3), SamplingParams(top_p=0.9)])
    logits = torch.randn(2, VOCAB).half()
    kept = logits.clone()
    wanted, found = pair.draw(logits, 4)
    assert found.tokens.tolist() == wanted.tokens.tolist() and torch.equal(logits, kept)
    one, other = found.logprobs, wanted.logprobs
    assert one is not None and other is not None
    assert one.asked.tolist() == [0] and torch.equal(one.top_ids, other.top_ids)
    assert torch.allclose(one.chosen, other.chosen) and torch.allclose(one.top_logprobs, other.top_logprobs)


def test_what_was_drawn_is_counted_and_a_new_sequence_begins_afresh():
    asked = SamplingParams(temperature=0, frequency_penalty=1.5, min_tokens=5, logit_bias={7: 50.0})
    pair = Pair([asked, SamplingParams(temperature=0)])
    logits = torch.zeros(2, VOCAB)
    logits[:, 11], logits[:, 12] = 4.0, 3.0
    drawn = [pair.draw(logits, n) for n in range(4)]
    assert [found.tokens.tolist() for _, found in drawn] == [wanted.tokens.tolist() for wanted, _ in drawn]
    assert drawn[2][1].tokens[0] == 7, "the end token, once five tokens were made"
    pair.begin(0, asked)
    again, seen = pair.draw(logits, 0)[1], pair.kernels.device_rows.seen
    assert again.tokens[0] == drawn[0][1].tokens[0]
    assert seen is not None and pair.reference._made is not None and pair.reference._in_prompt is not None
    assert torch.equal(seen[0] >> 1, pair.reference._made[0])
    assert torch.equal((seen[0] & 1).bool(), pair.reference._in_prompt[0])


def test_room_for_as_many_biases_as_are_asked():
    pair = Pair([SamplingParams(temperature=0, logit_bias={299: 9.0}), *[SamplingParams(temperature=0)] * 2])
    before = pair.kernels.launch(pair.rows)
    pair.begin(1, SamplingParams(temperature=0, logit_bias={n: n / 10 for n in range(0, 200, 2)}))
    assert pair.kernels.launch(pair.rows).pairs == 128 > before.pairs, "a graph captured before won't do"
    agree(pair, 2, 1.0)


def test_a_grammar_allows_some_tokens():
    asked = [SamplingParams(temperature=0), SamplingParams(top_k=20), SamplingParams(), SamplingParams(temperature=0)]
    pair = Pair(asked)
    allowed = np.random.default_rng(3).random((3, 320)) < 0.2
    allowed[2] = False
    allowed[2, 287] = True
    bits = np.packbits(allowed, axis=1, bitorder="little").view(np.int32)
    logits = torch.randn(4, VOCAB) * 3
    wanted, found = pair.draw(logits, 6, StepMasks(np.array([0, 1, 3]), bits))
    assert found.tokens.tolist() == wanted.tokens.tolist() and not found.nan.any()
    assert found.tokens[3] == 287
    pair.rows = pair.rows[3:]
    assert pair.draw(logits[:1], 7, StepMasks(np.array([0]), bits[2:]))[1].tokens.tolist() == [287], "not the short way"


def test_padding_writes_nothing():
    pair = Pair([SamplingParams(presence_penalty=1.0)] * 2)
    held, last = pair.kernels.device_rows, torch.full((3,), 7)
    assert held.seen is not None
    words, seen = held.words.clone(), held.seen.clone()
    rows, positions = torch.tensor([-1, 1]), torch.tensor([0, 5], dtype=torch.int32)
    tokens, _ = pair.kernels.draw(torch.randn(2, VOCAB), rows, positions, last, pair.kernels.launch(pair.rows))
    assert last.tolist() == [7, int(tokens[1]), 7]
    assert torch.equal(held.words[[0, 2]], words[[0, 2]]) and torch.equal(held.seen[0], seen[0])
    assert held.words[1, kernels.MADE] == words[1, kernels.MADE] + 1


def test_nothing_to_draw():
    pair = Pair([])
    assert pair.kernels.sample(torch.zeros(0, VOCAB), pair.rows, np.zeros(0, np.int64)).tokens.shape == (0,)


class Made(TorchDispatchMode):
    """Counts the bytes of new tensors."""

    nbytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        made = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ in ("empty", "zeros"):
            self.nbytes += made.nbytes
        return made


def test_what_it_holds_is_planned_for(monkeypatch):
    """The plan counts it before anything is loaded: see ``memory.SAMPLER_BYTES``."""
    monkeypatch.undo()  # chunks as they are on a GPU
    vocab = 2 * kernels.CHUNK
    with Made() as made:
        pair = Pair([SamplingParams(top_k=5, presence_penalty=1.0)], vocab)
        seen = pair.kernels.device_rows.seen
        made.nbytes = 0
        pair.kernels.sample(torch.randn(1, vocab), pair.rows, np.zeros(1, np.int64))
    assert seen is not None
    assert made.nbytes + seen.nbytes / len(seen) == pytest.approx(memory.SAMPLER_BYTES * vocab, rel=0.02)
