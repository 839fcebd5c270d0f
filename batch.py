"""Requests that one program runs to their end, and their answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .core.request import FinishReason, QueueFullError, Request, SequenceOutput, TokenLogprob

if TYPE_CHECKING:
    from .core.grammar import Grammar
    from .core.output import SequenceText


@dataclass(slots=True)
class CompletionOutput:
    """One of a request's ``n`` answers."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)  # the end token included
    logprobs: list[TokenLogprob] | None = None  # one per token, where asked
    finish_reason: FinishReason | None = None
    stop: str | None = None  # the stop string that ended it
    error: str | None = None  # with FinishReason.ERROR


@dataclass(slots=True)
class RequestOutput:
    """A prompt and its answers."""

    prompt: str | None  # None where ids were given
    prompt_ids: tuple[int, ...]
    outputs: list[CompletionOutput]
    cached_tokens: int = 0  # prompt tokens taken from the prefix cache


@dataclass(slots=True)
class Job:
    """A request, and its answers as they come."""

    request: Request
    result: RequestOutput
    texts: list[SequenceText]
    grammar: Grammar | None = None
    pooled: bytes | None = None  # where an embedding is wanted

    @property
    def done(self) -> bool:
        return all(text.finish_reason is not None for text in self.texts)

    def embedding(self) -> bytes:
        """Raises ``RuntimeError`` where none came of it, with the reason."""
        if self.pooled is None:
            raise RuntimeError(f"no embedding came of {self.request.request_id}: {self.result.outputs[0].error}")
        return self.pooled


class Batch:
    """Drives the engine until all jobs are done; whatever goes wrong, nothing of them stays behind in it."""

    def __init__(self, engine: Any, jobs: Sequence[Job]) -> None:
        self._engine = engine
        self._jobs = {job.request.request_id: job for job in jobs}
        self._waiting = list(reversed(jobs))
        self._done = 0

    def run(self, report: Callable[[int, int], object]) -> None:
        """``report`` is told how many jobs are done, of how many."""
        try:
            while self._done < len(self._jobs):
                self._add_waiting()
                for output in self._engine.step():
                    self._take(output)
                report(self._done, len(self._jobs))
        except BaseException:
            for request_id in self._jobs:
                self._engine.abort(request_id)
            raise

    def _add_waiting(self) -> None:
        """As many as the engine's queue takes; the others when it has room again."""
        while self._waiting:
            try:
                self._engine.add(self._waiting[-1].request, self._waiting[-1].grammar)
            except QueueFullError:
                return
            self._waiting.pop()

    def _take(self, output: SequenceOutput) -> None:
        job = self._jobs.get(output.request_id)
        if job is None or job.texts[output.index].finish_reason is not None:
            return
        delta = job.texts[output.index].feed(output)
        answer = job.result.outputs[output.index]
        answer.text += delta.text
        answer.token_ids.extend(delta.token_ids)
        if delta.logprobs is not None:
            answer.logprobs = answer.logprobs or []
            answer.logprobs.extend(delta.logprobs)
        answer.finish_reason, answer.stop, answer.error = delta.finish_reason, delta.stop, delta.error
        job.pooled = output.embedding or job.pooled
        job.result.cached_tokens = max(job.result.cached_tokens, output.cached_tokens or 0)
        if delta.abort and output.finish_reason is None:
            self._engine.abort(output.request_id, output.index)
        self._done += job.done
