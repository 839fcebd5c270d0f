"""Mixtures of experts: routing, tokens put in the order of their experts, and products with what each is sent to.

No shape depends on where tokens go, so that a step can be captured: picks (a token and one of its experts) lie in
blocks of one expert each, and there are as many blocks as the worst case needs. Those too many end at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from ..plane_form import Form, Planes
from .plane_values import decode_tile
from .quantized import COMMON, WEIGHT_ROWS, constants, parts_of, plane_types
from .variant import Variant

CHUNK = 1024  # picks that are looked at, or columns added up, at a time
FEWEST, MOST = 16, 64  # picks of a block
PARTS = ("low", "high", "words", "scale", "minimum")  # of planes, as the product takes them
#: What the product of dense matrices is compiled with in a form's place.
NO_FORM = constants(Form())


@dataclass(frozen=True, slots=True)
class Matrices:
    """E matrices [N, K], one after the other: as planes of E * N rows, or dense [E * N, K]."""

    weight: Planes | torch.Tensor
    count: int

    @property
    def rows(self) -> int:
        """Of one of them."""
        return (self.weight.rows if isinstance(self.weight, Planes) else len(self.weight)) // self.count


@dataclass(frozen=True, slots=True)
class Picks:
    """A step's picks in blocks of ``size``: pick p is the expert that token p // top_k has at rank p % top_k."""

    items: torch.Tensor  # int32 [blocks * size]; -1: none
    experts: torch.Tensor  # int32 [blocks], whose picks a block has; -1: it has none
    size: int
    count: int  # of all picks


@triton.jit
def route_kernel(
    logits, shares, chosen, experts,
    TOP_K: tl.constexpr, NORMALISE: tl.constexpr, EXPERTS: tl.constexpr, RANKS: tl.constexpr,
):  # fmt: skip
    """Program t: the TOP_K largest of row t's logits, and their shares. EXPERTS and RANKS: powers of two that hold all.

    Picks are made by the floats' bits, put in the floats' order as integers, so that NaN has a place in it too.
    """
    row, expert, rank = tl.program_id(0).to(tl.int64), tl.arange(0, EXPERTS), tl.arange(0, RANKS)
    inside = expert < experts
    score = tl.load(logits + row * experts + expert, mask=inside, other=float("-inf")).to(tl.float32) + 0.0
    bits = score.to(tl.int32, bitcast=True)
    order = tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), -2147483648)
    weight = tl.where(inside, tl.exp(score - tl.max(score, 0)), 0.0)
    weight = weight / tl.sum(weight, 0)
    share, pick = tl.zeros([RANKS], tl.float32), tl.zeros([RANKS], tl.int32)
    for place in tl.static_range(TOP_K):
        best = tl.argmax(order, 0)
        share = tl.where(rank == place, tl.sum(tl.where(expert == best, weight, 0.0), 0), share)
        pick = tl.where(rank == place, best, pick)
        order = tl.where(expert == best, -2147483648, order)
    if NORMALISE:
        share = share / tl.sum(share, 0)
    tl.store(shares + row * TOP_K + rank, share, mask=rank < TOP_K)
    tl.store(chosen + row * TOP_K + rank, pick.to(tl.int64), mask=rank < TOP_K)


@triton.jit
def count_kernel(chosen, counts, count, CHUNK: tl.constexpr):
    """Program e: how many of the ``count`` picks are expert e."""
    lane, total = tl.arange(0, CHUNK), tl.zeros([CHUNK], tl.int32)
    for start in range(0, count, CHUNK):
        pick = tl.load(chosen + start + lane, mask=start + lane < count, other=-1)
        total += (pick == tl.program_id(0)).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(total, 0))


@triton.jit
def arrange_kernel(
    chosen, counts, items, owners, count, experts, blocks,
    EXPERTS: tl.constexpr, SIZE: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Program e: expert e's picks in order, in its own blocks; the last one marks the blocks that are nobody's."""
    expert, every, lane = tl.program_id(0), tl.arange(0, EXPERTS), tl.arange(0, CHUNK)
    each = (tl.load(counts + every, mask=every < experts, other=0) + SIZE - 1) // SIZE
    first, mine = tl.sum(tl.where(every < expert, each, 0), 0), tl.load(counts + expert)
    end = first + (mine + SIZE - 1) // SIZE
    for block in range(first, end):
        tl.store(owners + block, expert)
    slot = first * SIZE + mine + tl.arange(0, SIZE)
    tl.store(items + slot, slot * 0 - 1, mask=slot < end * SIZE)
    seen = 0
    for start in range(0, count, CHUNK):
        pick = tl.load(chosen + start + lane, mask=start + lane < count, other=-1)
        own = (pick == expert).to(tl.int32)
        place = first * SIZE + seen + tl.cumsum(own, 0) - 1
        tl.store(items + place, start + lane, mask=own > 0)
        seen += tl.sum(own, 0)
    if expert == experts - 1:
        for block in range(end, blocks):
            tl.store(owners + block, -1)


@triton.jit
def expert_kernel(
    x, low, high, words, scale, minimum, items, owners, out, outputs, columns, all_rows, out_stride,
    DENSE: tl.constexpr,
    LOW: tl.constexpr, HIGH: tl.constexpr, ZERO: tl.constexpr, MEANING: tl.constexpr, SCALES: tl.constexpr,
    GROUP: tl.constexpr, SHARED: tl.constexpr,
    SHARING: tl.constexpr, ROWS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """Program (n, b): ROWS rows of a matrix of block b's expert times the rows of x of the block's picks. SHARING picks
    in a row have one row of x. A pick's product goes to the row of ``out`` that has its number.

    As ``quantized.matrix_kernel``, the weight's rows lie on the tensor core's long side.
    """
    expert = tl.load(owners + tl.program_id(1))
    if expert < 0:
        return
    output, lane = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, 32)
    item = tl.load(items + tl.program_id(1) * SIZE + tl.arange(0, SIZE)).to(tl.int64)
    valid, present = output < outputs, item >= 0
    row = expert * outputs + output
    source = tl.where(present, item // SHARING, 0)[:, None] * columns
    total = tl.zeros([ROWS, SIZE], tl.float32)
    for tile in range(0, tl.cdiv(columns, 64)):
        column = (tile * 64 + lane)[None, :]
        if DENSE:
            place = low + row.to(tl.int64)[:, None] * columns + column
            a = tl.load(place, mask=valid[:, None] & (column < columns), other=0.0)
            b = tl.load(place + 32, mask=valid[:, None] & (column + 32 < columns), other=0.0)
        else:
            each = tl.zeros([ROWS], tl.int32) + tile
            a, b = decode_tile(
                low, high, words, scale, minimum, each, row, valid, all_rows,
                LOW, HIGH, ZERO, MEANING, SCALES, GROUP, SHARED,
            )  # fmt: skip
        x_a = tl.load(x + source + column, mask=present[:, None] & (column < columns), other=0.0)
        x_b = tl.load(x + source + column + 32, mask=present[:, None] & (column + 32 < columns), other=0.0)
        total = tl.dot(a.to(x_a.dtype), tl.trans(x_a), total, input_precision="ieee")
        total = tl.dot(b.to(x_b.dtype), tl.trans(x_b), total, input_precision="ieee")
    place = out + item[None, :] * out_stride + output[:, None]
    tl.store(place, total.to(out.dtype.element_ty), mask=valid[:, None] & present[None, :])


@triton.jit
def combine_kernel(products, shares, out, width, TOP_K: tl.constexpr, BLOCK: tl.constexpr):
    """Program (t, b): BLOCK columns of token t's products times its shares, added in float32 in order."""
    row, column = tl.program_id(0).to(tl.int64), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside, total = column < width, tl.zeros([BLOCK], tl.float32)
    for rank in tl.static_range(TOP_K):
        part = tl.load(products + (row * TOP_K + rank) * width + column, mask=inside, other=0.0).to(tl.float32)
        total += part * tl.load(shares + row * TOP_K + rank)
    tl.store(out + row * width + column, total.to(out.dtype.element_ty), mask=inside)


def route(logits: torch.Tensor, top_k: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """As ``backends.cuda.experts.route``."""
    rows, experts = logits.shape
    shares = torch.empty((rows, top_k), dtype=torch.float32, device=logits.device)
    chosen = torch.empty((rows, top_k), dtype=torch.int64, device=logits.device)
    if rows:
        route_kernel[(rows,)](
            logits, shares, chosen, experts, TOP_K=top_k, NORMALISE=normalise,
            EXPERTS=triton.next_power_of_2(experts), RANKS=triton.next_power_of_2(top_k), num_warps=1,
        )  # fmt: skip
    return shares, chosen


def block_size(picks: int, experts: int) -> int:
    """Picks of a block, by how many an expert has on average."""
    return min(max(1 << (-(-picks // experts) - 1).bit_length(), FEWEST), MOST)


def arrange(chosen: torch.Tensor, experts: int) -> Picks:
    """The picks ``chosen`` int64 [T, k], for T of 1 or more, in blocks of one of ``experts`` each."""
    count = chosen.numel()
    size = block_size(count, experts)
    blocks = min(count, count // size + experts)  # whole ones, and one of each expert that isn't
    counts, items, owners = (
        torch.empty(length, dtype=torch.int32, device=chosen.device) for length in (experts, blocks * size, blocks)
    )
    count_kernel[(experts,)](chosen, counts, count, CHUNK=CHUNK, num_warps=4)
    arrange_kernel[(experts,)](
        chosen, counts, items, owners, count, experts, blocks,
        EXPERTS=triton.next_power_of_2(experts), SIZE=size, CHUNK=CHUNK, num_warps=4,
    )  # fmt: skip
    return Picks(items, owners, size, count)


def multiply(x: torch.Tensor, matrices: Matrices, picks: Picks, out: torch.Tensor) -> None:
    """Row p of ``out`` [picks, N] (rows may be strided) = the row of ``x`` [R, K] that pick p has, times its expert's
    matrix transposed; R divides the picks' number."""
    weight, rows = matrices.weight, matrices.rows
    if isinstance(weight, Planes):
        given, form = parts_of(weight), constants(weight.form)
    else:
        given, form = (weight,) * len(PARTS), NO_FORM
    expert_kernel[(triton.cdiv(rows, WEIGHT_ROWS), len(picks.experts))](
        x, *given, picks.items, picks.experts, out, rows, x.shape[1], rows * matrices.count, out.stride(0),
        DENSE=form is NO_FORM, **form, SHARING=picks.count // len(x), ROWS=WEIGHT_ROWS, SIZE=picks.size, num_warps=4,
        num_stages=3,
    )  # fmt: skip


def combine(products: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """As ``backends.cuda.experts.combine``, for contiguous ``products`` [T * k, D] with T of 1 or more."""
    (rows, top_k), width = shares.shape, products.shape[1]
    out = torch.empty((rows, width), dtype=products.dtype, device=products.device)
    combine_kernel[(rows, triton.cdiv(width, CHUNK))](
        products, shares, out, width, TOP_K=top_k, BLOCK=CHUNK, num_warps=4
    )
    return out


def variants() -> list[Variant]:
    """In the numbers of Qwen3-30B-A3B: 128 experts, 8 to a token."""
    counts = frozenset({"count", "experts", "blocks"})
    integers = dict.fromkeys(("count", "experts", "blocks", "width"), "i32")
    picks = {"chosen": "*i64", "counts": "*i32", "items": "*i32", "owners": "*i32"}
    sums = {"logits": "*bf16", "products": "*bf16", "shares": "*fp32", "out": "*bf16"}
    routing = {"TOP_K": 8, "NORMALISE": True, "EXPERTS": 128, "RANKS": 8}
    arranging = {"EXPERTS": 128, "SIZE": FEWEST, "CHUNK": CHUNK}
    found = [
        Variant("route", route_kernel, picks | sums | integers, routing, 1, vector_loads=False, unaligned=counts),
        Variant("count", count_kernel, picks | integers, {"CHUNK": CHUNK}, vector_loads=False, unaligned=counts),
        Variant("arrange", arrange_kernel, picks | integers, arranging, vector_loads=False, unaligned=counts),
        Variant("combine", combine_kernel, sums | integers, {"TOP_K": 8, "BLOCK": CHUNK}),
    ]
    for kind in (*COMMON, "dense"):
        given, form = plane_types(kind) if kind != "dense" else (dict.fromkeys(PARTS, "*bf16"), NO_FORM)
        given = given | picks | {"x": "*bf16", "out": "*bf16"}
        given |= dict.fromkeys(("outputs", "columns", "all_rows", "out_stride"), "i32")
        for size in (FEWEST, MOST):
            shape = {"DENSE": kind == "dense", "SHARING": 8, "ROWS": WEIGHT_ROWS, "SIZE": size}
            name, wide = f"expert[{kind}, {size}]", size > FEWEST
            found.append(Variant(name, expert_kernel, given, form | shape, tensor_cores=True, vector_loads=wide))
    return found
