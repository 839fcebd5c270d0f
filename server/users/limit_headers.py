"""What is left of a user's limits per minute, in the headers that each API's clients read."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

_OF = ("requests", "tokens")
_PARTS = ("limit", "remaining", "reset")
#: What answers to limited users may carry.
NAMES = tuple(
    name for of in _OF for part in _PARTS for name in (f"x-ratelimit-{part}-{of}", f"anthropic-ratelimit-{of}-{part}")
)


@dataclass(frozen=True, slots=True)
class Left:
    """One limit: ``of`` "requests" or "tokens" per minute."""

    of: str
    limit: int
    remaining: int
    reset: float  # seconds until all of it is there again


def openai_headers(limits: Iterable[Left]) -> dict[str, str]:
    """``x-ratelimit-limit-requests`` and so on; times as ``120ms``, ``1.5s``, ``6m0s``."""
    found: dict[str, str] = {}
    for left in limits:
        values = (str(left.limit), str(left.remaining), duration(left.reset))
        found |= {f"x-ratelimit-{part}-{left.of}": value for part, value in zip(_PARTS, values, strict=True)}
    return found


def anthropic_headers(limits: Iterable[Left], now: datetime | None = None) -> dict[str, str]:
    """``anthropic-ratelimit-requests-limit`` and so on; times as moments (RFC 3339, UTC)."""
    found: dict[str, str] = {}
    for left in limits:
        moment = (now or datetime.now(UTC)) + timedelta(seconds=left.reset)
        values = (str(left.limit), str(left.remaining), moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
        found |= {f"anthropic-ratelimit-{left.of}-{part}": value for part, value in zip(_PARTS, values, strict=True)}
    return found


def duration(seconds: float) -> str:
    """As OpenAI writes times."""
    if seconds < 1:
        return f"{round(seconds * 1000)}ms"
    if seconds < 60:
        return f"{round(seconds, 1):g}s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}m{rest}s"
