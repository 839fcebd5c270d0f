"""A grammar over token ids without a library: a finite automaton."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bireme.core.grammar import GrammarError, Mask, allow, mask_width


@dataclass
class Automaton:
    """``moves[state]`` is {token: next state}; 0 is the start. A ``Grammar``."""

    moves: list[dict[int, int]]
    accepting: set[int]
    vocab_size: int
    before_fill: Callable[[int], None] = lambda state: None  # may wait, or raise
    fills: list[int] = field(default_factory=list)  # states for which masks were made

    @property
    def first_mask(self) -> Mask:
        mask = np.zeros(mask_width(self.vocab_size), np.int32)
        allow(mask, tuple(self.moves[0]), True)
        return mask

    def matcher(self) -> AutomatonMatcher:
        return AutomatonMatcher(self)

    def reads(self, tokens: list[int]) -> bool:
        """Whether ``tokens`` is a beginning of something accepted; raises ``KeyError`` at a forbidden token."""
        state = 0
        for token in tokens:
            state = self.moves[state][token]
        return state in self.accepting


class AutomatonMatcher:
    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self._state = 0
        self._busy = threading.Lock()

    @property
    def accepting(self) -> bool:
        return self._state in self._automaton.accepting

    @property
    def complete(self) -> bool:
        return self.accepting and not self._automaton.moves[self._state]

    def accept(self, token: int) -> None:
        if token not in self._automaton.moves[self._state]:
            raise GrammarError(f"token {token} is not allowed in state {self._state}")
        self._state = self._automaton.moves[self._state][token]

    def fill(self, mask: Mask) -> None:
        assert self._busy.acquire(blocking=False), "two threads at once"
        self._automaton.before_fill(self._state)
        self._automaton.fills.append(self._state)
        mask[:] = 0
        allow(mask, tuple(self._automaton.moves[self._state]), True)
        self._busy.release()


def random_automaton(seed: int, vocab_size: int, states: int = 6, first: int = 2) -> Automaton:
    """Every state reaches an accepting one; tokens ``first`` to ``vocab_size`` - 1 are used."""
    rng = np.random.default_rng(seed)
    moves: list[dict[int, int]] = []
    for state in range(states):
        tokens = rng.choice(np.arange(first, vocab_size), int(rng.integers(1, 5)), replace=False)
        moves.append({int(token): int(rng.integers(0, states)) for token in tokens})
        moves[state][int(tokens[0])] = min(state + 1, states)
    moves.append({})
    accepting = {states} | {int(s) for s in np.flatnonzero(rng.random(states) < 0.2)}
    return Automaton(moves, accepting, vocab_size)


def chain(tokens: list[int], vocab_size: int) -> Automaton:
    """These tokens and no others."""
    moves = [{token: at + 1} for at, token in enumerate(tokens)]
    return Automaton([*moves, {}], {len(tokens)}, vocab_size)
