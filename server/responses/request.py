"""A Responses request as a chat: what the history, the input and the options come to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..conversation import render
from ..errors import bad_request
from ..openai_types import ChatRequest, GenerationRequest
from ..state import ServerState
from ..tool_use import tool_use
from .input import Message, chat_messages, with_instructions
from .tools import ToolTable, tool_choice
from .types import Item, ResponsesRequest

#: What the chat's fields are called here, for errors.
FIELD_NAMES = {
    "messages": "input",
    "max_completion_tokens": "max_output_tokens",
    "response_format": "text.format",
    "reasoning_effort": "reasoning.effort",
}
_TRUNCATIONS = (None, "disabled", "auto")
#: Of the context, what truncation leaves free where no ``max_output_tokens`` says how much the answer needs.
ANSWER_PART = 4
#: Fields with the same name and meaning in both APIs.
_SHARED = tuple(
    name for name in GenerationRequest.__struct_fields__ if name not in ("max_tokens", "n", "stream_options")
)


def check(body: ResponsesRequest) -> None:
    """Refuse what would otherwise be ignored. Raises ``ApiError`` 400 naming the field."""
    reasons = {
        "background": "answers are made while their client waits",
        "conversation": "use previous_response_id, or send the whole input",
        "prompt": "this server keeps no prompt templates; send input",
    }
    for name, reason in reasons.items():
        if getattr(body, name):
            raise bad_request(f"{name} is not supported: {reason}.", name)
    if body.n not in (None, 1):
        raise bad_request(f"n is {body.n}; a response has one answer", "n")
    if body.truncation not in _TRUNCATIONS:
        raise bad_request(f"truncation is {body.truncation!r}; it can be 'auto' or 'disabled'", "truncation")
    if body.response_format is not None and body.text is not None and body.text.format is not None:
        raise bad_request("response_format and text.format both say what the answer must match.", "text.format")


def chat_request(body: ResponsesRequest, messages: list[Message], table: ToolTable) -> ChatRequest:
    """The chat that asks for the same. What is wrong with its values is found where chats are checked."""
    shared: dict[str, Any] = {name: getattr(body, name) for name in _SHARED}
    if body.text is not None and body.text.format is not None:
        shared["response_format"] = body.text.format
    shared["user"] = body.user or body.safety_identifier
    return ChatRequest(
        **shared,
        messages=messages,
        max_completion_tokens=body.max_output_tokens,
        tools=table.functions or None,
        tool_choice=_choice(body, table),
        parallel_tool_calls=body.parallel_tool_calls,
        reasoning_effort=None if body.reasoning is None else body.reasoning.effort,
        logprobs=body.wants_logprobs,
        top_logprobs=body.top_logprobs,
        chat_template_kwargs=body.chat_template_kwargs,
    )


def _choice(body: ResponsesRequest, table: ToolTable) -> str | dict[str, Any] | None:
    choice = tool_choice(body.tool_choice, table)
    return None if choice in ("auto", "none") and not table.functions else choice


@dataclass(frozen=True, slots=True)
class FittedChat:
    """A chat, and how many input items truncation took from it."""

    chat: ChatRequest
    dropped: int = 0


async def fit(state: ServerState, body: ResponsesRequest, items: list[Item], table: ToolTable) -> FittedChat:
    """The chat of ``items``; with ``truncation`` auto, of as many of the latest as leave room for an answer.

    What is dropped goes from the beginning, up to a user's message. System and developer messages stay.
    """

    def chat(kept: list[Item]) -> ChatRequest:
        return chat_request(body, with_instructions(body.instructions, chat_messages(kept, table)), table)

    whole = chat(items)
    if body.truncation != "auto" or await _fits(state, whole):
        return FittedChat(whole)
    cuts = [at for at, item in enumerate(items) if item.get("role") == "user" and at]
    kept = await _first_fitting(state, cuts, lambda cut: chat(_without(items, cut)))
    if kept is None:
        return FittedChat(whole)  # refused with its numbers, as any other
    fewer = _without(items, kept)
    return FittedChat(chat(fewer), len(items) - len(fewer))


async def _first_fitting(state: ServerState, cuts: list[int], chat: Callable[[int], ChatRequest]) -> int | None:
    """The earliest cut whose chat fits, by bisection: the later the cut, the shorter the prompt."""
    low, high = 0, len(cuts)
    while low < high:
        middle = (low + high) // 2
        if await _fits(state, chat(cuts[middle])):
            high = middle
        else:
            low = middle + 1
    return cuts[low] if low < len(cuts) else None


async def _fits(state: ServerState, chat: ChatRequest) -> bool:
    limit = state.max_model_len
    room = min(chat.max_completion_tokens or limit // ANSWER_PART, limit // 2)
    return len(await render(state.ready(), chat, tool_use(chat))) <= limit - max(1, room)


def _without(items: list[Item], cut: int) -> list[Item]:
    return [item for at, item in enumerate(items) if at >= cut or item.get("role") in ("system", "developer")]
