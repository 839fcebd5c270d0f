"""Bodies to send to a server on the scripted model, and readers of its answers."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import httpx

#: Seconds before a wait gives up. Only a failure waits so long: a busy machine must not be taken for one.
PATIENCE = 120.0


def wait_for(condition: Callable[[], Any], timeout: float = PATIENCE) -> Any:
    """The condition's first true value, or its last one after ``timeout`` seconds."""
    end = time.monotonic() + timeout
    while not (value := condition()) and time.monotonic() < end:
        time.sleep(0.02)
    return value


def chat(trigger: str, **fields: Any) -> dict[str, Any]:
    """A chat body whose greedy answer is ``trigger``'s script."""
    return {"messages": [{"role": "user", "content": f"go {trigger}"}], "temperature": 0, **fields}


def events(response: httpx.Response | str) -> list[dict[str, Any]]:
    """The JSON events of a finished stream, [DONE] left out."""
    text = response if isinstance(response, str) else response.text
    parts = [part for part in text.split("\n\n") if part.startswith("data: ")]
    return [json.loads(part[6:]) for part in parts if part != "data: [DONE]"]


def joined(chunks: list[dict[str, Any]], index: int = 0) -> str:
    """The text of a chat or completions stream."""
    texts = []
    for chunk in chunks:
        for choice in chunk["choices"]:
            if choice["index"] == index:
                texts.append(choice["text"] if "text" in choice else choice["delta"].get("content") or "")
    return "".join(texts)
