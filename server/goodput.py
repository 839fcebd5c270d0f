"""How many requests met the objective: for each user, and in all."""

from __future__ import annotations

from dataclasses import dataclass

from ..core.request import FinishReason
from ..core.slo import Slo


@dataclass(slots=True)
class Attainment:
    """Requests judged, and how many met each bound; a bound that there isn't is met."""

    judged: int = 0
    ttft: int = 0
    tpot: int = 0
    both: int = 0


class Goodput:
    """Judges each request once, when it is over. A failed one met nothing. One whose client left counts only if its
    first token was late by then: nobody knows how it would have gone on. One that made no tokens on purpose (an
    embedding) is held to nothing."""

    def __init__(self, slo: Slo | None) -> None:
        self.slo = slo
        self._users: dict[str, Attainment] = {}

    def judge(self, label: str, reason: FinishReason, ttft: float | None, tpot: float | None, age: float) -> None:
        """``ttft`` and ``tpot`` in seconds, None where there was no token, or only one; ``age`` at the end."""
        if self.slo is None:
            return
        bound = float("inf") if self.slo.ttft is None else self.slo.ttft
        early = ttft is not None and ttft <= bound
        if reason is FinishReason.ABORT and (early or age <= bound):
            return
        if ttft is None and reason in (FinishReason.STOP, FinishReason.LENGTH):
            return  # nothing was to be generated
        failed = reason in (FinishReason.ERROR, FinishReason.ABORT)
        first = early and not failed
        rest = not failed and (tpot is None or self.slo.tpot is None or tpot <= self.slo.tpot)
        one = self._users.setdefault(label, Attainment())
        one.judged += 1
        one.ttft += first
        one.tpot += rest
        one.both += first and rest

    def users(self) -> list[tuple[str, Attainment]]:
        return list(self._users.items())

    @property
    def total(self) -> tuple[int, int]:
        """Requests that met all bounds, and all that were judged."""
        return sum(one.both for one in self._users.values()), sum(one.judged for one in self._users.values())
