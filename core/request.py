"""What was asked: a request, how to sample from it, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from .config import MAX_LOGPROBS as MAX_LOGPROBS
from .config import MAX_N as MAX_N
from .grammar import GrammarSpec
from .pooling import Pooling


class FinishReason(StrEnum):
    """Why a sequence ended."""

    STOP = "stop"  # an end token, a stop token id or (found by the client of the engine) a stop string
    LENGTH = "length"  # max_tokens, the context limit or the KV pool's own limit
    ABORT = "abort"  # the client went away or asked for it
    ERROR = "error"  # this sequence alone failed, e.g. NaN logits


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How to pick tokens. Field names and meanings are those of vLLM and the OpenAI API.

    Raises:
        ValueError: a value out of range; the message names the field, the value and the limit.
    """

    max_tokens: int | None = None  # None: up to the context limit
    min_tokens: int = 0  # end and stop tokens are masked until so many tokens were made
    temperature: float = 1.0  # 0 is greedy: the argmax, ties to the lowest id
    top_k: int = 0  # 0 or -1: off
    top_p: float = 1.0  # nucleus; 0 keeps the one most likely token
    min_p: float = 0.0  # least probability, relative to the most likely token's
    repetition_penalty: float = 1.0  # over prompt and output (CTRL, arXiv:1909.05858)
    presence_penalty: float = 0.0  # over output only
    frequency_penalty: float = 0.0  # over output only
    logit_bias: dict[int, float] = field(default_factory=dict)
    seed: int | None = None  # same seed, same prompt: same tokens, whatever else is in the batch
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False  # ignores every end id of the model (not stop_token_ids)
    logprobs: int | None = None  # None: none; k >= 0: the chosen token's and the k most likely tokens'
    n: int = 1  # sequences per request; sequence i of a seeded request draws from (seed, i)
    grammar: GrammarSpec | None = None  # what the text must match; end tokens only where it does
    prompt_logprobs: int | None = None  # as ``logprobs``, for the prompt's own tokens
    pooling: Pooling | None = None  # an embedding is wanted; one token is drawn all the same, and means nothing

    def __post_init__(self) -> None:
        checks = (
            ("max_tokens", self.max_tokens is None or self.max_tokens >= 1, "at least 1"),
            ("min_tokens", self.min_tokens >= 0, "0 or more"),
            ("temperature", 0.0 <= self.temperature <= 100.0, "0 to 100"),
            ("top_k", self.top_k >= -1, "-1 or more"),
            ("top_p", 0.0 <= self.top_p <= 1.0, "0 to 1"),
            ("min_p", 0.0 <= self.min_p <= 1.0, "0 to 1"),
            ("repetition_penalty", 0.0 < self.repetition_penalty <= 100.0, "above 0, at most 100"),
            ("presence_penalty", -2.0 <= self.presence_penalty <= 2.0, "-2 to 2"),
            ("frequency_penalty", -2.0 <= self.frequency_penalty <= 2.0, "-2 to 2"),
            ("logprobs", self.logprobs is None or 0 <= self.logprobs <= MAX_LOGPROBS, f"0 to {MAX_LOGPROBS}"),
            (
                "prompt_logprobs",
                self.prompt_logprobs is None or 0 <= self.prompt_logprobs <= MAX_LOGPROBS,
                f"0 to {MAX_LOGPROBS}",
            ),
            ("n", 1 <= self.n <= MAX_N, f"1 to {MAX_N}"),
            ("n", self.n == 1 or self.pooling is None, "1 for an embedding"),
            ("max_tokens", self.max_tokens == 1 or self.pooling is None, "1 for an embedding"),
        )
        for name, good, limit in checks:
            if not good:
                raise ValueError(f"{name} is {getattr(self, name)!r}; it must be {limit}")


@dataclass(frozen=True, slots=True)
class Request:
    """One request as the engine takes it: token ids in, never text."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    user: str = ""  # whose fair share it comes out of
    priority: int = 0  # lower goes first, as in vLLM
    cache_salt: str = ""  # requests with different salts never share cached blocks
    arrival_time: float = 0.0  # seconds, the engine's clock; 0: when it was added
    weight: float | None = None  # of the user's fair share; None: as it was, 1 at first


@dataclass(frozen=True, slots=True)
class TokenLogprob:
    """Natural-log probabilities (of the model's raw distribution) at one output position."""

    logprob: float  # of the chosen token
    top_ids: tuple[int, ...]  # most likely first; the chosen token need not be among them
    top_logprobs: tuple[float, ...]


class SequenceOutput(NamedTuple):
    """What one step added to one sequence of a request. A tuple: one is made for every token of every step."""

    request_id: str
    index: int  # type: ignore[assignment]  # which of the request's n sequences; hides tuple.index
    token_ids: tuple[int, ...]  # new tokens, an end token included
    logprobs: tuple[TokenLogprob, ...] | None = None  # one per new token, where asked
    finish_reason: FinishReason | None = None
    cached_tokens: int | None = None  # prompt tokens taken from the prefix cache; set on the first output
    error: str | None = None  # with FinishReason.ERROR
    prompt_logprobs: tuple[TokenLogprob, ...] | None = None  # from the second token on; with the first output
    embedding: bytes | None = None  # at the end, where one was asked for; see ``pooling.embedding``


class RequestRejectedError(ValueError):
    """A request that can never be served: the message carries the numbers and the limit.

    ``code`` is the machine-readable reason, e.g. ``context_length_exceeded`` or ``kv_cache_exceeded``.
    """

    def __init__(self, message: str, code: str) -> None:
        super().__init__(message)
        self.code = code


class QueueFullError(RuntimeError):
    """Not now: the waiting queue is at its limit, or the objective can't be met. Try again in ``retry_after`` seconds.

    ``code`` is the machine-readable reason: ``queue_full`` or ``slo_unattainable``.
    """

    def __init__(self, message: str, retry_after: float, code: str = "queue_full") -> None:
        super().__init__(message)
        self.retry_after = retry_after
        self.code = code
