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

from ...core.grammar import GrammarSpec
from ...core.request import MAX_LOGPROBS
from ..chat_grammar import chat_grammar
from ..chat_message import deltas, finish_reason, message
from ..chunks import ChunkWriter, stream_chunks
from ..errors import bad_request
from ..fold import read_all
from ..frontend import Frontend, text_size, without_billing_line
from ..generation import GenerationGroup, Piece, ScoredToken
from ..logprobs import chat_logprobs
from ..openai_types import ChatRequest, parse
from ..params import budget, sampling_params, text_rules
from ..reply import ReplyReader, WholeReply
from ..schema import json_body
from ..sse import EventStream, until_gone
from ..state import ServerState, new_id, request_id_of, state_of
from ..thinking import thinking_options
from ..tool_use import ToolUse, tool_use
from ..usage import usage_of

router = APIRouter()

#: Template variables that the server sets itself.
RESERVED = frozenset({"self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
#: About as many characters as the description of a tool has, for choosing a thread.
TOOL_CHARS = 1000
#: Tokens at a prompt's end in which the mark that opens reasoning is looked for.
_PROMPT_END = 16


@dataclass(slots=True)
class ChatAnswer:
    """What an answer needs beside the pieces themselves."""

    group: GenerationGroup
    readers: list[ReplyReader]  # one per choice
    frontend: Frontend
    model: str
    top_logprobs: int | None  # None: no logprobs
    legacy: bool  # calls are told as ``function_call``
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
    _reject_other_media(body)
    top_logprobs = _wanted_logprobs(body)
    use = tool_use(body)
    prompt_ids = await render(frontend, body, use)
    prompt_end = frontend.tokenizer.decode(prompt_ids[-_PROMPT_END:], skip_special_tokens=False)
    grammar = chat_grammar(body, use, state.parsers, frontend.tokenizer, prompt_end, state.schema_limits)
    group = _group(state, http, body, prompt_ids, use, top_logprobs, grammar)
    readers = _readers(state, prompt_end, use, body.n or 1)
    answer = ChatAnswer(group, readers, frontend, model, top_logprobs, use.legacy)
    if body.stream:
        await until_gone(http.receive, answer.group.start(state.settings.accept_wait))
        events = _events(answer, body, request_id_of(http))
        return EventStream(events, answer.group.close, state.settings.keep_alive)
    return await until_gone(http.receive, _whole(answer))


def _group(
    state: ServerState,
    http: Request,
    body: ChatRequest,
    prompt_ids: tuple[int, ...],
    use: ToolUse,
    top_logprobs: int | None,
    grammar: GrammarSpec | None,
) -> GenerationGroup:
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
        grammar=grammar,
    )
    rules = text_rules(body, state.kept_specials(use.tools))
    return GenerationGroup([state.generation(http, body, prompt_ids, params, rules)])


def _readers(state: ServerState, prompt_end: str, use: ToolUse, count: int) -> list[ReplyReader]:
    parsers = state.parsers
    return [
        ReplyReader(parsers.parser(use.tools, prompt_end), parsers.new_call_id, single=use.single) for _ in range(count)
    ]


def _reject_other_media(body: ChatRequest) -> None:
    """Refuse what a model of text can't do and nobody would want ignored."""
    other = [one for one in body.modalities or () if one != "text"]
    if other:
        raise bad_request(f"modalities holds {other[0]!r}; this model writes text only", "modalities")
    for name, what in (("audio", "this model writes text only"), ("web_search_options", "this server has no search")):
        if getattr(body, name):
            raise bad_request(f"{name} is not supported: {what}.", name)


def _wanted_logprobs(body: ChatRequest) -> int | None:
    """Alternatives per token, 0 for the sampled token alone, None for no log-probabilities."""
    top = body.top_logprobs
    if top is not None and not 0 <= top <= MAX_LOGPROBS:
        raise bad_request(f"top_logprobs is {top}; it must be 0 to {MAX_LOGPROBS}", "top_logprobs")
    if top and not body.logprobs:
        raise bad_request("top_logprobs needs logprobs to be true.", "top_logprobs")
    return (top or 0) if body.logprobs else None


async def render(frontend: Frontend, body: ChatRequest, use: ToolUse) -> tuple[int, ...]:
    """Prompt ids of a conversation. Raises ``ApiError`` 400 with the template's own sentence where it refuses."""
    if not body.messages:
        raise bad_request("messages must hold at least one message.", "messages")
    for name in ("chat_template", "continue_final_message"):
        if getattr(body, name):
            raise bad_request(f"{name} is not supported by this server.", name)
    messages = without_billing_line(body.messages)
    template = frontend.text.template
    options = thinking_options(body.reasoning_effort, template.variables) | (body.chat_template_kwargs or {})
    if taken := RESERVED & options.keys():
        raise bad_request(f"chat_template_kwargs can't set {', '.join(sorted(taken))}.", "chat_template_kwargs")
    prompt = body.add_generation_prompt is not False
    try:
        return await frontend.run(
            text_size(messages) + TOOL_CHARS * len(use.shown),
            lambda: frontend.text.chat_ids(messages, use.shown, prompt, **options),
        )
    except ValueError as error:
        raise bad_request(str(error), "messages") from None


async def _whole(answer: ChatAnswer) -> Response:
    replies = [WholeReply() for _ in answer.readers]

    def take(piece: Piece) -> None:
        delta = answer.readers[piece.index].take(piece)
        replies[piece.index].take(delta)
        if delta.cut:
            answer.group.end(piece.index)

    await read_all(answer.group, take)
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
        "usage": usage_of(answer.group),
    }
    return Response(orjson.dumps(content), media_type="application/json")


def _events(answer: ChatAnswer, body: ChatRequest, request_id: str) -> AsyncIterator[bytes]:
    """The stream: a role chunk per choice, deltas, one finish chunk per choice, usage where asked, DONE."""
    group = answer.group
    writer = ChunkWriter(answer.head("chat.completion.chunk"), group, body.stream_options)
    opening = [_choice(index, b'{"role":"assistant","content":""}') for index in range(len(answer.readers))]
    return stream_chunks(group, writer, opening, lambda piece: _choices(piece, answer), request_id)


def _choices(piece: Piece, answer: ChatAnswer) -> list[bytes]:
    """A chunk's choice for each delta. Log-probabilities ride with the first."""
    delta = answer.readers[piece.index].take(piece)
    if delta.cut:
        answer.group.end(piece.index)
    told = deltas(delta.parts, answer.legacy)
    if delta.tokens and not told:
        told = [b'{"content":""}']
    logprobs = b"null" if answer.top_logprobs is None else orjson.dumps(answer.logprobs(delta.tokens))
    found = [_choice(delta.index, one, b"null" if at else logprobs) for at, one in enumerate(told)]
    if delta.finish is not None:
        finish = orjson.dumps(finish_reason(delta.finish, answer.legacy))
        found.append(_choice(delta.index, b"{}", finish=finish))
    return found


def _choice(index: int, delta: bytes, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
    return b'{"index":%d,"delta":%b,"logprobs":%b,"finish_reason":%b}' % (index, delta, logprobs, finish)
