"""The next tokens of all rows in three launches: adjust the logits, weigh them, pick.

What is drawn is defined in ``backends/cuda/sampler.py``. Each row is cut into chunks of the vocabulary. ``adjust`` and
``weigh`` take a chunk a program; ``pick`` (``pick.py``) takes a row. Nothing is sorted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from ...rows import WEIGHT_BITS
from . import pick
from .variant import Variant

CHUNK = 4096  # of the vocabulary, a program
WARPS = 8
PICK_WARPS = 16  # one program a row: as many as its reductions can use
LEVELS = 16  # powers of four up to 2^WEIGHT_BITS
#: Columns of ``Rows.words``.
SEED, TOP_K, TOP_P, MIN_WEIGHT, MIN_TOKENS, MADE, FLAGS, PAIRS = range(8)
WORDS = 8
#: Bits of ``FLAGS``.
GREEDY, PENALISED = 1, 2
#: Columns of ``Rows.floats``.
TEMPERATURE, REPETITION, PRESENCE, FREQUENCY = range(4)
FLOATS = 4


@dataclass(slots=True)
class Rows:
    """What each of R rows asks, on the device, at addresses that stay while ``layout`` does."""

    words: torch.Tensor  # int64 [R, WORDS]
    floats: torch.Tensor  # float32 [R, FLOATS]
    pair_ids: torch.Tensor  # int32 [R, P], rising: the tokens that have a bias, and the end tokens
    pair_values: torch.Tensor  # float32 [R, P]; -inf for an end token, which counts while min_tokens are not made
    seen: torch.Tensor | None  # int32 [R, V]: twice how often a token was put out, plus 1 where it is in the prompt


@triton.jit
def adjust_kernel(
    logits, x, peaks, places, raw_peaks, rows, words, floats, pair_ids, pair_values, seen, masks, mask_rows, vocab,
    mask_stride,
    PENALTIES: tl.constexpr, MASKS: tl.constexpr, PLAIN: tl.constexpr, MOST_PAIRS: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program (n, c): penalties, bias and masks of chunk c of sample n, its peak, where that is, and the raw peak."""
    index, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = column < vocab
    value = tl.load(logits + index * vocab + column, mask=inside, other=float("-inf")).to(tl.float32)
    slot = index * tl.num_programs(1) + chunk
    broken = tl.max((value != value).to(tl.int32), 0) > 0
    tl.store(raw_peaks + slot, tl.where(broken, float("nan"), tl.max(value, 0)))
    if not PLAIN:
        flags = tl.load(words + row * 8 + 6)
        if PENALTIES:
            repetition = tl.load(floats + row * 4 + 1)
            presence, frequency = tl.load(floats + row * 4 + 2), tl.load(floats + row * 4 + 3)
            penalised = (flags & 2) != 0
            note = tl.load(seen + row * vocab + column, mask=inside & penalised, other=0)
            divided = tl.div_rn(value, tl.zeros([CHUNK], tl.float32) + repetition)
            value = tl.where(note > 0, tl.where(value > 0, divided, value * repetition), value)
            value -= frequency * (note >> 1).to(tl.float32)
            value -= tl.where(note > 1, presence, 0.0)
        pairs = tl.load(words + row * 8 + 7)
        if pairs > 0:
            lane = tl.arange(0, MOST_PAIRS)
            ids = tl.load(pair_ids + row * MOST_PAIRS + lane, mask=lane < pairs, other=2147483647)
            first = tl.sum((ids < chunk * CHUNK).to(tl.int32), 0)
            last = tl.sum((ids < (chunk + 1) * CHUNK).to(tl.int32), 0)
            short = tl.load(words + row * 8 + 5) < tl.load(words + row * 8 + 4)
            for pair in range(first, last):
                bias = tl.load(pair_values + row * MOST_PAIRS + pair)
                bias = tl.where((bias == float("-inf")) & (short == 0), 0.0, bias)
                value = tl.where(column == tl.load(pair_ids + row * MOST_PAIRS + pair), value + bias, value)
        if MASKS:
            mask_row = tl.load(mask_rows + index).to(tl.int64)
            masked = inside & (mask_row >= 0)
            word = tl.load(masks + mask_row * mask_stride + column // 32, mask=masked, other=-1)
            value = tl.where(((word >> (column % 32)) & 1) != 0, value, float("-inf"))
        if (flags & 1) == 0:
            tl.store(x + index * vocab + column, value, mask=inside)
    peak = tl.max(value, 0)
    tl.store(peaks + slot, peak)
    tl.store(places + slot, tl.min(tl.where(value == peak, column, 2147483647), 0))


@triton.jit
def weigh_kernel(
    x, weights, table, peaks, rows, words, floats, vocab, chunks,
    CHUNK: tl.constexpr, CHUNKS: tl.constexpr, LEVELS: tl.constexpr,
):  # fmt: skip
    """Program (n, c): the integer weights of chunk c, in place of its logits; how many are at least 4^j, and their sum.

    A greedy row has no weights.
    """
    index, chunk = tl.program_id(0).to(tl.int64), tl.program_id(1)
    row = tl.load(rows + index).to(tl.int64)
    if row < 0:
        return
    if (tl.load(words + row * 8 + 6) & 1) != 0:
        return
    each = tl.arange(0, CHUNKS)
    top = tl.max(tl.load(peaks + index * chunks + each, mask=each < chunks, other=float("-inf")), 0)
    temperature = tl.load(floats + row * 4)
    column = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = column < vocab
    value = tl.load(x + index * vocab + column, mask=inside, other=float("-inf"))
    scaled = tl.div_rn(value, tl.zeros([CHUNK], tl.float32) + temperature)
    base = tl.where(tl.abs(top) < float("inf"), tl.div_rn(top, temperature), 0.0)
    # what is not finite has no weight
    relative = tl.exp(tl.where(tl.abs(scaled) < float("inf"), scaled, float("-inf")) - base)
    weight = (relative * 1073741824.0).to(tl.int32)
    tl.store(weights + index * vocab + column, weight, mask=inside)
    most = tl.max(weight, 0)
    counted = weight.to(tl.int64) + (1 << 44)  # their number from bit 44 on: CHUNK * 2^WEIGHT_BITS lies below
    for level in range(0, LEVELS):
        least = tl.full([], 1, tl.int32) << (2 * level)
        found = tl.zeros([], tl.int64)
        if most >= least:
            found = tl.sum(tl.where(weight >= least, counted, 0), 0)
        tl.store(table + (index * chunks + chunk) * LEVELS + level, found)


def sample(
    logits: torch.Tensor,
    rows: torch.Tensor,
    positions: torch.Tensor,
    asked: Rows,
    last_tokens: torch.Tensor,
    masks: tuple[torch.Tensor, torch.Tensor] | None = None,
    plain: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw a token for each sample; all work is queued, and can be captured.

    Args:
        logits: [N, V], contiguous; left as they are.
        rows: int64 [N], each row at most once; a negative one is padding, for which nothing is written.
        positions: int32 or int64 [N], the place in its sequence that each new token takes.
        asked: ``asked.words`` counts the tokens made, and ``asked.seen`` which.
        last_tokens: int64 [R], takes each row's new token.
        masks: int32 [M, ceil(V / 32)], bit j of word i set where token 32 i + j is allowed, and int32 [N], which of
            them a sample follows, negative for none; None: no sample follows one.
        plain: every row wants the argmax, without penalties, bias or masks.
    Returns:
        Tokens int64 [N], and whether the row's logits were unfit to sample from, int8 [N].
    """
    (count, vocab), device = logits.shape, logits.device
    chunks = triton.cdiv(vocab, CHUNK)
    tokens = torch.empty(count, dtype=torch.int64, device=device)
    nans = torch.empty(count, dtype=torch.int8, device=device)
    if not count:
        return tokens, nans
    peaks, raw_peaks = torch.empty((2, count, chunks), dtype=torch.float32, device=device)
    places = torch.empty((count, chunks), dtype=torch.int32, device=device)
    scratch = (0,) if plain else (count, vocab)
    x = torch.empty(scratch, dtype=torch.float32, device=device)
    weights, listed = x.view(torch.int32), torch.empty(scratch, dtype=torch.int32, device=device)
    table = torch.empty((0,) if plain else (count, chunks, LEVELS), dtype=torch.int64, device=device)
    penalties, seen = not plain and asked.seen is not None, tokens if asked.seen is None else asked.seen
    adjust_kernel[(count, chunks)](
        logits, x, peaks, places, raw_peaks, rows, asked.words, asked.floats, asked.pair_ids, asked.pair_values, seen,
        *(masks or (places, places)), vocab, masks[0].stride(0) if masks else 0,
        PENALTIES=penalties, MASKS=masks is not None, PLAIN=plain, MOST_PAIRS=asked.pair_ids.shape[1], CHUNK=CHUNK,
        num_warps=WARPS,
    )  # fmt: skip
    sizes = {"CHUNK": CHUNK, "CHUNKS": triton.next_power_of_2(chunks), "LEVELS": LEVELS}
    if not plain:
        weigh_kernel[(count, chunks)](
            x, weights, table, peaks, rows, asked.words, asked.floats, vocab, chunks, **sizes, num_warps=WARPS
        )  # fmt: skip
    pick.pick_kernel[(count,)](
        weights, listed, table, peaks, places, raw_peaks, rows, positions, asked.words, seen, tokens, nans,
        last_tokens, vocab, chunks, PENALTIES=penalties, PLAIN=plain, **sizes, num_warps=1 if plain else PICK_WARPS,
    )  # fmt: skip
    return tokens, nans


def variants() -> list[Variant]:
    types = dict.fromkeys(("x", "peaks", "raw_peaks", "floats", "pair_values"), "*fp32") | {"logits": "*bf16"}
    types |= dict.fromkeys(("rows", "words", "table", "tokens", "last_tokens", "positions"), "*i64") | {"nans": "*i8"}
    types |= dict.fromkeys(("places", "pair_ids", "seen", "masks", "mask_rows", "weights", "listed"), "*i32")
    types |= dict.fromkeys(("vocab", "mask_stride", "chunks"), "i32")
    unaligned, sizes = frozenset({"chunks", "mask_stride"}), {"CHUNK": CHUNK, "CHUNKS": 64, "LEVELS": LEVELS}

    def variant(name: str, kernel: Any, constants: Mapping[str, object], warps: int = WARPS) -> Variant:
        return Variant(name, kernel, types, constants, warps, vector_loads=warps > 1, unaligned=unaligned)

    found = []
    for notes, penalties, masks, plain in (("", 0, 0, 0), ("[plain]", 0, 0, 1), ("[penalties, masks]", 1, 1, 0)):
        flags: dict[str, int] = {"PENALTIES": bool(penalties), "MASKS": bool(masks), "PLAIN": bool(plain)}
        found.append(variant("adjust" + notes, adjust_kernel, flags | {"MOST_PAIRS": 64, "CHUNK": CHUNK}))
    found.append(variant("weigh", weigh_kernel, sizes))
    for notes, plain, warps in (("", 0, PICK_WARPS), ("[plain]", 1, 1)):
        flags = {"PENALTIES": not plain, "PLAIN": bool(plain), **sizes}
        found.append(variant("pick" + notes, pick.pick_kernel, flags, warps))
    return found


assert 4 ** (LEVELS - 1) == 1 << WEIGHT_BITS, "the heaviest token is alone in its level"
