"""What was used, by whom: sums since the server's start."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Usage:
    """Tokens and requests of one user. ``cached`` counts among ``prompt``."""

    prompt: int = 0
    cached: int = 0
    output: int = 0
    requests: int = 0  # that were begun: answered with a status below 400
    rejected: int = 0  # answered 429

    def minus(self, other: Usage) -> Usage:
        return Usage(*(getattr(self, name) - getattr(other, name) for name in COUNTS))

    def copy(self) -> Usage:
        return Usage(*(getattr(self, name) for name in COUNTS))

    def __bool__(self) -> bool:
        return any(getattr(self, name) for name in COUNTS)


COUNTS = tuple(one.name for one in fields(Usage))


class UsageBook:
    """Sums that only grow, by user. One thread counts; another may read them at any time and write down the growth."""

    def __init__(self) -> None:
        self._sums: dict[str, Usage] = {}
        self._written: dict[str, Usage] = {}

    def of(self, name: str) -> Usage:
        """The user's sums, to be counted up in place."""
        return self._sums.setdefault(name, Usage())

    def all(self) -> list[tuple[str, Usage]]:
        return list(self._sums.items())

    def growth(self) -> list[tuple[str, Usage]]:
        """What came since the last ``wrote``."""
        found = [(name, now.minus(self._written.get(name, Usage()))) for name, now in self.all()]
        return [(name, more) for name, more in found if more]

    def wrote(self, growth: list[tuple[str, Usage]]) -> None:
        """``growth`` is kept elsewhere now."""
        for name, more in growth:
            before = self._written.get(name, Usage())
            self._written[name] = Usage(*(getattr(before, one) + getattr(more, one) for one in COUNTS))
