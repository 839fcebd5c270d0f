"""Rows of a quantised matrix, decoded exactly: machine code for embeddings that share a head's storage."""

from __future__ import annotations

from llvmlite import ir

from .emitter import F32, I8, I32, I64, PTR, VOID, Emitter, splat
from .qformat import GROUP, LANES, QUADS, Format

GATHER_ARGS = ir.LiteralStructType([PTR, PTR, PTR, I64])
"""tiles; row numbers, int64; out, float32 [ids, records * 32]; records per tile."""

_BYTES, _FLOATS = ir.VectorType(I8, 4), ir.VectorType(F32, 4)


def gather_ir(form: Format) -> str:
    """A module whose ``gather`` is a thread pool task over row numbers, its arguments being ``GATHER_ARGS``.

    Values are ``scale * (code - offset) + minimum``, rounded after each operation as the reference decoders do.
    """
    module = ir.Module(name=f"gather_{form.name}")
    task = ir.Function(module, ir.FunctionType(VOID, [PTR, I64, I64]), name="gather")
    data, start, end = task.args
    b = Emitter(task.append_basic_block("entry"))
    tiles, ids, out, records = (b.extract_value(b.load(data, typ=GATHER_ARGS), i) for i in range(4))
    with b.loop(start, end) as index:
        row = b.load(b.at(ids, b.mul(index, I64(8))), typ=I64)
        first = b.mul(b.udiv(row, I64(LANES)), records)
        lane = b.urem(row, I64(LANES))
        with b.loop(I64(0), records) as i:
            record = b.at(tiles, b.mul(b.add(first, i), I64(form.record_bytes)))
            place = b.add(b.mul(index, records), i)
            _decode(b, form, record, lane, b.at(out, b.mul(place, I64(4 * GROUP))))
    b.ret_void()
    return str(module)


def _decode(b: Emitter, form: Format, record: ir.Value, lane: ir.Value, out: ir.Value) -> None:
    """One lane of a record: 32 floats."""
    factors = []
    half = ir.HalfType()
    for i in range(form.scales * (2 if form.minimum else 1)):
        where = b.at(
            record, b.add(b.mul(lane, I64(form.scale_bytes // LANES)), I64(32 * form.bits + i * form.scale_bytes))
        )
        value = b.fpext(b.load(where, typ=half), F32) if form.half else b.load(where, typ=F32)
        factors.append(_spread(b, value))
    for q in range(QUADS):
        codes = b.bitcast(_word(b, form, record, b.mul(lane, I64(4)), q), _BYTES)
        level = (b.sitofp if form.signed else b.uitofp)(codes, _FLOATS)
        s = q * form.scales // QUADS
        value = b.fmul(b.fsub(level, splat(float(form.offset), _FLOATS)), factors[s])
        if form.minimum:
            value = b.fadd(value, factors[form.scales + s])
        b.store(value, b.at(out, 16 * q), align=4)


def _word(b: Emitter, form: Format, record: ir.Value, lane: ir.Value, q: int) -> ir.Value:
    """Quad ``q``'s four codes of the lane at byte ``lane``, a byte each."""
    word: ir.Value = I32(0)
    at = shift = 0
    for width in form.planes:
        vector, low = divmod(q * width, 8)
        part = b.load(b.at(b.at(record, at + 32 * vector), lane), typ=I32)
        mask = I32(((1 << width) - 1) * 0x01010101)
        word = b.or_(word, b.shl(b.and_(b.lshr(part, I32(low)), mask), I32(shift)))
        at, shift = at + 32 * width, shift + width
    return word


def _spread(b: Emitter, value: ir.Value) -> ir.Value:
    """``value`` four times."""
    one = b.insert_element(ir.Constant(_FLOATS, ir.Undefined), value, I32(0))
    return b.shuffle_vector(one, ir.Constant(_FLOATS, ir.Undefined), splat(0, ir.VectorType(I32, 4)))
