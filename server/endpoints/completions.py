"""``POST /v1/completions``."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ...core.output import OutputText
from ..chunks import ChunkWriter, stream_chunks
from ..errors import bad_request
from ..fold import WholeChoice, whole_choices
from ..frontend import Frontend
from ..generation import GenerationGroup, Piece, ScoredToken
from ..logprobs import completion_logprobs, prompt_logprobs
from ..openai_types import CompletionRequest, parse
from ..params import budget, sampling_params, text_rules
from ..prompts import Prompt, read_prompts
from ..schema import json_body
from ..sse import EventStream, until_gone
from ..state import ServerState, new_id, request_id_of, state_of
from ..structured import grammar_of
from ..usage import usage_of

router = APIRouter()

#: OpenAI's own default for this endpoint.
DEFAULT_MAX_TOKENS = 16


@dataclass(slots=True)
class CompletionAnswer:
    """What an answer needs beside the pieces themselves."""

    group: GenerationGroup
    frontend: Frontend
    model: str
    logprobs: int | None
    n: int  # choices shown per prompt
    echoes: list[str]  # per prompt: what its choices begin with
    scored_echo: bool = False  # what they begin with is scored too
    told: set[int] = field(default_factory=set)  # choices whose scored echo has gone out
    answer_id: str = field(default_factory=lambda: f"cmpl-{new_id()}")
    created: int = field(default_factory=lambda: int(time.time()))

    @property
    def num_choices(self) -> int:
        return self.n * len(self.echoes)

    @property
    def head(self) -> dict[str, Any]:
        return {"id": self.answer_id, "object": "text_completion", "created": self.created, "model": self.model}

    def score(self, tokens: Sequence[ScoredToken], echo: str = "") -> dict[str, Any] | None:
        """Log-probabilities of generated tokens behind ``echo``."""
        if self.logprobs is None:
            return None
        found = completion_logprobs(tokens, self.frontend.tokenizer, self.logprobs)
        return found | {"text_offset": [len(echo) + offset for offset in found["text_offset"]]}

    def score_echo(self, at: int) -> dict[str, Any]:
        """Log-probabilities of the tokens of prompt ``at``."""
        generation = self.group.generations[at]
        first, *rest = generation.request.prompt_ids
        text = OutputText(self.frontend.tokenizer)
        text.push((first, *rest))
        tokens = list(map(ScoredToken, rest, generation.prompt_scores, text.offsets[1:]))
        return prompt_logprobs(tokens, first, self.frontend.tokenizer, self.logprobs or 0)


@router.post("/v1/completions", openapi_extra=json_body(CompletionRequest))
async def completions(http: Request) -> Response:
    """Continue each prompt, whole or as a stream."""
    state = state_of(http)
    frontend = state.ready()
    body = parse(await http.body(), CompletionRequest)
    model = state.names.check(body.model)
    state.check_counts(body)
    _check(body)
    add_special = body.add_special_tokens is not False
    prompts = await read_prompts(body.prompt, frontend, state.vocab_size, add_special_tokens=add_special)
    answer = CompletionAnswer(
        group=_group(state, http, body, prompts),
        frontend=frontend,
        model=model,
        logprobs=body.logprobs,
        n=body.n or 1,
        echoes=[prompt.text if body.echo else "" for prompt in prompts],
        scored_echo=_scores_echo(body),
    )
    if body.stream:
        await until_gone(http.receive, answer.group.start(state.settings.accept_wait))
        events = _events(answer, body, request_id_of(http))
        return EventStream(events, answer.group.close, state.settings.keep_alive)
    return await until_gone(http.receive, _whole(answer, rank=_best_of(body) > answer.n))


def _check(body: CompletionRequest) -> None:
    """Refuse what would otherwise be ignored."""
    if body.suffix:
        raise bad_request("suffix is not supported: this server's models write forward only.", "suffix")
    if body.max_tokens == 0 and not body.echo:
        raise bad_request("max_tokens is 0; it must be at least 1 (0 is for echo alone)", "max_tokens")
    if _best_of(body) < (body.n or 1):
        raise bad_request(f"best_of is {body.best_of}; it must be at least n ({body.n or 1})", "best_of")
    if body.stream and _best_of(body) > (body.n or 1):
        raise bad_request("best_of above n can't be streamed: the best is known only at the end.", "best_of")


def _scores_echo(body: CompletionRequest) -> bool:
    return bool(body.echo) and body.logprobs is not None


def _best_of(body: CompletionRequest) -> int:
    return (body.n or 1) if body.best_of is None else body.best_of


def _group(state: ServerState, http: Request, body: CompletionRequest, prompts: list[Prompt]) -> GenerationGroup:
    """The generations; none for ``max_tokens`` 0, which only echoes, unless what it echoes is scored."""
    asked = DEFAULT_MAX_TOKENS if body.max_tokens is None else body.max_tokens
    rules = text_rules(body)
    grammar = grammar_of(body, state.schema_limits)
    generations = []
    for prompt in prompts:
        state.check_length(len(prompt.ids), "prompt")
        room = budget(asked, len(prompt.ids), state.max_model_len, "max_tokens", least=0)
        logprobs = body.logprobs if _best_of(body) == (body.n or 1) else body.logprobs or 0
        params = sampling_params(
            body,
            max_tokens=max(room, 1),
            logprobs=logprobs,
            defaults=state.defaults,
            vocab_size=state.vocab_size,
            n=_best_of(body),
            grammar=grammar,
        )
        if _scores_echo(body):
            params = dataclasses.replace(params, prompt_logprobs=body.logprobs)
        generations.append(state.generation(http, body, prompt.ids, params, rules))
    return GenerationGroup(generations, dry=asked == 0 and not _scores_echo(body), mute=asked == 0)


async def _whole(answer: CompletionAnswer, *, rank: bool) -> Response:
    group = answer.group
    per_prompt = group.generations[0].request.params.n
    found = await whole_choices(group, per_prompt * len(answer.echoes))
    choices: list[dict[str, Any]] = []
    for at, echo in enumerate(answer.echoes):
        mine = found[at * per_prompt : (at + 1) * per_prompt]
        if rank:
            mine = sorted(mine, key=_mean_logprob, reverse=True)[: answer.n]
        for one in mine:
            choices.append({"index": len(choices), **_whole_choice(answer, at, echo, one)})
    content = answer.head | {"choices": choices, "usage": usage_of(group)}
    return Response(orjson.dumps(content), media_type="application/json")


def _whole_choice(answer: CompletionAnswer, at: int, echo: str, choice: WholeChoice) -> dict[str, Any]:
    """A choice of prompt ``at``, what it echoes included."""
    text, scores, finish = choice.text, answer.score(choice.tokens, echo), str(choice.finish)
    if answer.group.mute:
        text, scores, finish = "", answer.score((), echo), "length"
    if answer.scored_echo and scores is not None:
        scores = {name: values + scores[name] for name, values in answer.score_echo(at).items()}
    return {"text": echo + text, "logprobs": scores, "finish_reason": finish}


def _mean_logprob(choice: WholeChoice) -> float:
    scores = [token.scores.logprob for token in choice.tokens]
    return sum(scores) / len(scores) if scores else float("-inf")


def _events(answer: CompletionAnswer, body: CompletionRequest, request_id: str) -> AsyncIterator[bytes]:
    """The stream: echo where asked, text, one finish chunk per choice, usage where asked, DONE."""
    writer = ChunkWriter(answer.head, lambda: usage_of(answer.group), body.stream_options)
    opening = [choice for index in range(answer.num_choices) for choice in _opening(answer, index)]
    return stream_chunks(answer.group, writer, opening, lambda piece: _choices(piece, answer), request_id)


def _opening(answer: CompletionAnswer, index: int) -> list[bytes]:
    """The echoed prompt, unless its scores have to be waited for; and the end, where nothing is generated."""
    if answer.scored_echo:
        return []
    echo = answer.echoes[index // answer.n]
    found = [_choice(index, echo)] if echo else []
    return [*found, _choice(index, "", finish=b'"length"')] if answer.group.dry else found


def _choices(piece: Piece, answer: CompletionAnswer) -> list[bytes]:
    found, at = [], piece.index // answer.n
    if answer.scored_echo and piece.index not in answer.told:
        answer.told.add(piece.index)
        found.append(_choice(piece.index, answer.echoes[at], orjson.dumps(answer.score_echo(at))))
    if answer.group.mute:
        return [*found, _choice(piece.index, "", finish=b'"length"')] if piece.finish is not None else found
    if piece.text or piece.tokens:
        scores = answer.score(piece.tokens, answer.echoes[at])
        found.append(_choice(piece.index, piece.text, orjson.dumps(scores)))
    if piece.finish is not None:
        found.append(_choice(piece.index, "", finish=orjson.dumps(piece.finish)))
    return found


def _choice(index: int, text: str, logprobs: bytes = b"null", finish: bytes = b"null") -> bytes:
    return b'{"index":%d,"text":%b,"logprobs":%b,"finish_reason":%b}' % (index, orjson.dumps(text), logprobs, finish)
