"""Stream chunks as bytes: what stays the same through a stream is encoded once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from .sse import event


class ChunkWriter:
    """Writes the chunks of one stream."""

    def __init__(self, head: Mapping[str, Any], *, usage_null: bool) -> None:
        self._head = orjson.dumps(dict(head))[:-1] + b',"choices":['
        self._tail = b'],"usage":null}' if usage_null else b"]}"

    def choice(self, choice: bytes, usage: Mapping[str, Any] | None = None) -> bytes:
        """A chunk with one choice, given as JSON."""
        if usage is None:
            return event(self._head + choice + self._tail)
        return event(self._head + choice + b'],"usage":' + orjson.dumps(usage) + b"}")

    def usage(self, usage: Mapping[str, Any]) -> bytes:
        """The last chunk, where asked for: no choices, only usage."""
        return event(self._head + b'],"usage":' + orjson.dumps(usage) + b"}")
