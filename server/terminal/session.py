"""A chat's state: what was said, how to sample, and the file it can be kept in."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_ROLES = ("user", "assistant")
#: Sampling settings: name in the API, least, most.
SAMPLING: dict[str, tuple[type, float, float]] = {
    "temperature": (float, 0, 100),
    "top_p": (float, 0, 1),
    "max_tokens": (int, 1, 1 << 31),
    "seed": (int, -(1 << 63), (1 << 63) - 1),
}


@dataclass
class Session:
    """One chat with one model."""

    model: str
    system: str = ""
    sampling: dict[str, float | int] = field(default_factory=dict)
    messages: list[dict[str, str]] = field(default_factory=list)

    def set(self, name: str, text: str) -> None:
        """A sampling setting; empty or ``default``: the model's own. Raises ``ValueError``."""
        if text in ("", "default"):
            self.sampling.pop(name, None)
            return
        kind, least, most = SAMPLING[name]
        try:
            value = kind(text)
        except ValueError:
            raise ValueError(f"{name} is {text!r}; wanted: a number") from None
        if not least <= value <= most:
            raise ValueError(f"{name} is {text}; it must be from {least:g} to {most:g}")
        self.sampling[name] = value

    def body(self) -> dict[str, Any]:
        """The request for the next answer."""
        system = [{"role": "system", "content": self.system}] if self.system else []
        return {"model": self.model, "messages": [*system, *self.messages], **self.sampling}

    def say(self, text: str) -> None:
        self.messages.append({"role": "user", "content": text})

    def answered(self, content: str, reasoning: str = "") -> None:
        """Keep an answer, whole or stopped. Without a word the question is taken back, so that roles alternate."""
        if not content and not reasoning:
            self.take_back()
            return
        answer = {"role": "assistant", "content": content}
        self.messages.append(answer | {"reasoning_content": reasoning} if reasoning else answer)

    def take_back(self) -> None:
        """Forget the last question."""
        if self.messages and self.messages[-1]["role"] == "user":
            self.messages.pop()

    def save(self, path: Path) -> None:
        """Write the chat as JSON. Raises ``OSError``."""
        kept = {"model": self.model, "system": self.system, "sampling": self.sampling, "messages": self.messages}
        path.expanduser().write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")

    def load(self, path: Path) -> None:
        """Go on with a saved chat, with the model of now. Raises ``OSError``, and ``ValueError`` for another file."""
        try:
            kept = json.loads(path.expanduser().read_text(encoding="utf-8"))
        except (ValueError, RecursionError):
            raise ValueError(f"{path} is no saved chat: it is no JSON; /save writes one") from None
        if not isinstance(kept, dict) or not isinstance(kept.get("messages"), list):
            raise ValueError(f"{path} is no saved chat: it has no list 'messages'; /save writes one")
        for message in kept["messages"]:
            if not (isinstance(message, dict) and message.get("role") in _ROLES and _texts(message)):
                raise ValueError(f"{path} is no saved chat: {message!r} is no message of a user or an assistant")
        fresh = Session(self.model, str(kept.get("system") or ""))
        sampling = kept.get("sampling") or {}
        for name in SAMPLING:
            if sampling.get(name) is not None:
                fresh.set(name, str(sampling[name]))
        self.system, self.sampling, self.messages = fresh.system, fresh.sampling, kept["messages"]


def _texts(message: dict[str, Any]) -> bool:
    return "content" in message and all(isinstance(value, str) for value in message.values())
