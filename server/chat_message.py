"""A reply in the chat API's words: a message, or the deltas of one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import orjson

from .parsers.events import Field, Text
from .reply import TOOL_CALLS, CallDelta, CallOpened, Part, WholeCall, WholeReply

#: What reasoning is called: DeepSeek's name, which most clients read, and vLLM's.
REASONING_NAMES = ("reasoning_content", "reasoning")


def message(reply: WholeReply, legacy: bool) -> dict[str, Any]:
    """The assistant's message. ``legacy``: a call is a ``function_call``."""
    content = "".join(reply.content)
    found: dict[str, Any] = {
        "role": "assistant",
        "content": None if reply.calls and not content else content,
        "refusal": None,
    }
    if reply.reasoning:
        found |= dict.fromkeys(REASONING_NAMES, "".join(reply.reasoning))
    if reply.calls:
        found |= {"function_call": _function(reply.calls[0])} if legacy else {"tool_calls": _calls(reply.calls)}
    return found


def _calls(calls: Iterable[WholeCall]) -> list[dict[str, Any]]:
    return [{"id": call.call_id, "type": "function", "function": _function(call)} for call in calls]


def _function(call: WholeCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments}


def deltas(parts: Iterable[Part], legacy: bool) -> list[bytes]:
    """The deltas that tell ``parts``, as JSON."""
    return [delta for part in parts if (delta := _delta(part, legacy)) is not None]


def _delta(part: Part, legacy: bool) -> bytes | None:
    if isinstance(part, Text):
        text = orjson.dumps(part.text)
        if part.field is Field.CONTENT:
            return b'{"content":' + text + b"}"
        return b"{" + b",".join(b'"%b":%b' % (name.encode(), text) for name in REASONING_NAMES) + b"}"
    if isinstance(part, CallOpened):
        function = {"name": part.name, "arguments": ""}
        call: dict[str, Any] = {"index": part.index, "id": part.call_id, "type": "function", "function": function}
    elif isinstance(part, CallDelta):
        function = {"arguments": part.text}
        call = {"index": part.index, "function": function}
    else:
        return None
    return orjson.dumps({"function_call": function} if legacy else {"tool_calls": [call]})


def finish_reason(finish: str, legacy: bool) -> str:
    return "function_call" if legacy and finish == TOOL_CALLS else finish
