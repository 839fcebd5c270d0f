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

from ...core.request import MAX_LOGPROBS
from ..chunks import ChunkWriter, stream_chunks
from ..errors import bad_request
from ..fold import whole_choices
from ..frontend import Frontend, text_size, without_billing_line
from ..generation import GenerationGroup, Piece, ScoredToken
from ..logprobs import chat_logprobs
from ..openai_types import ChatRequest, parse, reject_text_only
from ..params import budget, sampling_params, text_rules
from ..schema import json_body
from ..sse import EventStream, until_gone
from ..state import ServerState, new_id, request_id_of, state_of
from ..usage import usage_of

router = APIRouter()

#: Template variables that the server sets itself.
RESERVED = frozenset({"self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})


@dataclass(slots=True)
class ChatAnswer:
    """What an answer needs beside the pieces themselves."""

    group: GenerationGroup
    frontend: Frontend
    model: str
    top_logprobs: int | None  # None: no logprobs
    answer_id: str = field(default_factory=lambda: f"chatcmpl-{new_id()}")
    created: int = field(default_factory=lambda: int(time.time()))

    def head(self, kind: str) -> dict[str, Any]:
        return {"id": self.answer_id, "object": kind, "created": self.created, "model": self.model}

    def logprobs(self, tokens: Sequence[ScoredToken]) -> dict[str, Any] | None:
        if self.top_logprobs is None:
            return None
        return chat_logprobs(tokens, self.frontend.tokenizer, self.top_logprobs)


@router.post("/v1/chat/completions", openapi_extra=json_body(ChatRequest))
async def chat_completions(http: Request) -> Response:
    """Answer a conversation, whole or as a stream."""
    state = state_of(http)
    frontend = state.ready()
    body = parse(await http.body(), ChatRequest)
    model = state.names.check(body.model)
    top_logprobs = _wanted_logprobs(body)
    prompt_ids = await render(frontend, body)
    answer = ChatAnswer(_group(state, http, body, prompt_ids, top_logprobs), frontend, model, top_logprobs)
    if body.stream:
        await until_gone(http.receive, answer.group.start(state.settings.accept_wait))
        events = _events(answer, body, request_id_of(http))
        return EventStream(events, answer.group.close, state.settings.keep_alive)
    return await until_gone(http.receive, _whole(answer))


def _group(
    state: ServerState, http: Request, body: ChatRequest, prompt_ids: tuple[int, ...], top_logprobs: int | None
) -> GenerationGroup:
    reject_text_only(body)
    state.check_length(len(prompt_ids), "messages")
    by_new_name = body.max_completion_tokens is not None
    asked, name = (
        (body.max_completion_tokens, "max_completion_tokens") if by_new_name else (body.max_tokens, "max_tokens")
    )
    params = sampling_params(
        body,
        max_tokens=budget(asked, len(prompt_ids), state.max_model_len, name),
        logprobs=top_logprobs,
        defaults=state.defaults,
        vocab_size=state.vocab_size,
    )
    return GenerationGroup([state.generation(http, body, prompt_ids, params, text_rules(body))])


def _wanted_logprobs(body: ChatRequest) -> int | None:
    """Alternatives per token, 0 for the sampled token alone, None for no log-probabilities."""
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs is {top}; it must be 0 to {MAX_LOGPROBS}", "top_logprobs")
    if top and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    return (top or 0) if body.logprobs else None


async def render(frontend: Frontend, body: ChatRequest) -> tuple[int, ...]:
    """Prompt ids of a conversation. Raises ``ApiError`` 400 with the template's own sentence where it refuses."""
    if not body.messages:
        raise bad_request("messages must hold at least one message.", "messages")
    for name in ("chat_template", "continue_final_message", "function_call"):
        if getattr(body, name):
            raise bad_request(f"{name} is not supported by this server.", name)
    tools = _offered_tools(body)
    messages = without_billing_line(body.messages)
    options = body.chat_template_kwargs or {}
    if taken := RESERVED & options.keys():
        raise bad_request(f"chat_template_kwargs can't set {', '.join(sorted(taken))}.", "chat_template_kwargs")
    prompt = body.add_generation_prompt is not False
    try:
        return await frontend.run(
            text_size(messages),
            lambda: frontend.text.chat_ids(messages, tools, prompt, **options),
        )
    except ValueError as error:
        raise bad_request(str(error), "messages") from None


def _offered_tools(body: ChatRequest) -> list[dict[str, Any]] | None:
    """Tools for the template. A call can't be forced yet, so a demand for one is refused, never ignored."""
    choice = body.tool_choice
    if choice is not None and choice not in ("none", "auto"):
        raise bad_request(
            "tool_choice can be 'none' or 'auto' on this server; a call can't be forced yet.", "tool_choice"
        )
    tools = body.tools or [{"type": "function", "function": one} for one in body.functions or []]
    return None if choice == "none" or not tools else tools


async def _whole(answer: ChatAnswer) -> Response:
    group = answer.group
    found = await whole_choices(group, sum(one.request.params.n for one in group.generations))
    content = answer.head("chat.completion") | {
        "choices": [
            {
                "index": index,
                "message": {"role": "assistant", "content": choice.text, "refusal": None},
                "logprobs": answer.logprobs(choice.tokens),
                "finish_reason": choice.finish,
            }
            for index, choice in enumerate(found)
        ],
        "usage": usage_of(group),
    }
    return Response(orjson.dumps(content), media_type="application/json")


def _events(answer: ChatAnswer, body: ChatRequest, request_id: str) -> AsyncIterator[bytes]:
    """The stream: a role chunk per choice, text, one finish chunk per choice, usage where asked, DONE."""
    group = answer.group
    writer = ChunkWriter(answer.head("chat.completion.chunk"), group, body.stream_options)
    count = group.generations[0].request.params.n
    opening = [_choice(index, b'{"role":"assistant","content":""}') for index in range(count)]
    return stream_chunks(group, writer, opening, lambda piece: _choices(piece, answer), request_id)


def _choices(piece: Piece, answer: ChatAnswer) -> list[bytes]:
    found = []
    if piece.text or piece.tokens:
        logprobs = b"null" if answer.top_logprobs is None else orjson.dumps(answer.logprobs(piece.tokens))
        found.append(_choice(piece.index, b'{"content":' + orjson.dumps(piece.text) + b"}", logprobs))
    if piece.finish is not None:
        found.append(_choice(piece.index, b"{}", finish=orjson.dumps(piece.finish)))
    return found


def _choice(index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, delta, logprobs, finish)
