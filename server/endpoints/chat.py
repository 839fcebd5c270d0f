"""``POST /v1/chat/completions``."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..chat_message import deltas, finish_reason, message
from ..chunks import ChunkWriter, stream_chunks
from ..conversation import Conversation, converse
from ..generation import Piece, ScoredToken
from ..logprobs import chat_logprobs
from ..openai_types import ChatRequest, parse
from ..schema import json_body
from ..sse import EventStream, until_gone
from ..state import new_id, request_id_of, state_of
from ..usage import usage_of

router = APIRouter()


@dataclass(slots=True)
class ChatAnswer:
    """What an answer needs beside the pieces themselves."""

    conversation: Conversation
    answer_id: str = field(default_factory=lambda: f"chatcmpl-{new_id()}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def legacy(self) -> bool:
        """Whether calls are told as ``function_call``."""
        return self.conversation.use.legacy

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.conversation.model}

    def logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
        top = self.conversation.top_logprobs
        return None if top is None else chat_logprobs(tokens, self.conversation.frontend.tokenizer, top)

    def usage(self) -> dict[str, Any]:
        return usage_of(self.conversation.group, self.conversation.thought_tokens)


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def chat_completions(http: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    state = state_of(http)
    state.ready()
    body = parse(await http.body(), ChatRequest)
    answer = ChatAnswer(await converse(http, state, body))
    if body.stream:
        group = answer.conversation.group
        await until_gone(http.receive, group.start(state.settings.accept_wait))
        return EventStream(_events(answer, body, request_id_of(http)), group.close, state.settings.keep_alive)
    return await until_gone(http.receive, _whole(answer))


async def _whole(answer: ChatAnswer) -> Response:
    replies = await answer.conversation.whole()
    content = answer.head("chat.completion") | {
        "choices": [
            {
                "index": index,
                "message": message(reply, answer.legacy),
                "logprobs": answer.logprobs(reply.tokens),
                "finish_reason": finish_reason(reply.finish, answer.legacy),
            }
            for index, reply in enumerate(replies)
        ],
        "usage": answer.usage(),
    }
    return Response(orjson.dumps(content), media_type="application/json")


def _events(answer: ChatAnswer, body: ChatRequest, request_id: str) -> AsyncIterator[bytes]:
    """The stream: a role chunk per choice, deltas, one finish chunk per choice, usage where asked, DONE."""
    group, readers = answer.conversation.group, answer.conversation.readers
    writer = ChunkWriter(answer.head("chat.completion.chunk"), answer.usage, body.stream_options)
    opening = [_choice(index, b'{"role":"assistant","content":""}') for index in range(len(readers))]
    return stream_chunks(group, writer, opening, lambda piece: _choices(piece, answer), request_id)


def _choices(piece: Piece, answer: ChatAnswer) -> list[bytes]:
    """A chunk's choice for each delta. Log-probabilities ride with the first."""
    delta = answer.conversation.read(piece)
    told = deltas(delta.parts, answer.legacy)
    if delta.tokens and not told:
        told = [b'{"content":""}']
    logprobs = b"null" if answer.conversation.top_logprobs is None else orjson.dumps(answer.logprobs(delta.tokens))
    found = [_choice(delta.index, one, b"null" if at else logprobs) for at, one in enumerate(told)]
    if delta.finish is not None:
        finish = orjson.dumps(finish_reason(delta.finish, answer.legacy))
        found.append(_choice(delta.index, b"{}", finish=finish))
    return found


def _choice(index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, delta, logprobs, finish)
