"""How likely a prompt's own tokens are: log-probabilities that the steps which read it give on the way."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .request import TokenLogprob
from .step import StepLogprobs

if TYPE_CHECKING:
    from .sequence import Sequence


def wanted(seq: Sequence) -> bool:
    """Whether reading this sequence's prompt gives scores: it leads its request, and they were not handed out yet."""
    return seq.group.request.params.prompt_logprobs is not None and seq is seq.leader and not seq.reported


def targets(seq: Sequence, start: int, length: int) -> NDArray[np.int32]:
    """For the tokens ``start`` to ``start + length``, [length]: the prompt's next token, -1 behind its last."""
    found = np.full(length, -1, np.int32)
    if wanted(seq):
        following = seq.group.request.prompt_ids[start + 1 : start + 1 + length]
        found[: len(following)] = following
    return found


def add(seq: Sequence, scores: StepLogprobs, first: int, count: int) -> None:
    """The next ``count`` tokens' scores: those of the step from its ``first`` on."""
    top = seq.group.request.params.prompt_logprobs
    for i in range(first, first + count):
        seq.scores.append(logprob(scores, i, top or 0))


def logprob(scores: StepLogprobs, i: int, top: int) -> TokenLogprob:
    """Entry ``i`` of a step's, cut to the ``top`` most likely tokens."""
    ids = tuple(scores.top_ids[i, :top].tolist())
    return TokenLogprob(float(scores.chosen[i]), ids, tuple(scores.top_logprobs[i, :top].tolist()))


def take(seq: Sequence) -> tuple[TokenLogprob, ...] | None:
    """The scores of all the prompt's tokens but the first, to be handed out once; None where none were asked for."""
    if not wanted(seq):
        return None
    found, seq.scores = tuple(seq.scores), []
    return found
