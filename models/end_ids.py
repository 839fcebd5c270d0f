"""Which token ids end a turn: the union of all that a model's files name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .weight import CheckpointError

GGUF_KEYS = tuple(f"tokenizer.ggml.{name}_token_id" for name in ("eos", "eot", "eom"))
CONTROL = 3  # tokenizer.ggml.token_type of a marker that is no text

# Markers that end a turn in the model families supported. Many GGUF files name one end id where the model uses two, so
# a control token of such a text counts too, as it does in llama.cpp.
END_MARKERS = frozenset(
    ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|eom_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "</s>")
)
# OpenAI's harmony format ends a turn with one of these; its "<|end|>" is only the end of a message within the turn.
HARMONY_ENDS = frozenset(("<|return|>", "<|call|>"))


def token_ids(value: Any, key: str, source: str, vocab_size: int) -> set[int]:
    """The ids in ``value``: an int, a list of ints or None.

    Raises:
        CheckpointError: another type, or an id outside the vocabulary.
    """
    items = value if isinstance(value, list) else [] if value is None else [value]
    ids: set[int] = set()
    for item in items:
        if isinstance(item, bool) or not isinstance(item, int):
            raise CheckpointError(f"{source}: {key} is {item!r}; wanted: a token id")
        if not 0 <= item < vocab_size:
            raise CheckpointError(f"{source}: {key} {item} outside the vocabulary of {vocab_size}")
        ids.add(item)
    return ids


def gguf_end_ids(metadata: Mapping[str, Any], source: str, vocab_size: int) -> frozenset[int]:
    """End ids named by the file, one or several per key, and end markers among its control tokens."""
    ids: set[int] = set()
    for key in GGUF_KEYS:
        for name in (key, key + "s"):
            ids |= token_ids(metadata.get(name), name.removeprefix("tokenizer.ggml."), source, vocab_size)
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        ids |= _markers(zip(tokens, types, strict=False))
    return frozenset(ids)


def _markers(tokens: Iterable[tuple[Any, Any]]) -> set[int]:
    control = {token: index for index, (token, kind) in enumerate(tokens) if kind == CONTROL and isinstance(token, str)}
    wanted = END_MARKERS - {"<|end|>"} | HARMONY_ENDS if HARMONY_ENDS <= control.keys() else END_MARKERS
    return {control[token] for token in wanted & control.keys()}
