"""A conversation with the model, whichever API asked for it: rendered, held to its form, generated and read.

Every endpoint that speaks in messages brings its request to a ``ChatRequest`` and reads its answer's deltas here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import Request

from ..core.grammar import GrammarSpec
from ..core.request import MAX_LOGPROBS
from .chat_grammar import chat_grammar
from .errors import bad_request
from .fold import read_all
from .frontend import Frontend, text_size, without_billing_line
from .generation import GenerationGroup, Piece
from .openai_types import ChatRequest
from .params import budget, sampling_params, text_rules
from .reply import Delta, ReplyReader, WholeReply
from .state import ServerState
from .thinking import thinking_options
from .tool_use import ToolUse, tool_use

#: Template variables that the server sets itself.
RESERVED = frozenset({"self", "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})
#: About as many characters as the description of a tool has, for choosing a thread.
TOOL_CHARS = 1000
#: Tokens at a prompt's end in which the mark that opens reasoning is looked for.
_PROMPT_END = 16


@dataclass(slots=True)
class Conversation:
    """A request that is ready to be answered, and what its answer is read with."""

    group: GenerationGroup
    readers: list[ReplyReader]  # one per choice
    frontend: Frontend
    model: str  # the served name
    top_logprobs: int | None  # None: no logprobs
    use: ToolUse

    @property
    def thought_tokens(self) -> int:
        """Tokens of reasoning so far, over all choices."""
        return sum(reader.thought_tokens for reader in self.readers)

    def read(self, piece: Piece) -> Delta:
        """What a piece says; a reply that is over before the model is ends here."""
        delta = self.readers[piece.index].take(piece)
        if delta.cut:
            self.group.end(piece.index)
        return delta

    async def whole(self) -> list[WholeReply]:
        """All replies, put together. Raises ``ApiError`` where the request is refused or fails."""
        replies = [WholeReply() for _ in self.readers]
        await self.each(lambda delta: replies[delta.index].take(delta))
        return replies

    async def each(self, take: Callable[[Delta], object]) -> None:
        """Run to the end and hand each delta to ``take``. Raises as ``whole``."""
        await read_all(self.group, lambda piece: take(self.read(piece)))


async def converse(http: Request, state: ServerState, body: ChatRequest) -> Conversation:
    """A conversation, not started yet. Raises ``ApiError`` naming the field."""
    frontend = state.ready()
    model = state.names.check(body.model)
    state.check_counts(body)
    _reject_other_media(body)
    top_logprobs = _wanted_logprobs(body)
    use = tool_use(body)
    prompt_ids = await render(frontend, body, use)
    prompt_end = frontend.tokenizer.decode(prompt_ids[-_PROMPT_END:], skip_special_tokens=False)
    grammar = chat_grammar(body, use, state.parsers, frontend.tokenizer, prompt_end, state.schema_limits)
    group = _group(state, http, body, prompt_ids, use, top_logprobs, grammar)
    readers = _readers(state, prompt_end, use, body.n or 1)
    return Conversation(group, readers, frontend, model, top_logprobs, use)


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
        if getattr(body, name) is not None:
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
    for name in ("chat_template", "continue_final_message", "echo"):
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
