"""A model's text side in the HTTP process: tokenizer, chat template, generation defaults. No weights."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, TypeVar

from ..core.pooling import Pooling
from ..models.text import TextModel
from ..models.tokenizer import Tokenizer

T = TypeVar("T")

#: Shorter texts are tokenised on the event loop (well under a millisecond); longer ones in a thread.
INLINE_CHARS = 2000

# Claude Code heads its system prompt with a line that changes at each request; left in, no prefix is ever reused.
_BILLING = re.compile(r"\Ax-anthropic-billing-header:[^\n]*(?:\n+|\Z)")


@dataclass(frozen=True, slots=True)
class Frontend:
    """Everything about the model that text needs."""

    text: TextModel
    defaults: Mapping[str, Any]  # the checkpoint's generation defaults
    name: str
    quantization: str
    pooling: Pooling | None = "mean"  # how the model's embeddings are made; None: in no way known here
    pool: ThreadPoolExecutor = field(default_factory=lambda: ThreadPoolExecutor(2, thread_name_prefix="text"))

    @property
    def tokenizer(self) -> Tokenizer:
        return self.text.tokenizer

    async def run(self, size: int, work: Callable[[], T]) -> T:
        """``work`` over ``size`` characters, off the event loop when that is long."""
        if size <= INLINE_CHARS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self.pool, work)

    async def encode(self, text: str, *, add_special_tokens: bool = True) -> tuple[int, ...]:
        """Token ids of a raw prompt; control tokens in it are read as such, BOS is added once."""
        return await self.run(len(text), lambda: self.text.prompt_ids(text, add_special_tokens))


def load_frontend(path: str) -> Frontend:
    """Read the text side of the checkpoint at ``path``; raises ``CheckpointError``."""
    from ..models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    try:
        return Frontend(
            text=TextModel.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size),
            defaults=dict(checkpoint.generation_defaults),
            name=checkpoint.name,
            quantization=checkpoint.quantization,
            pooling=checkpoint.pooling,
        )
    finally:
        checkpoint.close()


def text_size(messages: list[dict[str, Any]]) -> int:
    """Characters of text in ``messages``, for choosing a thread."""
    total = 0
    for message in messages:
        content = message.get("content")
        if isinstance(content, str):
            total += len(content)
        elif isinstance(content, list):
            total += sum(len(str(part.get("text", ""))) for part in content if isinstance(part, dict))
    return total


def without_billing_line(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Drop the changing billing line that some agents put at the head of a system message."""
    return [_strip(message) if message.get("role") in ("system", "developer") else message for message in messages]


def _strip(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if isinstance(content, str):
        return {**message, "content": _BILLING.sub("", content)}
    if (
        isinstance(content, list)
        and content
        and isinstance(content[0], dict)
        and isinstance(content[0].get("text"), str)
    ):
        first = {**content[0], "text": _BILLING.sub("", content[0]["text"])}
        return {**message, "content": [first, *content[1:]]}
    return message
