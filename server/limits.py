"""How much of each thing one request may hold. Every refusal names the value, the limit and the option."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..core.config import MAX_LOGPROBS, MAX_N


@dataclass(frozen=True, slots=True)
class RequestLimits:
    """Counts. ``max_n`` and ``max_logprobs`` can only be lowered: the engine has its own limits."""

    max_messages: int = 4096  # of a conversation
    max_tools: int = 512
    max_prompts: int = 2048  # texts in one request to /v1/completions or /v1/embeddings
    max_stop_strings: int = 16
    max_n: int = MAX_N  # choices per prompt, ``best_of`` included
    max_logprobs: int = MAX_LOGPROBS  # alternatives per token
    max_logit_bias: int = 1024  # entries

    def __post_init__(self) -> None:
        for name, most in (("max_n", MAX_N), ("max_logprobs", MAX_LOGPROBS)):
            if getattr(self, name) > most:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at most {most}")

    def excess(self, body: object) -> tuple[str, str] | None:
        """The first field of a request's body that holds too much, and a sentence that says so; None: none does."""
        for field, what, name in _COUNTED:
            value = getattr(body, field, None)
            if isinstance(value, list | dict) and len(value) > getattr(self, name):
                if field not in ("prompt", "input") or not is_ids(value):
                    return field, self._sentence(f"{field} holds {len(value)} {what}", name)
        for field, name in _NUMBERS:
            value = getattr(body, field, None)
            if type(value) is int and value > getattr(self, name):
                return field, self._sentence(f"{field} is {value}", name)
        return None

    def _sentence(self, what: str, name: str) -> str:
        return f"{what}; this server takes at most {getattr(self, name)} (--{name.replace('_', '-')})."


#: (field, what it holds, limit)
_COUNTED = (
    ("messages", "messages", "max_messages"),
    ("tools", "tools", "max_tools"),
    ("functions", "functions", "max_tools"),
    ("prompt", "prompts", "max_prompts"),
    ("input", "texts", "max_prompts"),
    ("stop", "strings", "max_stop_strings"),
    ("logit_bias", "entries", "max_logit_bias"),
)
_NUMBERS = (("n", "max_n"), ("best_of", "max_n"), ("logprobs", "max_logprobs"), ("top_logprobs", "max_logprobs"))


def is_ids(prompt: list[Any] | dict[Any, Any]) -> bool:
    """One prompt, given as token ids."""
    return bool(prompt) and all(type(item) is int for item in prompt)
