"""What a simulated model computes: hashes that depend on every K/V entry attended to.

The entry of token t at position i is ``entry(S_i, t, i)``, where ``S_i`` is the weighted sum, modulo 2^64, of the
entries at positions 0 to i - 1 *as stored in the blocks the table names*. A drawn token hashes the last ``S``.
So a stale, missing, misplaced or foreign entry anywhere in a context changes what follows, while chunks, batches,
copies and shared blocks that are right change nothing. Everything is defined for one token after another, which makes
``generate_alone`` independent of blocks and batches: the oracle.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    """SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def entry(context: int, token: int, position: int) -> int:
    """The K/V entry of a token that attends to ``context``; 64 bits, never 0 in practice."""
    return mix((context ^ (token + 1) * _GOLDEN ^ (position + 1) * 0xD6E8FEB86659FD93) & _MASK)


def weight(position: int) -> int:
    """The odd factor of a position's entry in the sum."""
    return (2 * position + 1) * _GOLDEN & _MASK | 1


def weights(count: int) -> NDArray[np.uint64]:
    """``weight`` of positions 0 to count - 1."""
    return (2 * np.arange(count, dtype=np.uint64) + np.uint64(1)) * np.uint64(_GOLDEN) | np.uint64(1)


def hidden(entries: NDArray[np.uint64]) -> NDArray[np.float32]:
    """Made-up hidden states [T, 8] of tokens by their K/V entries [T]: multiples of 1/128 in 0 to 2, so that sums of
    them are exact in any order."""
    octets = entries.astype("<u8").view(np.uint8).reshape(-1, 8)
    return octets.astype(np.float32) / np.float32(128)


def score(entries: NDArray[np.uint64], tokens: NDArray[np.int32]) -> NDArray[np.float32]:
    """Made-up log-probabilities [M] of ``tokens`` after tokens with these K/V entries [M]; in -16 to 0."""
    mixed = (entries ^ tokens.astype(np.uint64)) % np.uint64(4096)
    return -mixed.astype(np.float32) / np.float32(256)


def draw(context: int, seed: int, greedy: bool, vocab_size: int, banned: Collection[int] = ()) -> int:
    """The next token after ``context``; the seed matters unless greedy. ``banned`` ids are never drawn."""
    state = context if greedy else mix(context ^ seed)
    while True:
        state = mix((state + _GOLDEN) & _MASK)
        token = state % vocab_size
        if token not in banned:
            return token


def generate_alone(
    prompt: Sequence[int],
    *,
    limit: int,
    seed: int,
    greedy: bool,
    vocab_size: int,
    stop_ids: Collection[int] = (),
    min_tokens: int = 0,
) -> list[int]:
    """The outputs of a sequence with nobody beside it: until a stop id, or ``limit`` tokens with the prompt."""
    context, outputs = 0, list[int]()
    position = 0
    for token in prompt:
        context = (context + weight(position) * entry(context, token, position)) & _MASK
        position += 1
    while len(prompt) + len(outputs) < limit:
        banned = stop_ids if len(outputs) < min_tokens else ()
        token = draw(context, seed, greedy, vocab_size, banned)
        outputs.append(token)
        if token in stop_ids:
            break
        context = (context + weight(position) * entry(context, token, position)) & _MASK
        position += 1
    return outputs
