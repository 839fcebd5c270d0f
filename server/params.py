"""A request body's fields as the engine's sampling parameters: null is 'not given', 0 is given."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..core.grammar import GrammarSpec
from ..core.request import MAX_LOGPROBS, SamplingParams
from .errors import bad_request
from .openai_types import GenerationRequest

MAX_BIAS = 100.0
MAX_STOP_CHARS = 1000
#: Fields a checkpoint's generation defaults may fill.
DEFAULTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
#: Fields of other servers that this one doesn't do, and what comes near.
_UNSUPPORTED = {
    "allowed_token_ids": "; logit_bias raises tokens, structured_outputs holds answers to a form",
    "bad_words": "; logit_bias with -100 forbids single tokens",
    "prompt_logprobs": "; /v1/completions scores a prompt with echo and logprobs",
    "truncate_prompt_tokens": ": nothing is cut from a prompt",
    "use_beam_search": "; best_of of /v1/completions picks among several answers",
}
_PLAIN = (*DEFAULTED, "min_tokens", "presence_penalty", "frequency_penalty", "seed", "n", "ignore_eos")


@dataclass(frozen=True, slots=True)
class TextRules:
    """What ends or changes the text itself; the engine knows tokens only."""

    stop: tuple[str, ...] = ()
    include_stop: bool = False
    skip_special_tokens: bool = True
    kept: frozenset[int] = frozenset()  # special tokens that a parser must see


def text_rules(request: GenerationRequest, kept: frozenset[int] = frozenset()) -> TextRules:
    """Raises ``ApiError`` 400 for an empty stop string, or too long ones."""
    stop = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if any(not text for text in stop):
        raise bad_request("stop holds an empty string, which would end every answer at once; leave it out.", "stop")
    if longest := max((len(text) for text in stop if len(text) > MAX_STOP_CHARS), default=0):
        raise bad_request(f"stop holds a string of {longest} characters; at most {MAX_STOP_CHARS} are taken.", "stop")
    return TextRules(
        stop=stop,
        include_stop=bool(request.include_stop_str_in_output),
        skip_special_tokens=request.skip_special_tokens is not False,
        kept=kept,
    )


def sampling_params(
    request: GenerationRequest,
    *,
    max_tokens: int,
    logprobs: int | None,
    defaults: Mapping[str, Any],
    vocab_size: int,
    n: int | None = None,
    grammar: GrammarSpec | None = None,
) -> SamplingParams:
    """Sampling parameters of a body. ``defaults`` fill only fields that were left out; ``n`` overrides the body's.

    Raises:
        ApiError: 400 naming the field, the value and the limit.
    """
    values: dict[str, Any] = {name: defaults[name] for name in DEFAULTED if defaults.get(name) is not None}
    values |= {name: value for name in _PLAIN if (value := getattr(request, name)) is not None}
    values |= {} if n is None else {"n": n}
    check_integers(request)
    refuse_unsupported(request)
    if values.get("top_k", 0) >= vocab_size:
        values["top_k"] = 0  # all of them: off
    if logprobs is not None and not 0 <= logprobs <= MAX_LOGPROBS:
        raise bad_request(f"logprobs is {logprobs}; it must be 0 to {MAX_LOGPROBS}", "logprobs")
    try:
        return SamplingParams(
            max_tokens=max_tokens,
            logit_bias=logit_bias(request.logit_bias, vocab_size),
            stop_token_ids=token_ids(request.stop_token_ids or [], vocab_size, "stop_token_ids"),
            logprobs=logprobs,
            grammar=grammar,
            **values,
        )
    except ValueError as error:
        raise bad_request(str(error), str(error).split(" ", 1)[0]) from None


def refuse_unsupported(request: GenerationRequest) -> None:
    """Refuse what would change the answer and isn't done here: ignored, it would pass for done."""
    for name, instead in _UNSUPPORTED.items():
        value = getattr(request, name)
        if value is not None and value is not False and value != []:
            raise bad_request(f"{name} is not supported by this server{instead}.", name)


def check_integers(request: GenerationRequest) -> None:
    """Refuse integers that no machine word holds, where no other limit is known."""
    limits = (("seed", -(2**63), 2**64 - 1), ("min_tokens", 0, 2**31 - 1), ("priority", -(2**31), 2**31 - 1))
    for name, low, high in limits:
        value = getattr(request, name)
        if value is not None and not low <= value <= high:
            raise bad_request(f"{name} is {value}; it must be {low} to {high}", name)


def token_ids(ids: list[Any], vocab_size: int, param: str) -> tuple[int, ...]:
    """``ids`` checked against the output matrix's rows."""
    for token in ids:
        if type(token) is not int or not 0 <= token < vocab_size:
            raise bad_request(f"{param}: {token!r} is not a token id of this model (0 to {vocab_size - 1})", param)
    return tuple(ids)


def logit_bias(bias: dict[str, float] | None, vocab_size: int) -> dict[int, float]:
    """OpenAI's map of token id (as text) to -100..100."""
    if bias is None:
        return {}
    checked: dict[int, float] = {}
    for key, value in bias.items():
        if not (key.isascii() and key.isdigit() and len(key) < 12 and int(key) < vocab_size):
            raise bad_request(
                f"logit_bias: {key!r} is not a token id of this model (0 to {vocab_size - 1})", "logit_bias"
            )
        if not -MAX_BIAS <= value <= MAX_BIAS:
            raise bad_request(f"logit_bias of token {key} is {value}; it must be -100 to 100", "logit_bias")
        checked[int(key)] = value
    return checked


def budget(asked: int | None, prompt: int, limit: int, param: str, *, least: int = 1) -> int:
    """Tokens to make: what was asked, cut to what the context leaves (documented: never an error by itself)."""
    if asked is not None and asked < least:
        raise bad_request(f"{param} is {asked}; it must be at least {least}", param)
    room = limit - prompt
    return room if asked is None else min(asked, room)
