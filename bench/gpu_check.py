"""The kernels on a GPU, each against plain torch on real shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from ..core.request import SamplingParams
from ..core.step import RowInit
from ..models.decoder import Layer
from ..models.dequant import select_rows
from .gpu_models import block_weight
from .gpu_pool import TYPES, Pool, layer_of, normal, shape
from .gpu_setting import Row, Setting

if TYPE_CHECKING:
    from ..backends.cuda.experts import Experts

#: The most that a kernel may differ from plain torch: root mean square of the difference over that of the result.
LARGEST_ERROR = {torch.bfloat16: 0.01, torch.float16: 0.002, torch.float32: 1e-4}

Pair = Callable[[], tuple[torch.Tensor, torch.Tensor]]


@torch.inference_mode()
def check(setting: Setting) -> Iterator[Row]:
    """Each kernel's relative error against plain torch."""
    torch.manual_seed(0)
    most = LARGEST_ERROR[setting.dtype]
    for name, pair in (
        *elementwise_pairs(setting),
        *attention_pairs(setting),
        *product_pairs(setting),
        *expert_pairs(setting),
    ):
        found, wanted = pair()
        difference = found.float() - wanted.float()
        error = float(difference.square().mean().sqrt() / wanted.float().square().mean().sqrt())
        right = error <= most  # false for NaN
        yield Row("check", name, error, "relative error", note="ok" if right else f"WRONG: more than {most}")
    if setting.kernels:
        yield sampler_check(setting)


def elementwise_pairs(setting: Setting) -> Iterator[tuple[str, Pair]]:
    pool, config, tokens = Pool.make(setting, 3, 5, 17), shape(setting), 33
    ours, plain = pool.ours, pool.plain
    x, residual = normal(setting, tokens, config.hidden_size), normal(setting, tokens, config.hidden_size)
    gain, gate = normal(setting, config.hidden_size), normal(setting, tokens, 2 * config.intermediate_size)
    yield "rms_norm", lambda: (ours.rms_norm(x, gain, 1e-5), plain.rms_norm(x, gain, 1e-5))
    yield (
        "add_rms_norm",
        lambda: (ours.add_rms_norm(x, residual, gain, 1e-5)[0], plain.add_rms_norm(x, residual, gain, 1e-5)[0]),
    )
    yield "swiglu", lambda: (ours.swiglu(gate), plain.swiglu(gate))
    norms = normal(setting, 2, config.head_dim).abs()
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
            x = normal(setting, rows, config.hidden_size)

            def pair(
                x: torch.Tensor = x, layer: QuantizedLinear = layer, dense: torch.Tensor = dense
            ) -> tuple[torch.Tensor, torch.Tensor]:
                return layer(x), F.linear(x.double(), dense.double())

            yield f"{kind}, {rows} rows", pair


def expert_pairs(setting: Setting) -> Iterator[tuple[str, Pair]]:
    """Layers of experts as wide as Qwen3-30B-A3B's, 8 of 32 to a token."""
    if not setting.kernels:
        return
    from ..backends.cuda.experts import route
    from ..backends.cuda.kernels import activation, experts

    hidden, count, top_k = (256, 4, 2) if setting.tiny else (2048, 32, 8)
    for kind in TYPES[:1] if setting.tiny else TYPES:
        ours, plain = _experts(setting, kind, count, hidden, 256 if setting.tiny else 768)
        for rows in (1,) if setting.tiny else (1, 9, 130):
            x, logits = normal(setting, rows, hidden), normal(setting, rows, count)

            def pair(
                x: torch.Tensor = x, logits: torch.Tensor = logits, ours: Experts = ours, plain: Experts = plain
            ) -> tuple[torch.Tensor, torch.Tensor]:
                found = ours(x, *experts.route(logits, top_k, True), activation.swiglu)
                return found, plain(x.float(), *route(logits, top_k, True), _swiglu)

            yield f"experts, {kind}, {rows} rows", pair


def _experts(setting: Setting, kind: str, count: int, hidden: int, inner: int) -> tuple[Experts, Experts]:
    """Experts as planes, and the same in float32. Each has rows of its own: random blocks repeat after some rows."""
    from ..backends.cuda.experts import DenseExperts
    from ..backends.cuda.grouped_experts import GroupedExperts
    from ..backends.cuda.kernels.experts import Matrices
    from ..backends.cuda.planes import planes

    rng, made, dense = np.random.default_rng(0), [], []
    for rows, columns in ((2 * inner, hidden), (hidden, inner)):
        weight = block_weight("w", (count * rows, columns), kind)
        weight = select_rows(weight, rng.permutation(count * rows))
        made.append(Matrices(planes(weight, setting.device), count))
        dense.append(torch.from_numpy(weight.dequantize()).to(setting.device).view(count, rows, columns))
    return GroupedExperts(made[:1], made[1]), DenseExperts(*dense)


def _swiglu(gate_up: torch.Tensor) -> torch.Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


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
