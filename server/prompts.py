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
    prompt: str | list[Any] | None,
    frontend: Frontend,
    vocab_size: int,
    *,
    add_special_tokens: bool,
    param: str = "prompt",
    suffix: tuple[int, ...] = (),
) -> list[Prompt]:
    """All prompts in order. Ids sent as ids are used untouched; a text that doesn't end with ``suffix`` gets it, where
    special tokens are added. Raises ``ApiError`` 400, naming ``param``, for none or for a wrong one."""
    if prompt is None:
        raise bad_request(f"{param} is missing: a text, token ids, or a list of either.", param)
    items = [prompt] if isinstance(prompt, str) or is_ids(prompt) else prompt
    if not items:
        raise bad_request(f"{param} is an empty list.", param)
    reader = _Reader(frontend, vocab_size, add_special_tokens, param, suffix if add_special_tokens else ())
    return [await reader.read(item) for item in items]


@dataclass(frozen=True, slots=True)
class _Reader:
    """Reads the prompts of one field."""

    frontend: Frontend
    vocab_size: int
    add_special_tokens: bool
    param: str
    suffix: tuple[int, ...]

    async def read(self, item: Any) -> Prompt:
        if isinstance(item, str):
            ids = await self._encode(item)
            text = item
        elif isinstance(item, list):
            ids = token_ids(item, self.vocab_size, self.param)
            text = self.frontend.tokenizer.decode(ids)
        else:
            raise bad_request(f"{self.param} holds {item!r:.100}; it must be text or token ids.", self.param)
        if not ids:
            raise bad_request(
                f"A text of {self.param} is empty: this model puts nothing in front of it, so it needs one token.",
                self.param,
            )
        return Prompt(ids, text)

    async def _encode(self, text: str) -> tuple[int, ...]:
        try:
            ids = await self.frontend.encode(text, add_special_tokens=self.add_special_tokens)
        except ValueError as error:
            raise bad_request(str(error), self.param) from None
        return ids if ids[len(ids) - len(self.suffix) :] == self.suffix else (*ids, *self.suffix)
