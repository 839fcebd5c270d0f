"""Prompts that dictate their own answers, to a server on the hooked engine and the scripted model's text side.

The last such prompt in a conversation counts, so a tool whose result is one dictates what is said to that result.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import scripted

_END = scripted.SPECIAL_IDS["<|im_end|>"]
#: Room for coding assistants' instructions, at a token per byte.
CONTEXT = 1 << 20


def say(text: str) -> str:
    """A prompt that is answered with ``text``. The vocabulary holds all bytes, so these are the tokens."""
    return f"say:{','.join(map(str, (*text.encode(), _END)))};"


def call(name: str, arguments: dict[str, Any]) -> str:
    """What the model writes to call a tool."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def say_call(name: str, **arguments: Any) -> str:
    """A prompt that is answered with a call."""
    return say(call(name, arguments))


def long_context(folder: Path) -> Path:
    """The scripted model's text side with ``CONTEXT`` tokens of context; a simulated engine needs no more of it."""
    return scripted.rewrite(scripted.SCRIPTED, folder / "spoken.gguf", {"llama.context_length": CONTEXT})
