"""One engine request turned into text: pieces of choices as they come, stop strings applied, metrics kept."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field

from ..core.output import SequenceText
from ..core.request import FinishReason, Request, SequenceOutput, TokenLogprob
from ..models.text import TextModel
from .client import EngineClient
from .errors import ApiError
from .metrics import RequestRecord
from .params import TextRules
from .stream import RequestStream


@dataclass(frozen=True, slots=True)
class ScoredToken:
    """A generated token, its log-probabilities, and where in the choice's text it begins (in characters)."""

    token_id: int
    scores: TokenLogprob
    offset: int


@dataclass(frozen=True, slots=True)
class Piece:
    """What was added to one choice. ``finish`` is set on a choice's last piece."""

    index: int
    text: str
    tokens: tuple[ScoredToken, ...] = ()  # where log-probabilities were asked for
    finish: FinishReason | None = None


@dataclass(slots=True)
class _Choice:
    """One sequence's text so far, and the tokens that no text came out for yet."""

    text: SequenceText
    tokens: list[ScoredToken] = field(default_factory=list)


class Generation:
    """One prompt's choices. Start it, read ``pieces`` to the end, always ``close`` it."""

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
        self._client = client
        self._record = record
        self._prompt_field = prompt_field
        self._stream: RequestStream | None = None
        self._choices = [
            _Choice(text.output(rules.stop, rules.include_stop, rules.skip_special_tokens))
            for _ in range(request.params.n)
        ]

    @property
    def completion_tokens(self) -> int:
        """Tokens made, over all choices, end tokens included."""
        return sum(choice.text.num_tokens for choice in self._choices)

    def submit(self) -> None:
        """Send the request to the engine. Raises ``ApiError`` 503 where there is none."""
        self._stream = self._client.submit(self.request, self._prompt_field)
        self._record.submitted()

    async def accepted(self, timeout: float | None) -> None:
        """Wait at most ``timeout`` seconds for the engine's answer. Raises its refusal (``ApiError``)."""
        assert self._stream is not None
        try:
            await self._stream.wait_accepted(timeout)
        except ApiError as error:
            self._record.failed(error.status)
            raise

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Additions to the choices until all have ended. Raises ``ApiError`` when the engine fails the request."""
        try:
            async for piece in self._read():
                yield piece
        except ApiError as error:
            self._record.failed(error.status)
            raise

    async def _read(self) -> AsyncIterator[Piece]:
        assert self._stream is not None
        open_choices = len(self._choices)
        while open_choices:
            for output in await self._stream.next():
                piece = self._take(output)
                if piece is None:
                    continue
                if piece.finish is not None:
                    open_choices -= 1
                    self._end_choice(output, last=not open_choices)
                yield piece

    def close(self) -> None:
        """Forget the request; abort what still runs. The record tells the metrics how it ended."""
        reasons = [choice.text.finish_reason for choice in self._choices]
        if self._stream is not None and None in reasons:
            self._client.abort(self.request.request_id)
        self._record.end(reasons, self.cached_tokens)

    def _take(self, output: SequenceOutput) -> Piece | None:
        choice = self._choices[output.index]
        if output.cached_tokens is not None:
            self.cached_tokens = max(self.cached_tokens, output.cached_tokens)
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
        tokens, choice.tokens = tuple(choice.tokens), []
        return Piece(output.index, delta.text, tokens, delta.finish_reason)

    def _end_choice(self, output: SequenceOutput, *, last: bool) -> None:
        """Tell the engine where the end was ours (a stop string), and forget a request that has ended."""
        if output.finish_reason is None:
            self._client.abort(self.request.request_id, None if last else output.index)
        elif last:
            self._client.finished(self.request.request_id)


class GenerationGroup:
    """The generations of one HTTP request, read as one: choice indexes are counted through, prompt by prompt."""

    def __init__(self, generations: Sequence[Generation], *, dry: bool = False) -> None:
        self.generations = generations
        self.dry = dry  # nothing is generated: only the prompts count

    @property
    def prompt_tokens(self) -> int:
        return sum(len(one.request.prompt_ids) for one in self.generations)

    @property
    def completion_tokens(self) -> int:
        return sum(one.completion_tokens for one in self.generations)

    @property
    def cached_tokens(self) -> int:
        return sum(one.cached_tokens for one in self.generations)

    async def start(self, timeout: float | None) -> None:
        """Start all; if one is refused, none runs. Raises the refusal (``ApiError``)."""
        if self.dry:
            return
        try:
            for one in self.generations:
                one.submit()
            for one in self.generations:
                await one.accepted(timeout)
        except BaseException:
            self.close()
            raise

    async def pieces(self) -> AsyncGenerator[Piece, None]:
        """Pieces of all generations as they come."""
        if self.dry:
            return
        if len(self.generations) == 1:
            async with aclosing(self.generations[0].pieces()) as pieces:
                async for piece in pieces:
                    yield piece
            return
        queue: asyncio.Queue[Piece | Exception | None] = asyncio.Queue()
        pumps = [asyncio.create_task(self._pump(at, queue)) for at in range(len(self.generations))]
        try:
            running = len(pumps)
            while running:
                item = await queue.get()
                if isinstance(item, Exception):
                    raise item
                if item is None:
                    running -= 1
                else:
                    yield item
        finally:
            for pump in pumps:
                pump.cancel()

    async def _pump(self, at: int, queue: asyncio.Queue[Piece | Exception | None]) -> None:
        base = at * self.generations[at].request.params.n
        try:
            async for piece in self.generations[at].pieces():
                queue.put_nowait(Piece(base + piece.index, piece.text, piece.tokens, piece.finish))
            queue.put_nowait(None)
        except ApiError as error:
            queue.put_nowait(error)

    def close(self) -> None:
        for one in self.generations:
            one.close()
