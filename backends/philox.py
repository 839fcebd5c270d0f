"""Random words by counter: the same row and position always give the same number, on every backend.

Philox4x32-10 of Salmon et al., 'Parallel random numbers: as easy as 1, 2, 3' (SC11). Keys and counters are known on the
host, so the words are made there, for all rows of a step at once.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)
_ROUNDS = 10

Words = NDArray[np.uint64]  # 32-bit words, held in 64 bits so that products fit


def philox4x32(counter: tuple[Words, Words, Words, Words], key: tuple[Words, Words]) -> tuple[Words, ...]:
    """Four words for each counter (four words) and key (two words); all [N]."""
    a, b, c, d = counter
    low, high = key
    for _ in range(_ROUNDS):
        first, second = a * _MULTIPLIERS[0], c * _MULTIPLIERS[1]
        a, b, c, d = (second >> _HALF) ^ b ^ low, second & _LOW, (first >> _HALF) ^ d ^ high, first & _LOW
        low, high = (low + _WEYL[0]) & _LOW, (high + _WEYL[1]) & _LOW
    return a, b, c, d


def token_words(seeds: NDArray[np.uint64], positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """The word that picks the token at ``positions`` [N] of sequences with ``seeds`` [N]: [N], 0 to 2^32 - 1.

    Key: the seed, low word first. Counter: (position, 0, 0, 0). The first of the four words is used.
    """
    position = positions.astype(np.uint64)
    zero = np.zeros_like(position)
    words = philox4x32((position & _LOW, position >> _HALF, zero, zero), (seeds & _LOW, seeds >> _HALF))
    return words[0].astype(np.int64)
