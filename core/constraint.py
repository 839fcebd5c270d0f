"""A sequence's grammar while it runs: which tokens may come next, and when nothing more may.

End tokens are the engine's affair, not the grammar's: they are allowed where the text so far is a whole one, as far as
``min_tokens`` and ``ignore_eos`` let them.
"""

from __future__ import annotations

from enum import Enum

import numpy as np

from .grammar import Grammar, GrammarError, Mask, allow

_DEAD_END = "no token of this model can go on towards what was asked for"


class Outcome(Enum):
    """What a token led to."""

    GOES_ON = "goes on"  # ``mask`` is the next token's
    COMPLETE = "complete"  # nothing can follow
    FAILED = "failed"  # ``error`` says why


class Constraint:
    """One sequence's place in its grammar, and the mask of its next token. It lives through preemptions.

    ``mask`` is None from the submission of a step that uses it until that step's token was followed.
    """

    __slots__ = ("_ends", "_matcher", "_min_tokens", "_stops", "_width", "error", "mask")

    def __init__(self, grammar: Grammar, stops: frozenset[int], ends: frozenset[int], min_tokens: int) -> None:
        """``stops``: the ids that end this sequence; ``ends``: the ids that end a turn of this model.

        Raises:
            GrammarError: no first token is possible.
        """
        self._matcher = grammar.matcher()
        self._stops = tuple(stops)
        self._ends = tuple(ends)
        self._min_tokens = min_tokens
        self._width = len(grammar.first_mask)
        self.error: str | None = None
        self.mask: Mask | None = self._with_ends(grammar.first_mask.copy(), 0)
        if self.mask is None:
            raise GrammarError(_DEAD_END)

    def follow(self, token: int, made: int) -> Outcome:
        """Take the sequence's latest token, of which it has ``made`` now, and find what may come next."""
        try:
            self._matcher.accept(token)
            if self._matcher.complete:
                return Outcome.COMPLETE
            mask = np.zeros(self._width, np.int32)
            self._matcher.fill(mask)
        except GrammarError as error:
            self.error = str(error)
            return Outcome.FAILED
        self.mask = self._with_ends(mask, made)
        if self.mask is not None:
            return Outcome.GOES_ON
        if self._matcher.accepting:
            return Outcome.COMPLETE
        self.error = _DEAD_END
        return Outcome.FAILED

    def completes(self, token: int) -> bool:
        """Take the sequence's last token; whether its text is a whole one now."""
        try:
            self._matcher.accept(token)
        except GrammarError:
            return False
        return self._matcher.complete

    def _with_ends(self, mask: Mask, made: int) -> Mask | None:
        """``mask`` with the bits of what ends the sequence set right; None where nothing at all is allowed."""
        allow(mask, self._ends, False)
        if made < self._min_tokens:
            allow(mask, self._stops, False)
        elif self._matcher.accepting:
            allow(mask, self._stops, True)
        return mask if mask.any() else None
