"""The ``prompt`` of a completion: a text, token ids, or a list of either."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import bad_request
from .frontend import Frontend
from .limits import is_ids
from .params import token_ids


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt: its ids, and its text as it was given or as the ids say."""

    ids: tuple[int, ...]
    text: str


async def read_prompts(
    prompt: str | list[Any] | None, frontend: Frontend, vocab_size: int, *, add_special_tokens: bool
) -> list[Prompt]:
    """All prompts in order. Ids sent as ids are used untouched. Raises ``ApiError`` 400 for none or for a wrong one."""
    if prompt is None:
        raise bad_request("prompt is missing: a text, token ids, or a list of either.", "prompt")
    items = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
    if not items:
        raise bad_request("prompt is an empty list.", "prompt")
    return [await _read(item, frontend, vocab_size, add_special_tokens) for item in items]


async def _read(item: Any, frontend: Frontend, vocab_size: int, add_special_tokens: bool) -> Prompt:
    if isinstance(item, str):
        try:
            ids = await frontend.encode(item, add_special_tokens=add_special_tokens)
        except ValueError as error:
            raise bad_request(str(error), "prompt") from None
        text = item
    elif isinstance(item, list):
        ids = token_ids(item, vocab_size, "prompt")
        text = frontend.tokenizer.decode(ids)
    else:
        raise bad_request(f"prompt holds {item!r:.100}; it must be text or token ids.", "prompt")
    if not ids:
        raise bad_request("A prompt is empty: this model puts nothing in front of it, so it needs one token.", "prompt")
    return Prompt(ids, text)
