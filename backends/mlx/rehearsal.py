"""The steps that a backend runs before it serves: one of each size that has kernels of its own, and the largest.

They run over a pool of a single block.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Callable, Iterator

from ...core.config import EngineConfig
from ...core.step import StepBatch
from ...models.config import ModelConfig
from ...models.decoder import Decoder
from ..trial_steps import WIDEST, trial_step
from .library import mx, on_metal
from .metal.attention import LEAST_SPAN
from .metal.kernel import available
from .metal.matmul import MOST_AFFINE, MOST_BLOCK, TOKEN_TILES
from .work import longest_context

#: Layers that the largest step runs through: a layer's memory is free again when the next but one begins, and what MLX
#: queues ahead of the device is less than this many layers of such a step.
LAYERS = 4
#: On a CPU a largest step of more operations than this would keep the start waiting, and is not run.
CPU_OPERATIONS = 10**9


def small_steps(model: ModelConfig, engine: EngineConfig) -> Iterator[StepBatch]:
    """Steps that need, between them, every kernel of ``metal/`` that serving this model can need. Elsewhere no kernel
    is compiled, and one step of a chunk and a decode is enough."""
    context, most = longest_context(model, engine), engine.max_num_batched_tokens
    counts = (*TOKEN_TILES, MOST_AFFINE + 1, MOST_BLOCK + 1) if available() else (3,)
    for count in sorted({min(each, most) for each in counts}):
        decodes = min(count, engine.max_num_seqs)
        chunk = min(count - decodes + 1, context)
        spans = [(1, 1)] * (decodes - 1) + [(chunk, chunk)]
        yield trial_step(spans, engine.block_size, placeholders=count > 1)
    yield trial_step([(1, min(LEAST_SPAN + 1, context))], engine.block_size, WIDEST, copies=((0, 0),))


def largest_step(model: ModelConfig, engine: EngineConfig) -> StepBatch:
    """As many tokens as a step may have, in as many sequences, each at the end of the longest context, all sampling in
    every way: decodes, and the rest of the tokens as chunks."""
    context = longest_context(model, engine)
    left, spans = engine.max_num_batched_tokens, []
    for after in reversed(range(engine.max_num_seqs)):
        count = min(left - after, context)
        spans.append((count, context))
        left -= count
    return trial_step(spans[::-1], engine.block_size, WIDEST)


def few_layers(decoder: Decoder) -> Decoder:
    """``decoder`` with LAYERS of its layers, and one of each window and each kind of feed-forward part."""
    every, count = decoder.layers, len(decoder.layers)
    if count <= LAYERS:
        return decoder
    kinds = {(each.window, type(each.mlp)): each for each in every}
    chosen = {each.index: each for each in kinds.values()}
    chosen |= {each.index: each for each in (every[n * (count - 1) // (LAYERS - 1)] for n in range(LAYERS))}
    short = copy.copy(decoder)
    short.layers = tuple(chosen[index] for index in sorted(chosen))
    return short


def measurable(model: ModelConfig, engine: EngineConfig) -> bool:
    """Whether the largest step may be run at load."""
    return on_metal() or _operations(model, engine) <= CPU_OPERATIONS


def extra_bytes(work: Callable[[], object]) -> int:
    """The most memory that MLX held at once during ``work`` beyond what it held before."""
    gc.collect()
    mx.synchronize()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    work()
    mx.synchronize()
    return max(0, int(mx.get_peak_memory()) - int(before))


def _operations(model: ModelConfig, engine: EngineConfig) -> int:
    """Multiplications and additions of the largest step, as far as it is run."""
    attention = model.num_heads * model.head_dim
    matrices = model.hidden_size * (2 * attention + 2 * model.num_kv_heads * model.head_dim)
    inner = model.intermediate_size
    if model.moe is not None:
        inner = max(inner, model.moe.top_k * model.moe.intermediate_size)
    matrices += 3 * model.hidden_size * inner
    tokens, layers = engine.max_num_batched_tokens, min(model.num_layers, LAYERS)
    head = engine.max_num_seqs * model.hidden_size * model.vocab_size
    return 2 * (tokens * layers * (matrices + 2 * attention * longest_context(model, engine)) + head)
