"""A service-level objective: how long a request's first token, and each further one, may take."""

from __future__ import annotations

import re
from dataclasses import dataclass

_TERM = re.compile(r"(?P<name>[a-z]+)\s*=\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>ms|s)")
_SECONDS = {"ms": 1e-3, "s": 1.0}
_RANGE = (1e-3, 3600.0)  # seconds

#: Share of a bound that planning uses: the rest is for what the fitted cost does not know.
MARGIN = 0.9


@dataclass(frozen=True, slots=True)
class Slo:
    """Upper bounds in seconds; None: not bounded. At least one is set.

    ``ttft``: arrival to the first token. ``tpot``: a request's mean time per token after its first.
    """

    ttft: float | None = None
    tpot: float | None = None

    def __post_init__(self) -> None:
        if self.ttft is None and self.tpot is None:
            raise ValueError("an objective needs at least one of ttft and tpot")
        for name in ("ttft", "tpot"):
            value = getattr(self, name)
            if value is not None and not _RANGE[0] <= value <= _RANGE[1]:
                raise ValueError(f"{name} of the objective is {value:g} s; it must be 1 ms to 3600 s")

    def __str__(self) -> str:
        terms = (f"{name}={_text(value)}" for name in ("ttft", "tpot") if (value := getattr(self, name)) is not None)
        return ",".join(terms)


def parse_slo(text: str) -> Slo:
    """``ttft=1s,tpot=50ms``, either alone, in any order. Raises ``ValueError`` naming the term that is wrong."""
    found: dict[str, float] = {}
    for term in text.split(","):
        match = _TERM.fullmatch(term.strip())
        if match is None or match["name"] not in ("ttft", "tpot"):
            raise ValueError(
                f"{term.strip()!r} is no term of an objective; give ttft=1s, tpot=50ms or both, by a comma"
            )
        if match["name"] in found:
            raise ValueError(f"the objective {text!r} gives {match['name']} twice")
        found[match["name"]] = float(match["number"]) * _SECONDS[match["unit"]]
    return Slo(**found)


def _text(seconds: float) -> str:
    return f"{seconds:g}s" if seconds >= 1 else f"{seconds * 1000:g}ms"
