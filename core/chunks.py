"""How much prompt one step reads: as much as the running streams can bear, and never nothing."""

from __future__ import annotations

from .cost import CostModel


class ChunkBudget:
    """Tokens left for prompts in this step, in number and in time.

    ``seconds`` is what the step may still take. However little that is, ``minimum`` tokens are granted in every step:
    streams cannot starve prompts either. So a stream's next token is at most one step away, and that step lasts no
    longer than the larger of the stall bound and the time of its decodes plus ``minimum`` prompt tokens.
    """

    def __init__(self, cost: CostModel, tokens: int, seconds: float, minimum: int) -> None:
        self._cost = cost
        self._tokens = tokens
        self._seconds = seconds
        self._minimum = min(minimum, tokens)

    def is_open(self) -> bool:
        """Whether the next prompt will get a token."""
        if self._tokens < 1:
            return False
        return self._minimum > 0 or self._cost.chunk(self._seconds, 0) > 0

    def grant(self, computed: int, wanted: int) -> int:
        """Tokens for a prompt with ``computed`` of them done, ``wanted`` to do; at least 1 while the budget is open."""
        count = min(wanted, self._tokens, max(1, self._minimum, self._cost.chunk(self._seconds, computed)))
        pairs = count * computed + count * (count + 1) // 2
        self._seconds -= self._cost.per_token * count + self._cost.per_pair * pairs
        self._tokens -= count
        self._minimum = max(0, self._minimum - count)
        return count
