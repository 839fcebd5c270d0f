"""The part of a quantised linear layer that no weight format changes: activations to int8, and work to threads.

A group of 32 activations becomes 64 bytes: int8 codes; ``scale = max|x| / 127`` (float32); ``scale * total`` (float32)
of all, the first and the last 16 codes; the same three totals as int32. Groups of ``ROWS`` rows lie side by side:
``[rows / ROWS, K / 32, ROWS, 64]``. A group with a NaN or an infinity has scale NaN, which makes exactly its row NaN;
one whose largest magnitude is under 2^-100 counts as zero.
"""

from __future__ import annotations

import ctypes

from .qformat import GROUP
from .qkernel import ACTIVATION_BYTES, ROWS
from .threads import RUN_SYMBOL


class Segment(ctypes.Structure):
    """Some of a layer's outputs: those of one format."""

    _fields_ = [
        ("task", ctypes.c_void_p),  # the format's ``linear``
        ("tiles", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),  # float32, one per output of every tile
        ("first", ctypes.c_int64),  # its first column of the layer's output
        ("outputs", ctypes.c_int64),
    ]


DRIVER_IR = f"""
%Segment = type {{ ptr, ptr, ptr, i64, i64 }}
%Args = type {{ ptr, ptr, ptr, ptr, i64, i64, i64, i64 }}
%Rows = type {{ ptr, ptr, i64 }}

declare void @{RUN_SYMBOL}(ptr, ptr, i64, i64)
declare i32 @llvm.vector.reduce.smax.v32i32(<32 x i32>)
declare i32 @llvm.vector.reduce.add.v16i32(<16 x i32>)
declare i64 @llvm.smax.i64(i64, i64)

; One group: %x 32 floats, %to {ACTIVATION_BYTES} bytes.
define internal void @group(ptr %x, ptr %to) {{
  %values = load <32 x float>, ptr %x, align 4
  %bits = bitcast <32 x float> %values to <32 x i32>
  %magnitudes = and <32 x i32> %bits, splat (i32 2147483647)
  %top = call i32 @llvm.vector.reduce.smax.v32i32(<32 x i32> %magnitudes)
  %largest = bitcast i32 %top to float
  %infinite = icmp sge i32 %top, 2139095040
  %tiny = icmp slt i32 %top, 226492416
  %zeroed = or i1 %infinite, %tiny
  %divided = fdiv float %largest, 127.0
  %finite = select i1 %tiny, float 0.0, float %divided
  %scale = select i1 %infinite, float 0x7FF8000000000000, float %finite
  %divisor = select i1 %zeroed, float 1.0, float %largest
  %inverse = fdiv float 127.0, %divisor
  %factor = select i1 %zeroed, float 0.0, float %inverse
  %factor.one = insertelement <32 x float> poison, float %factor, i32 0
  %factors = shufflevector <32 x float> %factor.one, <32 x float> poison, <32 x i32> zeroinitializer
  %scaled = fmul <32 x float> %values, %factors
  ; Adding 1.5 * 2^23 leaves the nearest integer (ties to even) in the low bits; whatever NaN leaves there is not used.
  %rounded = fadd <32 x float> %scaled, splat (float 12582912.0)
  %raw = bitcast <32 x float> %rounded to <32 x i32>
  %integers = sub <32 x i32> %raw, splat (i32 1262485504)
  %codes = trunc <32 x i32> %integers to <32 x i8>
  store <32 x i8> %codes, ptr %to, align 32
  %back = sext <32 x i8> %codes to <32 x i32>
  %front = shufflevector <32 x i32> %back, <32 x i32> poison, <16 x i32> <{", ".join(f"i32 {i}" for i in range(16))}>
  %rear = shufflevector <32 x i32> %back, <32 x i32> poison, <16 x i32> <{", ".join(f"i32 {i}" for i in range(16, 32))}>
  %low = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %front)
  %high = call i32 @llvm.vector.reduce.add.v16i32(<16 x i32> %rear)
  %all = add i32 %low, %high
  %t.0 = insertelement <4 x i32> zeroinitializer, i32 %all, i32 0
  %t.1 = insertelement <4 x i32> %t.0, i32 %low, i32 1
  %totals = insertelement <4 x i32> %t.1, i32 %high, i32 2
  %floats = sitofp <4 x i32> %totals to <4 x float>
  %s.0 = insertelement <4 x float> poison, float %scale, i32 0
  %scales = shufflevector <4 x float> %s.0, <4 x float> poison, <4 x i32> zeroinitializer
  %products = fmul <4 x float> %scales, %floats
  %sums = shufflevector <4 x float> %products, <4 x float> %scales, <4 x i32> <i32 4, i32 0, i32 1, i32 2>
  %sums.at = getelementptr i8, ptr %to, i64 32
  store <4 x float> %sums, ptr %sums.at, align 16
  %totals.at = getelementptr i8, ptr %to, i64 48
  store <4 x i32> %totals, ptr %totals.at, align 16
  ret void
}}

; Task over rows.
define internal void @quantize_rows(ptr %data, i64 %start, i64 %end) {{
entry:
  %fields = load %Rows, ptr %data
  %x = extractvalue %Rows %fields, 0
  %acts = extractvalue %Rows %fields, 1
  %groups = extractvalue %Rows %fields, 2
  br label %rows
rows:
  %row = phi i64 [ %start, %entry ], [ %row.next, %row.done ]
  %more = icmp slt i64 %row, %end
  br i1 %more, label %row.begin, label %done
row.begin:
  %block = udiv i64 %row, {ROWS}
  %slot = urem i64 %row, {ROWS}
  %block.groups = mul i64 %block, %groups
  %block.records = mul i64 %block.groups, {ROWS}
  %first = add i64 %block.records, %slot
  %from.group = mul i64 %row, %groups
  br label %groups.loop
groups.loop:
  %g = phi i64 [ 0, %row.begin ], [ %g.next, %group.do ]
  %g.more = icmp slt i64 %g, %groups
  br i1 %g.more, label %group.do, label %row.done
group.do:
  %from.index = add i64 %from.group, %g
  %from = getelementptr [{GROUP} x float], ptr %x, i64 %from.index
  %to.offset = mul i64 %g, {ROWS}
  %to.index = add i64 %first, %to.offset
  %to = getelementptr [{ACTIVATION_BYTES} x i8], ptr %acts, i64 %to.index
  call void @group(ptr %from, ptr %to)
  %g.next = add i64 %g, 1
  br label %groups.loop
row.done:
  %row.next = add i64 %row, 1
  br label %rows
done:
  ret void
}}

; x: float32 [rows, groups * {GROUP}]
define internal void @quantize(ptr %x, ptr %acts, i64 %rows, i64 %groups) {{
  %args = alloca %Rows
  %a.0 = insertvalue %Rows poison, ptr %x, 0
  %a.1 = insertvalue %Rows %a.0, ptr %acts, 1
  %a.2 = insertvalue %Rows %a.1, i64 %groups, 2
  store %Rows %a.2, ptr %args
  call void @{RUN_SYMBOL}(ptr @quantize_rows, ptr %args, i64 %rows, i64 8)
  ret void
}}

; out: float32 [rows, stride]. Each thread gets about 8 chunks of tiles, so that one that is held up holds up little.
define internal void @linear(ptr %segments, i64 %count, ptr %acts, ptr %out,
                             i64 %rows, i64 %groups, i64 %stride, i64 %chunks) {{
entry:
  %args = alloca %Args
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %do ]
  %more = icmp slt i64 %i, %count
  br i1 %more, label %do, label %done
do:
  %at = getelementptr %Segment, ptr %segments, i64 %i
  %segment = load %Segment, ptr %at
  %task = extractvalue %Segment %segment, 0
  %tiles = extractvalue %Segment %segment, 1
  %bias = extractvalue %Segment %segment, 2
  %first = extractvalue %Segment %segment, 3
  %outputs = extractvalue %Segment %segment, 4
  %out.at = getelementptr float, ptr %out, i64 %first
  %a.0 = insertvalue %Args poison, ptr %tiles, 0
  %a.1 = insertvalue %Args %a.0, ptr %bias, 1
  %a.2 = insertvalue %Args %a.1, ptr %acts, 2
  %a.3 = insertvalue %Args %a.2, ptr %out.at, 3
  %a.4 = insertvalue %Args %a.3, i64 %rows, 4
  %a.5 = insertvalue %Args %a.4, i64 %groups, 5
  %a.6 = insertvalue %Args %a.5, i64 %outputs, 6
  %a.7 = insertvalue %Args %a.6, i64 %stride, 7
  store %Args %a.7, ptr %args
  %up = add i64 %outputs, 7
  %tile.count = udiv i64 %up, 8
  %share = udiv i64 %tile.count, %chunks
  %grain = call i64 @llvm.smax.i64(i64 %share, i64 1)
  call void @{RUN_SYMBOL}(ptr %task, ptr %args, i64 %tile.count, i64 %grain)
  %i.next = add i64 %i, 1
  br label %next
done:
  ret void
}}

; quantize, then linear
define void @apply(ptr %segments, i64 %count, ptr %x, ptr %acts, ptr %out,
                   i64 %rows, i64 %groups, i64 %stride, i64 %chunks) {{
  call void @quantize(ptr %x, ptr %acts, i64 %rows, i64 %groups)
  call void @linear(ptr %segments, i64 %count, ptr %acts, ptr %out, i64 %rows, i64 %groups, i64 %stride, i64 %chunks)
  ret void
}}

; For each of %experts: its rows, from %starts up to the next, through its layer {{ ptr segments, i64 count }}.
define void @apply_by_expert(ptr %layers, ptr %starts, i64 %experts, ptr %x, ptr %acts, ptr %out,
                             i64 %groups, i64 %stride, i64 %chunks) {{
entry:
  %in.width = mul i64 %groups, {GROUP}
  br label %next
next:
  %i = phi i64 [ 0, %entry ], [ %i.next, %skip ]
  %more = icmp slt i64 %i, %experts
  br i1 %more, label %look, label %done
look:
  %i.next = add i64 %i, 1
  %first.at = getelementptr i64, ptr %starts, i64 %i
  %end.at = getelementptr i64, ptr %starts, i64 %i.next
  %first = load i64, ptr %first.at
  %end = load i64, ptr %end.at
  %rows = sub i64 %end, %first
  %some = icmp sgt i64 %rows, 0
  br i1 %some, label %do, label %skip
do:
  %layer.at = getelementptr {{ ptr, i64 }}, ptr %layers, i64 %i
  %layer = load {{ ptr, i64 }}, ptr %layer.at
  %segments = extractvalue {{ ptr, i64 }} %layer, 0
  %count = extractvalue {{ ptr, i64 }} %layer, 1
  %in.offset = mul i64 %first, %in.width
  %out.offset = mul i64 %first, %stride
  %in = getelementptr float, ptr %x, i64 %in.offset
  %to = getelementptr float, ptr %out, i64 %out.offset
  call void @apply(ptr %segments, i64 %count, ptr %in, ptr %acts, ptr %to,
                   i64 %rows, i64 %groups, i64 %stride, i64 %chunks)
  br label %skip
skip:
  br label %next
done:
  ret void
}}
"""
