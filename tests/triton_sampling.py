"""The kernels' sampler beside the reference. Import it only where Triton is installed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from triton_setup import CPU

from bireme.backends.cuda.sampler import Sampled, Sampler
from bireme.backends.cuda.triton_sampler import TritonSampler
from bireme.core.request import SamplingParams
from bireme.core.step import RowInit, StepMasks

VOCAB = 300  # with chunks of 64: five, the last of them not full
CHUNK = 64
PROMPT, OUTPUT, ENDS = (1, 2, 3, 299), (3, 3, 64), (7, 8, 120)

EVERYTHING = (
    SamplingParams(),
    SamplingParams(temperature=0),
    SamplingParams(temperature=0.7, top_k=5),
    SamplingParams(temperature=1.3, top_p=0.8),
    SamplingParams(top_k=40, top_p=0.5),
    SamplingParams(min_p=0.1),
    SamplingParams(top_k=4, repetition_penalty=0.8, presence_penalty=-0.5, frequency_penalty=0.3),
    SamplingParams(temperature=0, min_tokens=5, logit_bias={3: 4.0, 299: -100.0, 7: 30.0, 64: 2.0}),
)


class Pair:
    """Both samplers with the same rows; ``draw`` asks both."""

    def __init__(self, asked: Sequence[SamplingParams], vocab: int = VOCAB) -> None:
        self.rows = np.arange(len(asked), dtype=np.int32)
        self.reference, self.kernels = (kind(len(asked) + 1, vocab, CPU) for kind in (Sampler, TritonSampler))
        for row, params in enumerate(asked):
            self.begin(row, params)

    def begin(self, row: int, params: SamplingParams, **more: Any) -> None:
        init = RowInit(row, params, 1234567 + row * (2**62 + 5), PROMPT, OUTPUT, ENDS)
        for sampler in (self.reference, self.kernels):
            sampler.begin(init)

    def draw(self, logits: torch.Tensor, position: int, masks: StepMasks | None = None) -> tuple[Sampled, Sampled]:
        positions = np.full(len(self.rows), position, np.int64)
        return (
            self.reference.sample(logits.clone(), self.rows, positions, masks),
            self.kernels.sample(logits, self.rows, positions, masks),
        )


def agree(pair: Pair, steps: int, spread: float = 3.0) -> None:
    """Draw ``steps`` times; every token and flag is the reference's."""
    generator = torch.Generator().manual_seed(len(pair.rows))
    for step in range(steps):
        logits = torch.randn(len(pair.rows), pair.reference.table.vocab_size, generator=generator) * spread
        wanted, found = pair.draw(logits, step)
        assert found.tokens.tolist() == wanted.tokens.tolist()
        assert found.nan.tolist() == wanted.nan.tolist()
