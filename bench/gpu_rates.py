"""How near each kernel on a GPU comes to the memory's bandwidth, or to the rate of cuBLAS."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .gpu_models import block_weight
from .gpu_pool import TYPES, Pool, normal, shape
from .gpu_setting import Row, Setting
from .gpu_time import COLD_BYTES, Work


@torch.inference_mode()
def rates(setting: Setting) -> Iterator[Row]:
    """Bytes per second of what memory bounds, beside the device's copy; operations per second of matrix products,
    beside cuBLAS's."""
    torch.manual_seed(0)
    yield Row("rates", "the device's own copy", setting.bandwidth / 1e9, "GB/s")
    yield from attention_rates(setting)
    yield from elementwise_rates(setting)
    yield from product_rates(setting)
    yield from extend_rates(setting)


def _bandwidth(setting: Setting, what: str, runs: list[Work], nbytes: float) -> Row:
    return _rate(setting, what, nbytes / setting.timer.mean(runs))


def _rate(setting: Setting, what: str, rate: float) -> Row:
    """``rate`` in bytes per second."""
    return Row("rates", what, rate / 1e9, "GB/s", rate / setting.bandwidth, "the copy")


def attention_rates(setting: Setting) -> Iterator[Row]:
    config = shape(setting)
    cases = ((2, 20),) if setting.tiny else ((1, 1000), (1, 32768), (8, 4096), (32, 1000), (128, 1000), (256, 1000))
    for sequences, context in cases:
        pool = Pool.make(setting, sequences, 1, context, cold=True)
        nbytes = 2 * sequences * context * config.num_kv_heads * config.head_dim * setting.dtype.itemsize
        yield _bandwidth(setting, f"attention, {sequences} decoding at {context:,}", pool.attention(), nbytes)


def elementwise_rates(setting: Setting) -> Iterator[Row]:
    config, tokens, size = shape(setting), 9 if setting.tiny else 8192, setting.dtype.itemsize
    pool = Pool.make(setting, 1, tokens, tokens)
    x, gain = normal(setting, 3, tokens, config.hidden_size), normal(setting, config.hidden_size)
    gate, layer, ops = normal(setting, 2, tokens, 2 * config.intermediate_size), pool.layers[0], pool.ours
    hidden = tokens * config.hidden_size * size
    yield _bandwidth(setting, "rms_norm", [lambda: ops.rms_norm(x[0], gain, 1e-5)], 2 * hidden)
    yield _bandwidth(setting, "add_rms_norm", [lambda: ops.add_rms_norm(x[1], x[2], gain, 1e-5)], 4 * hidden)
    runs: list[Work] = [lambda: ops.swiglu(gate[0]), lambda: ops.swiglu(gate[1])]
    yield _bandwidth(setting, "swiglu", runs, 3 * tokens * config.intermediate_size * size)
    stored = 2 * pool.qkv.numel() * size
    yield _bandwidth(setting, "rope_and_store", [lambda: ops.rope_and_store(pool.qkv, layer, pool.step)], stored)


def product_rates(setting: Setting) -> Iterator[Row]:
    """A feed-forward matrix of the model: few rows against the copy, many against cuBLAS on the same shape."""
    config = shape(setting)
    rows, columns = 2 * config.intermediate_size, config.hidden_size
    dense = [normal(setting, rows, columns) for _ in range(1 if setting.tiny else 2)]
    counts = (
        (1, 65) if setting.tiny else (1, 4, 8, 16, 64) if setting.quick else (1, 2, 4, 8, 16, 32, 64, 128, 512, 4096)
    )
    best = {}
    for count in counts:
        x = normal(setting, count, columns)
        runs: list[Work] = [lambda w=w, x=x: F.linear(x, w) for w in dense]  # type: ignore[misc]
        best[count] = setting.timer.mean(runs)
        yield _product(setting, "cuBLAS, dense", count, rows * columns, best[count], dense[0].nbytes, None)
    if not setting.kernels:
        return
    from ..backends.cuda.planes import planes
    from ..backends.cuda.quantized import QuantizedLinear

    for kind in TYPES:
        each = planes(block_weight("w", (rows, columns), kind), setting.device)
        copies = 1 if setting.tiny else -(-COLD_BYTES // each.nbytes)
        layers = [QuantizedLinear([_copy(each)]) for _ in range(copies)]
        for count in counts:
            x = normal(setting, count, columns)
            runs = [lambda w=w, x=x: w(x) for w in layers]  # type: ignore[misc]
            seconds = setting.timer.mean(runs)
            yield _product(setting, kind, count, rows * columns, seconds, each.nbytes, best[count])


def _copy(weight: Any) -> Any:
    """The same planes in memory of their own."""
    parts = {f.name: getattr(weight, f.name) for f in dataclasses.fields(weight)}
    return type(weight)(**{k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in parts.items()})


def _product(
    setting: Setting, what: str, count: int, elements: int, seconds: float, nbytes: int, cublas: float | None
) -> Row:
    """Where memory bounds, bytes; where arithmetic does, operations."""
    note = "" if cublas is None else f"{cublas / seconds:.2f} times as fast as dense"
    if count <= 64:
        return dataclasses.replace(_rate(setting, f"{what}, {count} rows", nbytes / seconds), note=note)
    rate = 2 * count * elements / seconds
    share = None if cublas is None else cublas / seconds
    return Row("rates", f"{what}, {count} rows", rate / 1e12, "TFLOP/s", share, "cuBLAS" if share else "", note)


def extend_rates(setting: Setting) -> Iterator[Row]:
    """Chunks of prompts; torch's own attention over the same keys, laid out for it, is the measure."""
    config = shape(setting)
    for new, context in ((9, 20),) if setting.tiny else ((2048, 2048), (512, 8192)):
        pool = Pool.make(setting, 1, new, context)
        pairs = new * (context - new) + new * (new + 1) / 2
        flops = 4 * config.num_heads * config.head_dim * pairs
        seconds = setting.timer.mean(pool.attention())
        q = pool.q.transpose(0, 1)[None]
        k, v = (normal(setting, 1, config.num_heads, context, config.head_dim) for _ in range(2))
        mask = torch.ones(new, context, dtype=torch.bool, device=setting.device).tril(context - new)

        def plain(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, mask: torch.Tensor = mask) -> object:
            square = mask.shape[0] == mask.shape[1]
            return F.scaled_dot_product_attention(q, k, v, None if square else mask, is_causal=square)

        theirs = setting.timer.mean([plain])
        what = f"attention, a chunk of {new:,} at {context:,}"
        note = f"{theirs / seconds:.2f} times as fast as torch's scaled_dot_product_attention"
        yield Row("rates", what, flops / seconds / 1e12, "TFLOP/s", note=note)
