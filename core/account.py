"""What one user has had: the unit of fairness."""

from __future__ import annotations

from dataclasses import dataclass

#: Service per token: making a token costs about twice as much as reading one (section 3.1 of the paper).
PROMPT_WEIGHT = 1.0
OUTPUT_WEIGHT = 2.0


@dataclass(slots=True, eq=False)
class Account:
    """One user's service so far, in weighted tokens divided by the user's weight."""

    user: str
    weight: float = 1.0
    counter: float = 0.0
    waiting: int = 0  # sequences in the queue
    in_line: int = 0  # of them: those that were not preempted
    running: int = 0
    unstarted: int = 0  # requests of which nothing has run yet

    def owes(self, other: Account) -> bool:
        """Whether it holds more places for its weight than ``other`` would with one more, and was served more: then
        ``other`` goes before it. Never both ways, and never itself."""
        return self.running / self.weight > (other.running + 1) / other.weight and self.counter > other.counter

    def charge(self, prompt_tokens: int) -> None:
        """Prompt tokens were computed. (Output tokens, one at a time, are charged where they are dealt out.)"""
        self.counter += PROMPT_WEIGHT * prompt_tokens / self.weight
