"""Stop strings in a stream of text, in time linear in the text (Knuth, Morris and Pratt, 1977)."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Finds the first of several stop strings, and holds back text that may still be the start of one.

    The stop string that is complete first wins, of several complete at once the longest: so the answer doesn't depend
    on where the text was cut.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        if not all(stops):
            raise ValueError("a stop string is empty; it must hold at least one character")
        self._stops = sorted(set(stops), key=len, reverse=True)
        self._tables = [_failure_table(stop) for stop in self._stops]
        self._states = [0] * len(self._stops)  # characters of each stop that the text's end matches
        self._held = ""

    def push(self, text: str) -> tuple[str, str | None]:
        """Text that is certainly before any stop string, and the stop string found, if any."""
        buffer = self._held + text
        for position in range(len(self._held), len(buffer)):
            found = self._step(buffer[position])
            if found is not None:
                self._held = ""
                return buffer[: position + 1 - len(found)], found
        keep = max(self._states)
        self._held = buffer[len(buffer) - keep :]
        return buffer[: len(buffer) - keep], None

    def flush(self) -> str:
        """The text held back, which turned out to be no stop string."""
        held, self._held = self._held, ""
        self._states = [0] * len(self._stops)
        return held

    def _step(self, character: str) -> str | None:
        found = None
        for index, stop in enumerate(self._stops):
            state = self._states[index]
            while state and stop[state] != character:
                state = self._tables[index][state]
            state += stop[state] == character
            if state == len(stop):
                found = found or stop
                state = 0
            self._states[index] = state
        return found


def _failure_table(stop: str) -> list[int]:
    """``table[n]``: the longest proper border of the first n characters of ``stop``."""
    table = [0, 0]
    border = 0
    for position in range(1, len(stop)):
        while border and stop[position] != stop[border]:
            border = table[border]
        border += stop[position] == stop[border]
        table.append(border)
    return table
