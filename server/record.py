"""One request's times and counts, told to everybody who keeps account: metrics, usage, limits, traces."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from ..core.request import FinishReason
from .users.caller import Caller

if TYPE_CHECKING:
    from .metrics import Metrics

logger = logging.getLogger("bireme.server")


class RequestRecord:
    """From arrival to end; it ends in exactly one reason, an abort included. Times are on ``time.monotonic``."""

    def __init__(self, metrics: Metrics, prompt_tokens: int, request_id: str, caller: Caller | None = None) -> None:
        self._metrics = metrics
        self.caller = caller or Caller()
        self.request_id = request_id
        self.prompt_tokens = prompt_tokens
        self.cached_tokens = 0
        self.num_tokens = 0
        self.arrived = time.monotonic()
        self.queue_seconds: float | None = None
        self.first_at: float | None = None
        self.last_at = 0.0
        self.ended_at: float | None = None
        self.reason: FinishReason | None = None
        self.reasons: tuple[FinishReason, ...] = ()  # of the choices that ended
        self.on_end: Callable[[RequestRecord], None] | None = None  # somebody else who keeps account
        self._charged = False
        self._submitted = False
        self._refused = False

    @property
    def ttft(self) -> float | None:
        """Seconds to the first token."""
        return None if self.first_at is None else self.first_at - self.arrived

    @property
    def tpot(self) -> float | None:
        """Mean seconds per token after the first."""
        if self.first_at is None or self.num_tokens < 2:
            return None
        return (self.last_at - self.first_at) / (self.num_tokens - 1)

    def admit(self) -> None:
        """Charge the prompt to the user's limits. Raises ``ApiError`` 429."""
        if self.caller.allowance is not None:
            self.caller.allowance.admit(self.prompt_tokens)
            self._charged = True

    def submitted(self) -> None:
        self._submitted = True

    def failed(self, status: int) -> None:
        """It ended with an HTTP error. One that the engine never took is no request for the metrics."""
        if status in (400, 429) and self.first_at is None:
            self._refused = True
        self.reason = FinishReason.ABORT if status == 503 else FinishReason.ERROR

    def queued(self, seconds: float) -> None:
        """It waited so long for the first step that worked on it."""
        if self.queue_seconds is None:
            self.queue_seconds = seconds
            self._metrics.queue_time.observe(seconds)

    def cached(self, tokens: int) -> None:
        """So much of the prompt was in the prefix cache: it is not charged. Each choice may say so again."""
        self._give_back(tokens - self.cached_tokens)
        self.cached_tokens = tokens

    def tokens(self, count: int) -> None:
        """``count`` tokens arrived now."""
        if not count:
            return
        now, metrics = time.monotonic(), self._metrics
        if self.first_at is None:
            self.first_at = now
            metrics.ttft.observe(now - self.arrived)
            self._count_prompt()
        else:
            metrics.itl.observe((now - self.last_at) / count, count)
        self.last_at = now
        self.num_tokens += count
        metrics.generation_tokens.inc(count)
        self.caller.usage.output += count
        if self._charged:
            assert self.caller.allowance is not None
            self.caller.allowance.spend(count)

    def end(self, reasons: Sequence[FinishReason | None]) -> None:
        """The request is over; a choice without a reason was cut off."""
        if self.ended_at is not None:
            return
        self.ended_at = time.monotonic()
        if not self._submitted or self._refused:
            self._give_back(self.prompt_tokens)
            return
        if self.reason is None:
            cut = FinishReason.ABORT if None in reasons else None
            self.reason = cut or (FinishReason.LENGTH if FinishReason.LENGTH in reasons else FinishReason.STOP)
        self.reasons = tuple(reason for reason in reasons if reason is not None)
        if self.first_at is None:
            self._count_prompt()
        self._metrics.ended(self)
        if self.on_end is not None:
            self.on_end(self)
        self._log()

    def _count_prompt(self) -> None:
        self._metrics.prompt_tokens.inc(self.prompt_tokens)
        self.caller.usage.prompt += self.prompt_tokens
        self.caller.usage.cached += self.cached_tokens

    def _give_back(self, tokens: int) -> None:
        if self._charged:
            assert self.caller.allowance is not None
            self.caller.allowance.spend(-tokens)

    def _log(self) -> None:
        """One line per request: numbers only, never what was asked or answered."""
        assert self.reason is not None and self.ended_at is not None
        first = "none" if self.ttft is None else f"{self.ttft:.3f} s"
        logger.info(
            "request %s: %s; prompt %d tokens (%d cached), output %d; first token %s, end %.3f s",
            self.request_id, self.reason.value, self.prompt_tokens, self.cached_tokens, self.num_tokens,
            first, self.ended_at - self.arrived,
        )  # fmt: skip
