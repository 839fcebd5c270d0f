"""The generator's words, against the vectors that come with Random123."""

from __future__ import annotations

import numpy as np
import pytest

from bireme.backends.philox import philox4x32, token_words

VECTORS = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000", "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff", "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0", "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text: str) -> tuple[np.ndarray, ...]:
    return tuple(np.array([int(word, 16)], np.uint64) for word in text.split())


@pytest.mark.parametrize("counter, key, wanted", VECTORS)
def test_known_answers(counter, key, wanted):
    assert philox4x32(words(counter), words(key)) == words(wanted)


def test_a_tokens_word_depends_on_seed_and_position_alone():
    seeds = np.array([42, 7, 42, 2**64 - 1], np.uint64)
    positions = np.array([5, 5, 6, 5], np.int64)
    together = token_words(seeds, positions)
    assert len(set(together.tolist())) == 4
    for n in range(4):
        assert token_words(seeds[n : n + 1], positions[n : n + 1])[0] == together[n]
    assert token_words(seeds[::-1].copy(), positions[::-1].copy()).tolist() == together[::-1].tolist()
    assert token_words(np.array([0], np.uint64), np.array([0], np.int64))[0] == 0x6627E8D5


def test_words_are_spread_evenly():
    drawn = token_words(np.full(40_000, 3, np.uint64), np.arange(40_000))
    counts = np.bincount(drawn >> 28, minlength=16)
    assert drawn.min() >= 0 and drawn.max() < 2**32
    assert np.abs(counts - 2500).max() < 250
