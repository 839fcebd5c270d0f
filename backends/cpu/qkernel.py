"""Machine code for ``activations x quantised weights``, one kernel per ``Format``, as LLVM IR.

Activations are int8 with a float32 scale per row and 32 values, so a product of 32 values is an exact integer and

    for every group g, in order:  y[r, n] = fma(dot[r, n, g], sw[n, g] * sa[r, g], y[r, n])
                                  y[r, n] = fma(mw[n, g], sa[r, g] * sum(a[r, g]), y[r, n])

the second only where minimums are stored. The order never depends on how many rows or outputs are computed at
once, nor on the instruction set: a row's result is bit for bit the same alone and in any batch.

Integer width: codes below 2^b times activations up to 127 leave room in 16 bits for ``_ADDS`` products before they
must be widened; with VNNI one instruction does it all. Other machines get plain vector IR that LLVM lowers as it can.
"""

from __future__ import annotations

from collections.abc import Callable

from llvmlite import ir

from .emitter import F32, I1, I8, I16, I32, I64, PTR, VOID, Emitter, splat
from .qformat import LANES, QUADS, Format

ROWS = 4  # activation rows per register block
BLOCK = 64  # activation rows that go over a tile before the next one
ACTIVATION_BYTES = 64  # one row and group; see ``quantise``
_SCALE, _SUMS, _TOTALS = 32, 36, 48  # byte offsets in it: float scale; float scale * sums; int sums
_ADDS = {2: 8, 3: 8, 4: 8, 5: 4, 6: 2, 8: 1}  # products of (2^bits - 1) * 127 * 2 that fit in int16

BYTES, HALVES, WORDS = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, LANES)
FLOATS = ir.VectorType(F32, LANES)
TASK_ARGS = ir.LiteralStructType([PTR, PTR, PTR, PTR, I64, I64, I64, I64])
"""tiles, bias (of whole tiles), activations, out; rows, records per tile, outputs, floats per row of out."""


Dot = Callable[[Emitter, ir.Value, list[ir.Value], list[ir.Value]], ir.Value]
"""(builder, int32 sums, weights, activations) -> sums plus the products of some quads, 4 values to a lane."""


def _dot_avx2(form: Format) -> Dot:
    """pmaddubsw (unsigned times signed, pairs to int16), pmaddwd (pairs to int32)."""

    def dot(b: Emitter, sums: ir.Value, weights: list[ir.Value], acts: list[ir.Value]) -> ir.Value:
        pairs = None
        for w, a in zip(weights, acts, strict=True):
            if form.signed:  # |w| <= 128 as unsigned, its sign moved to the activation: pairs stay below 2^15
                a = b.intrinsic("llvm.x86.avx2.psign.b", BYTES, a, w)
                w = b.intrinsic("llvm.abs.v32i8", BYTES, w, I1(0))
            products = b.intrinsic("llvm.x86.avx2.pmadd.ub.sw", HALVES, w, a)
            pairs = products if pairs is None else b.add(pairs, products)
        return b.add(sums, b.intrinsic("llvm.x86.avx2.pmadd.wd", WORDS, pairs, splat(1, HALVES)))

    return dot


def _dot_vnni(form: Format) -> Dot:
    """vpdpbusd. Signed codes are raised by 128 here, which ``_record`` takes back."""

    def dot(b: Emitter, sums: ir.Value, weights: list[ir.Value], acts: list[ir.Value]) -> ir.Value:
        for w, a in zip(weights, acts, strict=True):
            raised = b.xor(w, splat(-128, BYTES)) if form.signed else w
            operands = (b.bitcast(raised, WORDS), b.bitcast(a, WORDS))  # newer LLVMs take bytes, and upgrade this
            sums = b.intrinsic("llvm.x86.avx512.vpdpbusd.256", WORDS, sums, *operands)
        return sums

    return dot


def _dot_plain(form: Format) -> Dot:
    """Vector arithmetic any target has."""
    wide, ints = ir.VectorType(I16, 32), ir.VectorType(I32, 32)

    def fold(b: Emitter, value: ir.Value) -> ir.Value:
        half = value.type.count // 2
        none = ir.Constant(value.type, ir.Undefined)
        even, odd = (
            b.shuffle_vector(value, none, ir.Constant(ir.VectorType(I32, half), list(range(first, 2 * half, 2))))
            for first in (0, 1)
        )
        return b.add(even, odd)

    def dot(b: Emitter, sums: ir.Value, weights: list[ir.Value], acts: list[ir.Value]) -> ir.Value:
        for w, a in zip(weights, acts, strict=True):
            extended = b.sext(w, wide) if form.signed else b.zext(w, wide)
            products = b.mul(extended, b.sext(a, wide))
            sums = b.add(sums, fold(b, fold(b, b.sext(products, ints))))
        return sums

    return dot


DOTS: dict[str, Callable[[Format], Dot]] = {"avx2": _dot_avx2, "vnni": _dot_vnni, "plain": _dot_plain}


def choose_dot(features: frozenset[str]) -> str:
    """The fastest entry of ``DOTS`` for a CPU with these LLVM features."""
    if "avxvnni" in features or {"avx512vnni", "avx512vl"} <= features:
        return "vnni"
    return "avx2" if "avx2" in features else "plain"


def _quads(b: Emitter, form: Format, record: ir.Value) -> list[ir.Value]:
    """The eight code vectors of a record."""
    if form.signed:
        return [b.read(record, 32 * q, BYTES) for q in range(QUADS)]
    codes: list[ir.Value] = []
    at = shift = 0
    for width in form.planes:
        vectors = [b.read(record, at + 32 * v, BYTES) for v in range(width)]
        parts = [_field(b, vectors[q * width // 8], q * width % 8, width) for q in range(QUADS)]
        if shift:
            parts = [b.or_(code, b.shl(part, splat(shift, BYTES))) for code, part in zip(codes, parts, strict=True)]
        codes, at, shift = parts, at + 32 * width, shift + width
    return codes


def _field(b: Emitter, vector: ir.Value, shift: int, width: int) -> ir.Value:
    """Bits ``shift`` to ``shift + width - 1`` of every byte."""
    shifted = b.lshr(vector, splat(shift, BYTES)) if shift else vector
    return b.and_(shifted, splat((1 << width) - 1, BYTES))


def _vectors(b: Emitter, form: Format, record: ir.Value) -> list[ir.Value]:
    """A record's scales, then its minimums, as float vectors."""
    out = []
    for i in range(form.scales * (2 if form.minimum else 1)):
        kind = ir.VectorType(ir.HalfType(), LANES) if form.half else FLOATS
        value = b.read(record, 32 * form.bits + i * form.scale_bytes, kind)
        out.append(b.fpext(value, FLOATS) if form.half else value)
    return out


def _record(b: Emitter, form: Format, dot: str, record: ir.Value, acts: ir.Value, sums: list[ir.Value]) -> None:
    """Add one record's products with one group of activations of each row to the float accumulators ``sums``."""
    offset = 128 if form.signed and dot == "vnni" else form.offset
    adds, emit = (1 if form.signed else _ADDS[form.bits]), DOTS[dot](form)
    codes, vectors = _quads(b, form, record), _vectors(b, form, record)
    per = QUADS // form.scales
    for s in range(form.scales):
        products: list[ir.Value] = [splat(0, WORDS)] * len(sums)
        which = 0 if form.scales == 1 else 1 + s
        if offset:
            shift = splat(offset.bit_length() - 1, WORDS)
            for r in range(len(sums)):
                total = b.everywhere(acts, r * ACTIVATION_BYTES + _TOTALS + 4 * which, WORDS)
                products[r] = b.sub(products[r], b.shl(total, shift))
        for q in range(s * per, (s + 1) * per, min(adds, per)):
            some = range(q, q + min(adds, per))
            for r in range(len(sums)):
                rows = [b.bitcast(b.everywhere(acts, r * ACTIVATION_BYTES + 4 * i, WORDS), BYTES) for i in some]
                products[r] = emit(b, products[r], [codes[i] for i in some], rows)
        for r, total in enumerate(sums):
            scale = b.fmul(vectors[s], b.everywhere(acts, r * ACTIVATION_BYTES + _SCALE, FLOATS))
            value = b.intrinsic(
                "llvm.fma.v8f32", FLOATS, b.sitofp(products[r], FLOATS), scale, b.load(total, typ=FLOATS)
            )
            if form.minimum:
                added = b.everywhere(acts, r * ACTIVATION_BYTES + _SUMS + 4 * which, FLOATS)
                value = b.intrinsic("llvm.fma.v8f32", FLOATS, vectors[form.scales + s], added, value)
            b.store(value, total)


def _tile_function(module: ir.Module, form: Format, dot: str, rows: int) -> ir.Function:
    """``void (tile, acts, out, bias, records, outputs left, stride)``: ``rows`` rows of one tile's outputs."""
    kind = ir.FunctionType(VOID, [PTR, PTR, PTR, PTR, I64, I64, I64])
    function = ir.Function(module, kind, name=f"tile{rows}")
    function.linkage = "internal"
    function.attributes.add("noinline")
    tile, acts, out, bias, records, left, stride = function.args
    b = Emitter(function.append_basic_block("entry"))
    sums = [b.slot(FLOATS) for _ in range(rows)]
    for total in sums:
        b.store(splat(0.0, FLOATS), total)
    with b.loop(I64(0), records) as i:
        record = b.at(tile, b.mul(i, I64(form.record_bytes)))
        _record(b, form, dot, record, b.at(acts, b.mul(i, I64(ROWS * ACTIVATION_BYTES))), sums)
    added = b.load(bias, typ=FLOATS, align=4)
    values = [b.fadd(b.load(total, typ=FLOATS), added) for total in sums]
    with b.if_else(b.icmp_signed(">=", left, I64(LANES))) as (whole, part):
        with whole:
            for r, value in enumerate(values):
                b.store(value, b.at(out, b.mul(stride, I64(4 * r))), align=4)
        with part:
            _store_part(b, values, out, stride, left)
    b.ret_void()
    return function


def _store_part(b: Emitter, values: list[ir.Value], out: ir.Value, stride: ir.Value, left: ir.Value) -> None:
    """The first ``left`` < 8 outputs of each row."""
    buffer = b.slot(ir.ArrayType(FLOATS, len(values)))
    for r, value in enumerate(values):
        b.store(value, b.at(buffer, 4 * LANES * r))
    with b.loop(I64(0), I64(len(values))) as r, b.loop(I64(0), left) as lane:
        value = b.load(b.at(buffer, b.mul(b.add(b.mul(r, I64(LANES)), lane), I64(4))), typ=F32)
        b.store(value, b.at(out, b.mul(b.add(b.mul(r, stride), lane), I64(4))))


def kernel_ir(form: Format, dot: str) -> str:
    """A module whose ``linear`` is a thread pool task over tiles, its arguments being ``TASK_ARGS``."""
    module = ir.Module(name=f"linear_{form.name}")
    functions = {rows: _tile_function(module, form, dot, rows) for rows in range(1, ROWS + 1)}
    task = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, I64]), name="linear")
    data, start, end = task.args
    b = Emitter(task.append_basic_block("entry"))
    fields = b.load(data, typ=TASK_ARGS)
    tiles, bias, acts, out, rows, records, outputs, stride = (b.extract_value(fields, i) for i in range(8))
    tile_bytes = b.mul(records, I64(form.record_bytes))
    block_bytes = b.mul(records, I64(ROWS * ACTIVATION_BYTES))
    with b.loop(I64(0), rows, BLOCK) as first, b.loop(start, end) as tile:
        at = b.at(tiles, b.mul(tile, tile_bytes))
        lane = b.mul(tile, I64(LANES))
        left = b.sub(outputs, lane)
        bias_at = b.at(bias, b.mul(lane, I64(4)))
        last = b.add(first, I64(BLOCK))
        last = b.select(b.icmp_signed("<", last, rows), last, rows)
        with b.loop(first, last, ROWS) as row:
            acts_at = b.at(acts, b.mul(b.sdiv(row, I64(ROWS)), block_bytes))
            out_at = b.at(out, b.mul(b.add(b.mul(row, stride), lane), I64(4)))
            count = b.sub(last, row)
            done = b.append_basic_block("stored")
            full = b.append_basic_block("full")
            switch = b.switch(count, full)
            for n, function in functions.items():
                block = full if n == ROWS else b.append_basic_block(f"rows{n}")
                if n < ROWS:
                    switch.add_case(I64(n), block)
                b.position_at_end(block)
                b.call(function, [at, acts_at, out_at, bias_at, records, left, stride])
                b.branch(done)
            b.position_at_end(done)
    b.ret_void()
    return str(module)
