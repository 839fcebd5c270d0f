"""Reasoning between two marks before the answer: ``<think>`` and its like."""

from __future__ import annotations

from .machine import Machine, Steps


class ThinkParser(Machine):
    """``opened``: the prompt ended with the opening mark, so the text begins inside the reasoning."""

    def __init__(self, opening: str = "<think>", closing: str = "</think>", *, opened: bool = False) -> None:
        super().__init__()
        self._opening = opening
        self._closing = closing
        self._opened = opened

    def run(self) -> Steps[None]:
        held: list[str] = []
        yield from self.space(held.append)
        # A model may repeat the mark that its prompt ended with.
        if not (yield from self.take(self._opening)) and not self._opened:
            self.content.push("".join(held))
        elif (yield from self.until((self._closing,), self.reasoning.push)):
            self.reasoning.cut()
            self.content.cut()
        yield from self.until((), self.content.push)
