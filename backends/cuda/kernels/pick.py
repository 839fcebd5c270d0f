"""The last of the sampler's three launches: each row's token, from what ``adjust`` and ``weigh`` (``sampler.py``) left.

A table by powers of four says in which range of weights a bound lies, the weights of that range are gathered, and their
bits are bisected; only the chunks that can decide something are read again.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _fraction(total, numerator):
    """``floor(total * numerator / 2^32)`` as ``sampler.fraction`` has it."""
    return ((total >> 24) * numerator + (((total & 16777215) * numerator) >> 24)) >> 8


@triton.jit
def _column(matrix, level, LEVELS: tl.constexpr):
    """Column ``level`` of [CHUNKS, LEVELS]; 0 past the last."""
    return tl.sum(tl.where((tl.arange(0, LEVELS) == level)[None, :], matrix, 0), 1)


@triton.jit
def _at(vector, index, SIZE: tl.constexpr):
    return tl.sum(tl.where(tl.arange(0, SIZE) == index, vector, 0), 0)


@triton.jit
def _gather(weights, members, level, listed, vocab, chunks, CHUNK: tl.constexpr, CHUNKS: tl.constexpr):
    """Write the weights from 4^level up to 4^(level + 1) to ``listed``; how many. ``members``: by chunk, [CHUNKS]."""
    least = tl.full([], 1, tl.int64) << (2 * level)
    tl.debug_barrier()  # the list may still be read
    length = 0
    for chunk in range(0, chunks):
        if _at(members, chunk, CHUNKS) > 0:
            column = chunk * CHUNK + tl.arange(0, CHUNK)
            weight = tl.load(weights + column, mask=column < vocab, other=0)
            member = (weight >= least) & (weight < 4 * least)
            place = length + tl.cumsum(member.to(tl.int32), 0) - 1
            tl.store(listed + place, weight, mask=member)
            length += tl.sum(member.to(tl.int32), 0)
    tl.debug_barrier()  # what other threads wrote is read from here on
    return length


@triton.jit
def _beyond(listed, length, bound, CHUNK: tl.constexpr):
    """Count and sum of the listed weights that are at least ``bound``."""
    count, mass = tl.zeros([], tl.int64), tl.zeros([], tl.int64)
    for start in range(0, length, CHUNK):
        lane = start + tl.arange(0, CHUNK)
        weight = tl.load(listed + lane, mask=lane < length, other=0).to(tl.int64)
        beyond = (lane < length) & (weight >= bound)
        count += tl.sum(beyond.to(tl.int64), 0)
        mass += tl.sum(tl.where(beyond, weight, 0), 0)
    return count, mass


@triton.jit
def _least(
    weights, listed, counts, masses, wanted, vocab, chunks, BY_MASS: tl.constexpr,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """The largest weight that ``wanted`` tokens, or tokens of a mass of ``wanted``, reach; 0 for none.

    Also the count and the mass of what is heavier.
    """
    count, mass = tl.sum(counts, 0), tl.sum(masses, 0)
    measure = mass if BY_MASS else count
    level = tl.sum((measure >= wanted).to(tl.int32), 0) - 1
    found = tl.zeros([], tl.int64)
    heavier, heavier_mass = _at(count, 0, LEVELS), _at(mass, 0, LEVELS)
    if level >= 0:
        above, above_mass = _at(count, level + 1, LEVELS), _at(mass, level + 1, LEVELS)
        members = _column(counts, level, LEVELS) - _column(counts, level + 1, LEVELS)
        length = _gather(weights, members, level, listed, vocab, chunks, CHUNK, CHUNKS)
        for step in range(0, 2 * level + 2):
            tried = found | (tl.full([], 1, tl.int64) << (2 * level + 1 - step))
            more, more_mass = _beyond(listed, length, tried, CHUNK)
            reached = above_mass + more_mass if BY_MASS else above + more
            found = tl.where(reached >= wanted, tried, found)
        more, more_mass = _beyond(listed, length, found + 1, CHUNK)
        heavier, heavier_mass = above + more, above_mass + more_mass
    return found, heavier, heavier_mass


@triton.jit
def _draw(
    weights, listed, counts, masses, settings, position, vocab, chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """The token whose cumulative weight is the first beyond the row's random word."""
    top_k, top_p = tl.load(settings + 1), tl.load(settings + 2)
    floor = tl.maximum(tl.load(settings + 3), 1)  # a weight of 0 is never drawn
    mass = tl.sum(_column(masses, 0, LEVELS), 0)
    if top_k < vocab:
        least, heavier, heavier_mass = _least(
            weights, listed, counts, masses, top_k, vocab, chunks, False, CHUNK, CHUNKS, LEVELS
        )
        # of those that tie at the k-th place, so many are among the k
        mass = heavier_mass + tl.where(least > 0, (top_k - heavier) * least, 0)
        floor = tl.maximum(floor, least)
    if top_p < 4294967296:
        needed = tl.maximum(_fraction(mass, top_p), 1)
        least, heavier, heavier_mass = _least(
            weights, listed, counts, masses, needed, vocab, chunks, True, CHUNK, CHUNKS, LEVELS
        )
        floor = tl.maximum(floor, least)
    # a chunk keeps all that lies levels above the floor; what shares the floor's level is looked at
    level = tl.sum((floor >= (tl.full([LEVELS], 1, tl.int64) << (2 * tl.arange(0, LEVELS)))).to(tl.int32), 0) - 1
    chunk = tl.arange(0, CHUNKS)
    kept, whole = _column(masses, level + 1, LEVELS), _column(masses, level, LEVELS)
    if floor == (tl.full([], 1, tl.int64) << (2 * level)):
        kept = whole
    else:
        for each in range(0, chunks):
            if _at(whole - kept, each, CHUNKS) > 0:
                column = each * CHUNK + tl.arange(0, CHUNK)
                weight = tl.load(weights + column, mask=column < vocab, other=0).to(tl.int64)
                kept = tl.where(chunk == each, tl.sum(tl.where(weight >= floor, weight, 0), 0), kept)
    seed = tl.load(settings)
    none = (position * 0).to(tl.uint32)
    word, _, _, _ = tl.philox(seed, position.to(tl.uint32), (position >> 32).to(tl.uint32), none, none)
    wanted = _fraction(tl.sum(kept, 0), word.to(tl.int64))
    here = tl.sum((tl.cumsum(kept, 0) <= wanted).to(tl.int32), 0)
    before = tl.sum(tl.where(chunk < here, kept, 0), 0)
    column = here * CHUNK + tl.arange(0, CHUNK)
    weight = tl.load(weights + column, mask=column < vocab, other=0).to(tl.int64)
    reached = before + tl.cumsum(tl.where(weight >= floor, weight, 0), 0)
    return tl.minimum(here * CHUNK + tl.sum((reached <= wanted).to(tl.int32), 0), vocab - 1)


@triton.jit
def pick_kernel(
    weights, listed, table, peaks, places, raw_peaks, rows, positions, words, seen, tokens, nans, last_tokens,
    vocab, chunks,
    PENALTIES: tl.constexpr, PLAIN: tl.constexpr, CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Program n: the token of sample n, and what its row remembers of it."""
    index = tl.program_id(0).to(tl.int64)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    chunk = tl.arange(0, CHUNKS)
    slot, valid = index * chunks + chunk, chunk < chunks
    raw = tl.load(raw_peaks + slot, mask=valid, other=float("-inf"))
    best = tl.max(raw, 0)
    broken = (tl.max((raw != raw).to(tl.int32), 0) > 0) | (best == float("-inf")) | (best == float("inf"))
    peak = tl.load(peaks + slot, mask=valid, other=float("-inf"))
    place = tl.load(places + slot, mask=valid, other=2147483647)
    token = tl.min(tl.where(valid & (peak == tl.max(peak, 0)), place, 2147483647), 0)
    settings = words + row * 8
    if not PLAIN:
        if ((tl.load(settings + 6) & 1) == 0) & (broken == 0):
            packed = tl.load(
                table + slot[:, None] * LEVELS + tl.arange(0, LEVELS)[None, :], mask=valid[:, None], other=0
            )
            counts, masses = packed >> 44, packed & 17592186044415  # 2^44 - 1
            token = _draw(
                weights + index * vocab, listed + index * vocab, counts, masses, settings,
                tl.load(positions + index).to(tl.int64), vocab, chunks, CHUNK, CHUNKS, LEVELS,
            )  # fmt: skip
    token = tl.where(broken, 0, token)
    tl.store(tokens + index, token.to(tl.int64))
    tl.store(nans + index, broken.to(tl.int8))
    tl.store(last_tokens + row, token.to(tl.int64))
    tl.store(settings + 5, tl.load(settings + 5) + 1)
    if PENALTIES:
        if (tl.load(settings + 6) & 2) != 0:
            note = seen + row * vocab + token
            tl.store(note, tl.load(note) + 2)
