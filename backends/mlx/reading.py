"""Steps that tell something of the prompts they read: sums of hidden states, scores of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...core.step import StepBatch, StepLogprobs
from ...models.decoder import Decoder
from .library import Array, mx
from .ops import MlxOps
from .step import MlxStep, put


@dataclass(frozen=True, slots=True)
class Reading:
    """What a step read."""

    sums: Array | None  # float32 [P, D]
    scores: tuple[Array, ...] = ()  # chosen [M], top ids [M, K] and their log-probabilities; (): none

    @property
    def arrays(self) -> list[Array]:
        return [*(() if self.sums is None else (self.sums,)), *self.scores]

    def on_host(self) -> tuple[NDArray[np.float32] | None, StepLogprobs | None]:
        sums = None if self.sums is None else np.array(self.sums)
        if not self.scores:
            return sums, None
        chosen, ids, values = (np.array(one) for one in self.scores)
        return sums, StepLogprobs(chosen, ids.astype(np.int32), values)


def read(decoder: Decoder, ops: MlxOps, step: MlxStep, batch: StepBatch, at_once: int) -> tuple[Array | None, Reading]:
    """Run a step with ``pools`` or ``targets``: the logits that are sampled from, as ever, and what was read.

    ``at_once``: tokens whose logits over the whole vocabulary are held together while they are scored.
    """
    x = decoder.hidden(ops, step.token_ids, mx.arange(batch.num_tokens), step)
    assert x is not None
    reading = Reading(_sums(x, batch), _scores(decoder, ops, x, step, at_once))
    logits = None if step.logit_rows is None else decoder.logits(ops, ops.take_rows(x, step.logit_rows))
    return logits, reading


def _sums(x: Array, batch: StepBatch) -> Array | None:
    if batch.pools is None:
        return None
    pairs = zip(batch.query_start[1:].tolist(), batch.pools.tolist(), strict=True)
    return mx.stack([x[end - count : end].astype(mx.float32).sum(0) for end, count in pairs if count])


def _scores(decoder: Decoder, ops: MlxOps, x: Array, step: MlxStep, at_once: int) -> tuple[Array, ...]:
    batch = step.host
    if batch.targets is None:
        return ()
    rows = np.flatnonzero(batch.targets >= 0)
    parts: list[tuple[Array, ...]] = []
    for start in range(0, len(rows), at_once):
        part = rows[start : start + at_once]
        logits = decoder.logits(ops, ops.take_rows(x, put(part))).astype(mx.float32)
        raw = logits - mx.logsumexp(logits, axis=-1, keepdims=True)
        order = mx.contiguous(mx.argsort(-raw, axis=-1)[:, : batch.num_top])  # a view would keep the whole
        chosen = mx.take_along_axis(raw, put(batch.targets[part])[:, None], axis=-1)[:, 0]
        parts.append((chosen, order, mx.take_along_axis(raw, order, axis=-1)))
        if at_once < len(rows):  # MLX would make the parts' logits ahead, and hold them all
            step.settle()
            mx.eval(parts[-1])
    return tuple(mx.concatenate(each) for each in zip(*parts, strict=True))
