"""Log-probabilities in the two shapes of the OpenAI API."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..models.tokenizer import Tokenizer
from .generation import ScoredToken

#: JSON has no minus infinity.
FLOOR = -9999.0


def chat_logprobs(tokens: Sequence[ScoredToken], tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """Chat's shape: ``content`` with one entry per token, each with ``top`` alternatives."""
    return {"content": [_chat_entry(token, tokenizer, top) for token in tokens], "refusal": None}


def _chat_entry(token: ScoredToken, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    scores = token.scores
    pairs = zip(scores.top_ids[:top], scores.top_logprobs[:top], strict=True)
    return _named(token.token_id, scores.logprob, tokenizer) | {
        "top_logprobs": [_named(token_id, logprob, tokenizer) for token_id, logprob in pairs]
    }


def _named(token_id: int, logprob: float, tokenizer: Tokenizer) -> dict[str, Any]:
    data = tokenizer.token_bytes(token_id)
    return {"token": tokenizer.token_text(token_id), "logprob": max(logprob, FLOOR), "bytes": list(data)}


def completion_logprobs(tokens: Sequence[ScoredToken], tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """The completions shape: four parallel lists, offsets in characters of the choice's text."""
    return {
        "text_offset": [token.offset for token in tokens],
        "token_logprobs": [max(token.scores.logprob, FLOOR) for token in tokens],
        "tokens": [_key(token.token_id, tokenizer) for token in tokens],
        "top_logprobs": [_alternatives(token, tokenizer, top) for token in tokens],
    }


def prompt_logprobs(tokens: Sequence[ScoredToken], first: int, tokenizer: Tokenizer, top: int) -> dict[str, Any]:
    """A prompt in the completions shape: its token ``first``, which nothing comes before, then ``tokens``."""
    rest = completion_logprobs(tokens, tokenizer, top)
    opening = {"text_offset": 0, "token_logprobs": None, "tokens": _key(first, tokenizer), "top_logprobs": None}
    return {name: [opening[name], *values] for name, values in rest.items()}


def _alternatives(token: ScoredToken, tokenizer: Tokenizer, top: int) -> dict[str, float]:
    """The most likely tokens; the sampled one is always among them, so there may be one more than asked."""
    pairs = zip(token.scores.top_ids[:top], token.scores.top_logprobs[:top], strict=True)
    found = {_key(token_id, tokenizer): max(logprob, FLOOR) for token_id, logprob in pairs}
    found.setdefault(_key(token.token_id, tokenizer), max(token.scores.logprob, FLOOR))
    return found


def _key(token_id: int, tokenizer: Tokenizer) -> str:
    """A token's text; part of a character is shown by its bytes, since names are keys and must differ."""
    data = tokenizer.token_bytes(token_id)
    try:
        return data.decode()
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in data)
