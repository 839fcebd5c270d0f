"""Messages of content blocks as chat messages."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ..errors import ApiError, bad_request
from ..opaque import unseal
from .types import Block, MessagesRequest

Message = dict[str, Any]
#: What stands between turns of one role that follow each other: the API makes one turn of them.
_BETWEEN = "\n\n"
#: What the model reads before the result of a tool that failed.
ERROR_MARK = "Error: "
_ROLES = ("user", "assistant", "system")


def chat_messages(body: MessagesRequest) -> list[Message]:
    """The conversation as a chat's, the system's words first. Raises ``ApiError`` 400 naming the block."""
    if not body.messages:
        raise bad_request("messages must hold at least one message.", "messages")
    turns: list[Message] = []
    if system := _system(body.system):
        turns.append({"role": "system", "content": system})
    for at, message in enumerate(body.messages):
        role = message.get("role")
        if role not in _ROLES:
            raise bad_request(f"messages[{at}].role is {role!r:.100}; it can be {', '.join(_ROLES)}", "messages")
        place = f"messages[{at}].content"
        blocks = _blocks(message.get("content"), place)
        found = [_assistant(blocks, place)] if role == "assistant" else _others(role, blocks, place)
        for one in found:
            _append(turns, one)
    if body.messages[-1].get("role") == "assistant":
        raise bad_request(
            "The last message is the assistant's: answers can't be begun by the client here. Ask for a form of the "
            "answer with output_config.format instead.",
            "messages",
        )
    return turns


def _system(system: str | list[Block] | None) -> str:
    if system is None or isinstance(system, str):
        return system or ""
    return _BETWEEN.join(_text(block, f"system[{at}]") for at, block in enumerate(system))


def _blocks(content: Any, place: str) -> list[Block]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list) or not all(isinstance(one, dict) for one in content):
        raise bad_request(f"{place} must be text or a list of blocks", "messages")
    return content


def _append(turns: list[Message], message: Message) -> None:
    """Add a turn, or join it to the one before where both are the same speaker's."""
    last = turns[-1] if turns else None
    if last is None or last["role"] != message["role"] or message["role"] in ("tool", "system"):
        turns.append(message)
    elif message["role"] == "user":
        last["content"] = f"{last['content']}{_BETWEEN}{message['content']}"
    elif last.get("tool_calls"):
        turns.append(message)
    else:
        parts = [one for one in (last["content"], message["content"]) if one]
        thoughts = [one["reasoning_content"] for one in (last, message) if one.get("reasoning_content")]
        last |= message | {"content": _BETWEEN.join(parts) or None}
        if thoughts:
            last["reasoning_content"] = "\n".join(thoughts)


def _assistant(blocks: list[Block], place: str) -> Message:
    """One turn of the assistant: what it thought, said and called."""
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for at, block in enumerate(blocks):
        kind = block.get("type")
        if kind == "thinking":
            thoughts.append(_thought(block))
        elif kind == "tool_use":
            calls.append(_call(block, f"{place}[{at}]"))
        elif kind != "redacted_thinking":  # sealed by somebody else: nobody here can read it
            texts.append(_text(block, f"{place}[{at}]"))
    message: Message = {"role": "assistant", "content": "".join(texts) or None}
    if thought := "\n".join(one for one in thoughts if one):
        message["reasoning_content"] = thought
    if calls:
        message["tool_calls"] = calls
    return message


def _thought(block: Block) -> str:
    """The text of a thinking block, or, where it was not shown, what its signature holds."""
    return str(block.get("thinking") or "") or unseal(str(block.get("signature") or "")) or ""


def _call(block: Block, place: str) -> dict[str, Any]:
    name, given = block.get("name"), block.get("input")
    if not isinstance(name, str) or not isinstance(block.get("id"), str):
        raise bad_request(f"{place} is a tool_use block; it must have an id and a name", "messages")
    function = {"name": name, "arguments": json.dumps({} if given is None else given, ensure_ascii=False)}
    return {"id": block["id"], "type": "function", "function": function}


def _others(role: str, blocks: list[Block], place: str) -> list[Message]:
    """A user's blocks, in order: results of tools are messages of their own."""
    found: list[Message] = []
    texts: list[str] = []
    for at, block in enumerate(blocks):
        if block.get("type") != "tool_result":
            texts.append(_text(block, f"{place}[{at}]"))
            continue
        if texts:
            found.append({"role": role, "content": "".join(texts)})
            texts = []
        found.append(_result(block, f"{place}[{at}]"))
    if texts or not found:
        found.append({"role": role, "content": "".join(texts)})
    return found


def _result(block: Block, place: str) -> Message:
    call_id, content = block.get("tool_use_id"), block.get("content")
    if not isinstance(call_id, str):
        raise bad_request(f"{place}.tool_use_id is {call_id!r:.100}; it must be a text", "messages")
    inner = [] if content is None else _blocks(content, f"{place}.content")
    text = "".join(_text(one, f"{place}.content[{at}]") for at, one in enumerate(inner))
    if block.get("is_error") is True:
        text = ERROR_MARK + text
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def _text(block: Any, place: str) -> str:
    """The text of a block. Raises ``ApiError`` 400 for one that is none."""
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    if kind == "text":
        if not isinstance(block.get("text"), str):
            raise bad_request(f"{place} is a text block without text", place.split("[")[0])
        return str(block["text"])
    source = block.get("source") if kind == "document" else None
    if isinstance(source, Mapping) and source.get("type") == "text" and isinstance(source.get("data"), str):
        title = block.get("title")
        return f"{title}\n{source['data']}" if isinstance(title, str) and title else str(source["data"])
    raise _unreadable(kind, place)


def _unreadable(kind: Any, place: str) -> ApiError:
    field = place.split("[")[0]
    return bad_request(f"{place} is a block of type {kind!r:.100}; this model takes text only", field)
