"""How much a model is to think, said in the words that its chat template knows."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from .errors import bad_request

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh")
#: Switches that templates have for thinking at all.
_SWITCHES = ("enable_thinking", "thinking")


def thinking_options(effort: str | None, known: Collection[str]) -> dict[str, Any]:
    """Template variables for ``reasoning_effort``; a template that knows no such thing gets none.

    Raises ``ApiError`` 400 for a word that is no effort.
    """
    if effort is None:
        return {}
    if effort not in EFFORTS:
        raise bad_request(f"reasoning_effort is {effort!r}; it can be {', '.join(EFFORTS)}", "reasoning_effort")
    options: dict[str, Any] = {"reasoning_effort": effort} if "reasoning_effort" in known else {}
    return options | _switches(effort != "none", known)


def thinking_off(known: Collection[str]) -> dict[str, Any]:
    """Template variables for no thinking at all, where the template has a switch for that."""
    return _switches(False, known)


def _switches(on: bool, known: Collection[str]) -> dict[str, Any]:
    return {name: on for name in _SWITCHES if name in known}
