"""A user: a name, a share, a rank and limits."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields

#: Stands in metrics and usage for everybody who has no key of their own.
OTHER = "other"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MOST = 2**53  # that JSON and SQLite both hold


@dataclass(frozen=True, slots=True)
class User:
    """Who may do what. A limit of None is no limit.

    Raises:
        ValueError: a value out of range; the message names the field, the value and the limit.
    """

    name: str
    weight: float = 1.0  # of the fair share: 3 gets three times the tokens of 1, where both have requests waiting
    priority: int = 0  # of requests that name none, and the best (lowest) that any may have
    max_concurrent: int | None = None  # requests at once
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None  # prompt tokens computed and tokens made
    max_context: int | None = None  # tokens, prompt and answer together

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name) or self.name == OTHER:
            raise ValueError(
                f"{self.name!r} can't be a user's name: 1 to 64 letters, digits and . _ @ -, the first a letter or "
                f"digit, and not {OTHER!r}"
            )
        if not 0.001 <= self.weight <= 1000:
            raise ValueError(f"weight is {self.weight}; it must be 0.001 to 1000")
        if not -(2**31) <= self.priority < 2**31:
            raise ValueError(f"priority is {self.priority}; it must be {-(2**31)} to {2**31 - 1}")
        for name in LIMITS:
            value = getattr(self, name)
            least = 2 if name == "max_context" else 1  # a prompt's token and one more
            if value is not None and not least <= value <= _MOST:
                raise ValueError(f"{name} is {value}; it must be {least} to {_MOST}, or none for no limit")

    @property
    def limited(self) -> bool:
        """Whether answers carry rate limits."""
        return self.requests_per_minute is not None or self.tokens_per_minute is not None


LIMITS = ("max_concurrent", "requests_per_minute", "tokens_per_minute", "max_context")
FIELDS = tuple(one.name for one in fields(User))
