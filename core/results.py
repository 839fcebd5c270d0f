"""What a step's results say of each sequence, beside its token."""

from __future__ import annotations

from . import pooling, scores
from .plan import Read
from .request import TokenLogprob
from .sequence import Sequence
from .step import StepResult


def keep_read(reads: list[Read], result: StepResult) -> None:
    """Give the sequences what a step told of their prompts; what it read before they entered again is dropped. Of one
    that gave way meanwhile it still counts: with this step's token it may be done."""
    summed = scored = 0
    for seq, admission, _, pooled, count in reads:
        alive = seq.num_admissions == admission
        if pooled:
            assert result.sums is not None
            if alive:
                pooling.add(seq, result.sums[summed])
            summed += 1
        if count:
            assert result.scores is not None
            if alive:
                scores.add(seq, result.scores, scored, count)
            scored += count


def logprobs_by_place(sampled: list[Sequence], result: StepResult) -> dict[int, TokenLogprob]:
    """The log-probabilities of those that asked, each cut to the number it asked for; keyed by place in the batch."""
    if result.logprobs is None:
        return {}
    found: dict[int, TokenLogprob] = {}
    for i, seq in enumerate(sampled):
        wanted = seq.group.request.params.logprobs
        if wanted is not None:
            found[i] = scores.logprob(result.logprobs, i, wanted)
    return found
