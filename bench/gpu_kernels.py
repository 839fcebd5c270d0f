"""The kernels on a GPU: each against plain torch on real shapes, and how near each comes to the memory's bandwidth."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

from ..backends.cuda.buffers import Sender
from ..backends.cuda.device import device_for
from ..backends.cuda.kv import KVPool
from ..backends.cuda.ops import TorchOps
from ..backends.cuda.rope import RopeTable
from ..backends.cuda.step import TorchStep
from ..core.request import SamplingParams
from ..core.step import RowInit, StepBatch
from ..models.config import ModelConfig
from ..models.decoder import Layer
from .gpu_models import MODELS, block_weight
from .gpu_setting import Row, Setting
from .gpu_time import COLD_BYTES, Work

SHAPE = "Llama-3.1-8B"
BLOCK = 16
#: The most that a kernel may differ from plain torch: root mean square of the difference over that of the result.
LARGEST_ERROR = {torch.bfloat16: 0.01, torch.float16: 0.002, torch.float32: 1e-4}
TYPES = ("Q4_K", "Q6_K")


@dataclass(frozen=True, slots=True)
class Pool:
    """Ops of both kinds over one pool of random keys and values, and a step of ``sequences`` over it."""

    ours: TorchOps
    plain: TorchOps
    step: TorchStep
    layers: list[Layer]
    q: torch.Tensor
    qkv: torch.Tensor

    @classmethod
    def make(cls, setting: Setting, sequences: int, new: int, context: int, cold: bool = False) -> Pool:
        """``cold``: so many layers that going round them finds none in a cache."""
        config, device, dtype = shape(setting), setting.device, setting.dtype
        blocks = -(-context // BLOCK)
        per_layer = 2 * sequences * context * config.num_kv_heads * config.head_dim * dtype.itemsize
        count = 1 if not cold or setting.tiny else max(1, min(config.num_layers, -(-COLD_BYTES // per_layer)))
        config = dataclasses.replace(config, num_layers=count)
        kv = KVPool(config, sequences * blocks, BLOCK, dtype, device)
        for array in kv.arrays:
            array.normal_()
        rope = RopeTable.build(config.rope, config.head_dim, context, device)
        ours, plain = setting.ops()(config, kv, rope), TorchOps(config, kv, rope)
        batch = make_step(sequences, new, context)
        extra = ours.host_arrays(batch, dtype, device)
        last = torch.zeros(sequences, dtype=torch.int64, device=device)
        step = TorchStep.build(batch, last, BLOCK, Sender(device_for(device)).send, extra)
        heads = config.num_heads + 2 * config.num_kv_heads
        q = _normal(setting, sequences * new, config.num_heads, config.head_dim)
        qkv = _normal(setting, sequences * new, heads * config.head_dim)
        return cls(ours, plain, step, [layer_of(config, n) for n in range(count)], q, qkv)

    def attention(self) -> list[Work]:
        def run(layer: Layer) -> Work:
            return lambda: self.ours.attention(self.q, layer, self.step)

        return [run(layer) for layer in self.layers]


def shape(setting: Setting) -> ModelConfig:
    return MODELS[setting.model(SHAPE)]


def layer_of(config: ModelConfig, index: int, **given: Any) -> Layer:
    """What attention must know of a layer; it has no weights."""
    required = {f.name: None for f in dataclasses.fields(Layer) if f.default is dataclasses.MISSING}
    known = {"index": index, "scale": config.head_dim**-0.5, "eps": config.rms_norm_eps}
    return Layer(**{**required, **known, **given})


def make_step(sequences: int, new: int, context: int) -> StepBatch:
    """``new`` tokens at the end of each of ``sequences`` contexts, whose blocks lie scattered over the pool."""
    blocks = -(-context // BLOCK)
    tables = np.random.default_rng(0).permutation(sequences * blocks).reshape(sequences, blocks)
    positions = np.arange(context - new, context)
    slots = tables[:, positions // BLOCK] * BLOCK + positions % BLOCK
    return StepBatch(
        step_id=0,
        token_ids=np.zeros(sequences * new, np.int32),
        positions=np.tile(positions, sequences).astype(np.int32),
        slots=slots.reshape(-1).astype(np.int64),
        query_start=(np.arange(sequences + 1) * new).astype(np.int32),
        context_lens=np.full(sequences, context, np.int32),
        block_tables=tables.astype(np.int32),
        rows=np.arange(sequences, dtype=np.int32),
        samples=np.ones(sequences, np.bool_),
        copies=np.zeros((0, 2), np.int32),
    )


def _normal(setting: Setting, *size: int) -> torch.Tensor:
    return torch.randn(size, dtype=setting.dtype, device=setting.device)


# (a)


@torch.inference_mode()
def check(setting: Setting) -> Iterator[Row]:
    """Each kernel's relative error against plain torch."""
    torch.manual_seed(0)
    most = LARGEST_ERROR[setting.dtype]
    for name, pair in (*elementwise_pairs(setting), *attention_pairs(setting), *product_pairs(setting)):
        found, wanted = pair()
        difference = found.float() - wanted.float()
        error = float(difference.square().mean().sqrt() / wanted.float().square().mean().sqrt())
        right = error <= most  # false for NaN
        yield Row("check", name, error, "relative error", note="ok" if right else f"WRONG: more than {most}")
    if setting.kernels:
        yield sampler_check(setting)


Pair = Callable[[], tuple[torch.Tensor, torch.Tensor]]


def elementwise_pairs(setting: Setting) -> Iterator[tuple[str, Pair]]:
    pool, config, tokens = Pool.make(setting, 3, 5, 17), shape(setting), 33
    ours, plain = pool.ours, pool.plain
    x, residual = _normal(setting, tokens, config.hidden_size), _normal(setting, tokens, config.hidden_size)
    gain, gate = _normal(setting, config.hidden_size), _normal(setting, tokens, 2 * config.intermediate_size)
    yield "rms_norm", lambda: (ours.rms_norm(x, gain, 1e-5), plain.rms_norm(x, gain, 1e-5))
    yield (
        "add_rms_norm",
        lambda: (ours.add_rms_norm(x, residual, gain, 1e-5)[0], plain.add_rms_norm(x, residual, gain, 1e-5)[0]),
    )
    yield "swiglu", lambda: (ours.swiglu(gate), plain.swiglu(gate))
    norms = _normal(setting, 2, config.head_dim).abs()
    for name, given in (("", {}), (" with q and k norms", {"q_norm": norms[0], "k_norm": norms[1]})):
        layer = layer_of(config, 0, **given)
        yield f"rope_and_store{name}", lambda layer=layer: _stored(pool, layer)  # type: ignore[misc]


def _stored(pool: Pool, layer: Layer) -> tuple[torch.Tensor, torch.Tensor]:
    """Queries, and the keys and values that were stored."""
    results = []
    for ops in (pool.ours, pool.plain):
        q = ops.rope_and_store(pool.qkv, layer, pool.step)
        kept = [array.flatten(0, 1)[pool.step.slots].flatten() for array in (ops.kv.keys[0], ops.kv.values[0])]
        results.append(torch.cat((q.flatten(), *kept)))
    return results[0], results[1]


def attention_pairs(setting: Setting) -> Iterator[tuple[str, Pair]]:
    contexts = (20,) if setting.tiny else (1000, 8191)
    for context in contexts:
        for sequences, new, what in ((5, 1, "decode"), (2, min(300, context), "extend")):
            for window in (None, context // 2):
                pool = Pool.make(setting, sequences, new, context)
                layer = layer_of(shape(setting), 0, window=window)

                def pair(pool: Pool = pool, layer: Layer = layer) -> tuple[torch.Tensor, torch.Tensor]:
                    return tuple(ops.attention(pool.q, layer, pool.step) for ops in (pool.ours, pool.plain))  # type: ignore[return-value]

                note = f", window {window}" if window else ""
                yield f"attention, {what}, {sequences} x {new} at {context}{note}", pair


def product_pairs(setting: Setting) -> Iterator[tuple[str, Pair]]:
    if not setting.kernels:
        return
    from ..backends.cuda.planes import planes
    from ..backends.cuda.quantized import QuantizedLinear

    config = shape(setting)
    for kind in TYPES:
        weight = block_weight("w", (64 if setting.tiny else 1024, config.hidden_size), kind)
        layer = QuantizedLinear([planes(weight, setting.device)])
        dense = torch.from_numpy(weight.dequantize()).to(setting.device)
        for rows in (1, 9, 130):
            x = _normal(setting, rows, config.hidden_size)

            def pair(
                x: torch.Tensor = x, layer: QuantizedLinear = layer, dense: torch.Tensor = dense
            ) -> tuple[torch.Tensor, torch.Tensor]:
                return layer(x), F.linear(x.double(), dense.double())

            yield f"{kind}, {rows} rows", pair


def sampler_check(setting: Setting) -> Row:
    """The share of tokens that differ from the reference's: only the exponential's last bit may make one."""
    from ..backends.cuda.sampler import Sampler
    from ..backends.cuda.triton_sampler import TritonSampler

    asked = [SamplingParams(temperature=0.0), SamplingParams(top_k=40), SamplingParams(top_p=0.9, temperature=0.7)]
    asked += [SamplingParams(min_p=0.05), SamplingParams(repetition_penalty=1.2, presence_penalty=0.5)]
    rows, vocab = np.arange(len(asked), dtype=np.int32), shape(setting).vocab_size
    tokens = []
    for kind in (Sampler, TritonSampler):
        torch.manual_seed(1)
        sampler = kind(len(asked), vocab, setting.device)
        for row, params in enumerate(asked):
            sampler.begin(RowInit(row, params, seed=row, prompt_ids=(1, 2, 3)))
        for position in range(1 if setting.tiny else 40):
            logits = 3 * torch.randn(len(asked), vocab, device=setting.device)
            drawn = sampler.sample(logits.to(setting.dtype), rows, np.full(len(asked), position + 3, np.int64))
            tokens.append(drawn.tokens.cpu())
    half = len(tokens) // 2
    wrong = float((torch.cat(tokens[:half]) != torch.cat(tokens[half:])).float().mean())
    note = "ok" if wrong <= 0.02 else "WRONG: more than 2%"
    return Row("check", "sampler", wrong, "tokens that differ", note=note)


# (b)


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
    x, gain = _normal(setting, 3, tokens, config.hidden_size), _normal(setting, config.hidden_size)
    gate, layer, ops = _normal(setting, 2, tokens, 2 * config.intermediate_size), pool.layers[0], pool.ours
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
    dense = [_normal(setting, rows, columns) for _ in range(1 if setting.tiny else 2)]
    counts = (
        (1, 65) if setting.tiny else (1, 4, 8, 16, 64) if setting.quick else (1, 2, 4, 8, 16, 32, 64, 128, 512, 4096)
    )
    best = {}
    for count in counts:
        x = _normal(setting, count, columns)
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
            x = _normal(setting, count, columns)
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
        k, v = (_normal(setting, 1, config.num_heads, context, config.head_dim) for _ in range(2))
        mask = torch.ones(new, context, dtype=torch.bool, device=setting.device).tril(context - new)

        def plain(q: torch.Tensor = q, k: torch.Tensor = k, v: torch.Tensor = v, mask: torch.Tensor = mask) -> object:
            square = mask.shape[0] == mask.shape[1]
            return F.scaled_dot_product_attention(q, k, v, None if square else mask, is_causal=square)

        theirs = setting.timer.mean([plain])
        what = f"attention, a chunk of {new:,} at {context:,}"
        note = f"{theirs / seconds:.2f} times as fast as torch's scaled_dot_product_attention"
        yield Row("rates", what, flops / seconds / 1e12, "TFLOP/s", note=note)
