"""Text whose white space at its ends is dropped, as it streams."""

from __future__ import annotations

from collections.abc import Callable

#: A longer run of white space is text like any other, so that a model that writes nothing else is still seen to write.
MAX_SPACE = 16


class TrimmedText:
    """Hands text on and holds white space back: ``cut`` drops it, any text after it brings it out.

    The outcome depends on the text alone, not on how it was cut into pieces.
    """

    def __init__(self, emit: Callable[[str], None], *, fresh: bool = False) -> None:
        self._emit = emit
        self._fresh = fresh  # white space that comes now is dropped
        self._space = ""  # held: the run of white space at the end
        self._passing = False  # the run has grown too long to be held

    def push(self, text: str) -> None:
        if self._fresh:
            text = text.lstrip()
            self._fresh = not text
        body = text.rstrip()
        if body:
            self._emit(self._space + body)
            self._space, self._passing = "", False
        tail = text[len(body) :]
        if self._passing:
            self._hand_on(tail)
        elif len(self._space) + len(tail) > MAX_SPACE:
            self._passing = True
            self._hand_on(self._space + tail)
            self._space = ""
        else:
            self._space += tail

    def cut(self) -> None:
        """Something else follows: what is held is dropped, and so is white space that comes next."""
        self._space, self._passing, self._fresh = "", False, True

    def flush(self) -> None:
        """The end: what is held comes out."""
        self._hand_on(self._space)
        self._space = ""

    def _hand_on(self, text: str) -> None:
        if text:
            self._emit(text)
