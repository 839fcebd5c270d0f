"""``POST /v1/messages`` and ``/v1/messages/count_tokens``: Anthropic's Messages API; see docs/apis.md."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..anthropic.answer import PING, MessageAnswer, MessageNarrator
from ..anthropic.request import FIELD_NAMES, chat_request
from ..anthropic.types import MessagesRequest
from ..conversation import converse, render
from ..errors import ApiError, ContextExceededError, bad_request
from ..json_text import json_text
from ..narration import narrate
from ..openai_types import parse
from ..renaming import field_names
from ..schema import json_body
from ..sse import EventStream, until_gone
from ..state import ServerState, request_id_of, state_of
from ..tool_use import tool_use

router = APIRouter()


@router.post("/v1/messages", openapi_extra=json_body(MessagesRequest))
async def create_message(http: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    state, body = await _read(http)
    if body.max_tokens is None:
        raise bad_request("max_tokens is missing: how many tokens the answer may have.", "max_tokens")
    with _own_words():
        chat = chat_request(body, state.ready().text.template.variables)
        conversation = await converse(http, state, chat)
        answer = MessageAnswer(body, conversation)
        if not body.stream:
            return await until_gone(http.receive, _whole(answer))
        group = conversation.group
        await until_gone(http.receive, group.start(state.settings.accept_wait))
    events = narrate(group, MessageNarrator(answer), request_id_of(http))
    return EventStream(events, group.close, state.settings.keep_alive, idle=PING)


@router.post("/v1/messages/count_tokens", openapi_extra=json_body(MessagesRequest))
async def count_tokens(http: Request) -> dict[str, Any]:
    """How many tokens the prompt of such a request has."""
    state, body = await _read(http)
    with _own_words():
        chat = chat_request(body, state.ready().text.template.variables)
        ids = await render(state.ready(), chat, tool_use(chat))
    return {"input_tokens": len(ids)}


async def _read(http: Request) -> tuple[ServerState, MessagesRequest]:
    state = state_of(http)
    state.ready()
    body = parse(await http.body(), MessagesRequest)
    state.names.check(body.model)
    return state, body


async def _whole(answer: MessageAnswer) -> Response:
    await answer.conversation.each(answer.take)
    answer.blocks.finish()
    message = answer.message(answer.blocks.done, answer.ending())
    return Response(json_text(message), media_type="application/json")


@contextmanager
def _own_words() -> Iterator[None]:
    """Errors by this API's names; agents look for these words to compact and try again."""
    with field_names(FIELD_NAMES):
        try:
            yield
        except ApiError as error:
            if isinstance(error, ContextExceededError):
                error.message = f"prompt is too long: {error.prompt} tokens > {error.limit} maximum. {error.message}"
            elif error.code == "context_length_exceeded":
                error.message = f"prompt is too long: {error.message}"
            raise
