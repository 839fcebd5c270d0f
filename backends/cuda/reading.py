"""Steps that tell something of the prompts they read: sums of hidden states, scores of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from ...core.step import StepBatch, StepLogprobs
from ...models.decoder import Decoder
from .device import Tensors
from .ops import TorchOps
from .step import TorchStep

#: Tokens whose logits over the whole vocabulary are held at once.
SCORED_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Reading:
    """What a step read, on the device."""

    sums: torch.Tensor | None  # float32 [P, D]
    scores: Tensors = ()  # chosen [M], top ids [M, K] and their log-probabilities; (): none

    @property
    def tensors(self) -> Tensors:
        return self.scores if self.sums is None else (self.sums, *self.scores)

    def on_host(self, fetched: Tensors) -> tuple[np.ndarray | None, StepLogprobs | None]:
        """The sums and scores out of ``tensors``, once they were fetched."""
        sums, scores = (None, fetched) if self.sums is None else (fetched[0].numpy(), fetched[1:])
        if not scores:
            return sums, None
        chosen, ids, values = (one.numpy() for one in scores)
        return sums, StepLogprobs(chosen, ids.astype(np.int32), values)


def read(decoder: Decoder, ops: TorchOps, step: TorchStep, batch: StepBatch) -> tuple[torch.Tensor | None, Reading]:
    """Run a step with ``pools`` or ``targets``: the logits that are sampled from, as ever, and what was read."""
    device = step.token_ids.device
    x = decoder.hidden(ops, step.token_ids, torch.arange(batch.num_tokens, device=device), step)
    assert isinstance(x, torch.Tensor)
    reading = Reading(_sums(x, batch), _scores(decoder, ops, x, batch))
    logits = None if step.logit_rows is None else decoder.logits(ops, ops.take_rows(x, step.logit_rows))
    return logits, reading


def _sums(x: torch.Tensor, batch: StepBatch) -> torch.Tensor | None:
    if batch.pools is None:
        return None
    pairs = zip(batch.query_start[1:].tolist(), batch.pools.tolist(), strict=True)
    return torch.stack([x[end - count : end].float().sum(0) for end, count in pairs if count])


def _scores(decoder: Decoder, ops: TorchOps, x: torch.Tensor, batch: StepBatch) -> Tensors:
    if batch.targets is None:
        return ()
    rows = np.flatnonzero(batch.targets >= 0)
    parts: list[Tensors] = []
    for start in range(0, len(rows), SCORED_AT_ONCE):
        part = rows[start : start + SCORED_AT_ONCE]
        index = torch.from_numpy(part).to(x.device)
        token = torch.from_numpy(batch.targets[part].astype(np.int64)).to(x.device)
        logits = decoder.logits(ops, ops.take_rows(x, index))
        raw = logits.float().log_softmax(-1)
        top = raw.topk(min(batch.num_top, raw.shape[1]), dim=-1)
        parts.append((raw.gather(1, token[:, None])[:, 0], top.indices, top.values))
    return tuple(torch.cat(each) for each in zip(*parts, strict=True))
