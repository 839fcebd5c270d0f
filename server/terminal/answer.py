"""One answer: shown as it comes, measured, and stopped by Ctrl-C."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any

from .connection import Delta
from .display import Display


@dataclass
class Answer:
    """What came. Times are seconds since the question was sent."""

    content: str = ""
    reasoning: str = ""
    finish: str | None = None
    stopped: bool = False  # by Ctrl-C
    usage: Mapping[str, Any] = field(default_factory=dict)
    first: float | None = None  # the first text
    last: float = 0.0

    def statistics(self) -> str:
        """One line."""
        if self.first is None:
            return "no answer yet"
        prompt, made = self.usage.get("prompt_tokens"), self.usage.get("completion_tokens")
        parts = [f"first token after {self.first:.2f} s", f"{self.last:.2f} s in all"]
        if prompt is not None:
            cached = (self.usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
            parts.append(f"{prompt} prompt tokens, {cached} of them cached")
        if made is not None:
            rate = f" at {(made - 1) / (self.last - self.first):.1f} tokens/s" if self.last > self.first else ""
            parts.append(f"{made} tokens made{rate}")
        return "; ".join(parts)


def receive(
    deltas: Generator[Delta, None, None], display: Display, clock: Callable[[], float] = time.perf_counter
) -> Answer:
    """Show an answer to its end, or until Ctrl-C. Raises ``ServerError``; what came until then stays shown."""
    answer, begun = Answer(), clock()
    with display, contextlib.closing(deltas):
        try:
            for delta in deltas:
                if delta.content or delta.reasoning:
                    answer.last = clock() - begun
                    answer.first = answer.last if answer.first is None else answer.first
                    answer.content += delta.content
                    answer.reasoning += delta.reasoning
                    display.add(delta.content, delta.reasoning)
                answer.finish = delta.finish or answer.finish
                answer.usage = delta.usage or answer.usage
        except KeyboardInterrupt:
            answer.stopped = True
    return answer
