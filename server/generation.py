"""One engine request turned into text: pieces of choices as they come, stop strings applied, metrics kept."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from ..core.output import SequenceText
from ..core.request import FinishReason, Request, SequenceOutput, TokenLogprob
from ..models.text import TextModel
from .client import EngineClient
from .errors import ApiError
from .params import TextRules
from .record import RequestRecord
from .stream import RequestStream


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token, its log-probabilities, and where in the choice's text it begins (in characters)."""

    token_id: int
    scores: TokenLogprob
    offset: int


@dataclass(slots=True)
class Piece:
    """What was added to one choice. ``finish`` is set on a choice's last piece."""

    index: int
    text: str
    tokens: tuple[ScoredToken, ...] = ()  # where log-probabilities were asked for
    finish: FinishReason | None = None
    made: int = 0  # tokens of the choice so far


@dataclass(slots=True)
class _Choice:
    """One sequence's text so far, and the tokens that no text came out for yet."""

    text: SequenceText
    tokens: list[ScoredToken] = field(default_factory=list)


class Generation:
    """One prompt's choices. Submit it, ``read`` until it is ``done``, always ``close`` it."""

    def __init__(
        self,
        client: EngineClient,
        request: Request,
        rules: TextRules,
        text: TextModel,
        record: RequestRecord,
        prompt_field: str,
    ) -> None:
        self.request = request
        self.cached_tokens = 0
        self.embedding: bytes | None = None  # where one was asked for, at the end
        self.prompt_scores: tuple[TokenLogprob, ...] = ()  # of the prompt from its second token on, where asked for
        self._client = client
        self._record = record
        self._prompt_field = prompt_field
        self._stream: RequestStream | None = None
        self._error: ApiError | None = None
        self._open = request.params.n  # choices that have not ended
        self._choices = [
            _Choice(text.output(rules.stop, rules.include_stop, rules.skip_special_tokens, rules.kept))
            for _ in range(request.params.n)
        ]

    @property
    def completion_tokens(self) -> int:
        """Tokens made, over all choices, end tokens included."""
        return sum(choice.text.num_tokens for choice in self._choices)

    def stop_string(self, index: int) -> str | None:
        """The stop string that ended a choice, if one did."""
        return self._choices[index].text.stopped

    @property
    def done(self) -> bool:
        """Whether every choice has ended."""
        return not self._open

    def submit(self, changed: asyncio.Event) -> None:
        """Send the request to the engine; ``changed`` is set when something comes of it.

        Raises ``ApiError`` 429 where the user's limits leave nothing, 503 where there is no engine.
        """
        self._record.admit()
        self._stream = self._client.submit(self.request, self._prompt_field, changed)
        self._record.submitted()

    async def accepted(self, timeout: float | None) -> None:
        """Wait at most ``timeout`` seconds for the engine's answer. Raises its refusal (``ApiError``)."""
        assert self._stream is not None
        if self.request.params.grammar is not None:
            timeout = None  # compiling has its own limit, and an answer that can't be kept to its form never begins
        try:
            await self._stream.wait_accepted(timeout)
        except ApiError as error:
            self._record.failed(error.status)
            raise

    def read(self) -> list[Piece]:
        """What came since the last call, maybe nothing. Raises ``ApiError`` where the engine failed the request, after
        all that had come before was read."""
        assert self._stream is not None
        pieces: list[Piece] = []
        try:
            if self._error is not None:
                raise self._error
            for output in self._stream.take():
                piece = self._take(output)
                if piece is not None:
                    pieces.append(piece)
        except ApiError as error:
            self._record.failed(error.status)
            self._error = error
            if not pieces:
                raise
        return pieces

    def close(self) -> None:
        """Forget the request; abort what still runs. The record tells the metrics how it ended."""
        reasons = [choice.text.finish_reason for choice in self._choices]
        if self._stream is not None and None in reasons:
            self._client.abort(self.request.request_id)
        self._record.end(reasons)

    def _take(self, output: SequenceOutput) -> Piece | None:
        choice = self._choices[output.index]
        self.embedding = output.embedding or self.embedding
        self.prompt_scores = output.prompt_logprobs or self.prompt_scores
        if output.cached_tokens is not None:
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
            self._record.cached(output.cached_tokens)
        if choice.text.finish_reason is not None:
            return None
        if output.finish_reason in (FinishReason.ERROR, FinishReason.ABORT):
            raise ApiError(
                500, output.error or f"The engine ended this request: {output.finish_reason}.", code="engine_error"
            )
        delta = choice.text.feed(output)
        if self._record.first_at is None and self._stream is not None and self._stream.queued is not None:
            self._record.queued(self._stream.queued)
        self._record.tokens(len(delta.token_ids))
        if delta.logprobs is not None:
            choice.tokens += map(ScoredToken, delta.token_ids, delta.logprobs, delta.offsets)
        if not delta.text and delta.finish_reason is None:
            return None
        if delta.finish_reason is not None:
            self._end_choice(output)
        tokens: tuple[ScoredToken, ...] = ()
        if choice.tokens:
            tokens, choice.tokens = tuple(choice.tokens), []
        return Piece(output.index, delta.text, tokens, delta.finish_reason, choice.text.num_tokens)

    def end(self, index: int) -> None:
        """End a choice where it stands, as a stop string would."""
        text = self._choices[index].text
        if text.finish_reason is None:
            text.finish_reason = FinishReason.STOP
            self._open -= 1
            self._client.abort(self.request.request_id, index if self._open else None)

    def _end_choice(self, output: SequenceOutput) -> None:
        """Tell the engine where the end was ours (a stop string), and forget a request that has ended."""
        self._open -= 1
        if output.finish_reason is None:
            self._client.abort(self.request.request_id, output.index if self._open else None)
        elif not self._open:
            self._client.finished(self.request.request_id)


class GenerationGroup:
    """The generations of one HTTP request, read as one: choice indexes are counted through, prompt by prompt."""

    def __init__(self, generations: Sequence[Generation], *, dry: bool = False, mute: bool = False) -> None:
        self.generations = generations
        self.dry = dry  # nothing is generated: only the prompts count
        self.mute = mute  # what is generated was not asked for: only the prompts count
        self._changed = asyncio.Event()  # something came for one of them

    @property
    def prompt_tokens(self) -> int:
        return sum(len(one.request.prompt_ids) for one in self.generations)

    @property
    def completion_tokens(self) -> int:
        return 0 if self.mute else sum(one.completion_tokens for one in self.generations)

    @property
    def cached_tokens(self) -> int:
        return sum(one.cached_tokens for one in self.generations)

    def stop_string(self, index: int) -> str | None:
        """The stop string that ended the first prompt's choice ``index``, if one did."""
        return self.generations[0].stop_string(index)

    async def start(self, timeout: float | None) -> None:
        """Start all; if one is refused, none runs. Raises the refusal (``ApiError``)."""
        if self.dry:
            return
        try:
            for one in self.generations:
                one.submit(self._changed)
            for one in self.generations:
                await one.accepted(timeout)
        except BaseException:
            self.close()
            raise

    async def pieces(self) -> AsyncGenerator[list[Piece], None]:
        """Pieces of all generations until each has ended: all that has come, at least one at a time."""
        if self.dry:
            return
        counts = [one.request.params.n for one in self.generations]
        reading = list(zip(itertools.accumulate(counts, initial=0), self.generations, strict=False))
        while reading:
            self._changed.clear()
            pieces: list[Piece] = []
            for base, one in reading:
                found = one.read()
                for piece in found if base else ():
                    piece.index += base
                pieces += found
            reading = [(base, one) for base, one in reading if not one.done]
            if pieces:
                yield pieces
            elif reading:
                await self._changed.wait()

    def end(self, index: int) -> None:
        """End the choice ``index``, counted through, where it stands: no more pieces of it come."""
        for one in self.generations:
            if index < one.request.params.n:
                one.end(index)
                return
            index -= one.request.params.n

    def close(self) -> None:
        for one in self.generations:
            one.close()
