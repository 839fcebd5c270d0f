"""What the requests ask: synthetic texts of a given length, or files of conversations, prompts and traces.

Every level of a run draws anew, so that no level finds the prompts of the one before in a prefix cache.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from .load import Prompt, Session
from .text import real_text

DATASETS = ("random", "prefix", "multiturn", "sharegpt", "jsonl", "trace")
_TRACE_BLOCK = 512  # tokens that one hash of a trace stands for, as in Mooncake's

Content = Any  # a string or a tuple of ids: both can be joined with +


class Source(Protocol):
    """Makes prompts of about so many tokens."""

    def draw(self, rng: random.Random, tokens: int) -> Content:
        """A stretch that begins unlike any other."""
        ...

    def empty(self) -> Content: ...

    def count(self, text: str) -> int:
        """About how many tokens ``text`` has."""
        ...


@dataclass(slots=True)
class WordSource:
    """English prose. ``tokens_per_word`` comes from asking the server how long a text was."""

    tokens_per_word: float = 1.35
    _words: list[str] = field(default_factory=lambda: real_text(150_000).split())

    def draw(self, rng: random.Random, tokens: int) -> Content:
        count = max(1, round(tokens / self.tokens_per_word))
        start = rng.randrange(len(self._words))
        words = [self._words[(start + i) % len(self._words)] for i in range(count)]
        words[0] = "".join(rng.choice("BCDFGHJKLMNPQRSTVWXZ") for _ in range(3))  # no two begin alike
        return " ".join(words) + " "

    def empty(self) -> Content:
        return ""

    def count(self, text: str) -> int:
        return max(1, round(len(text.split()) * self.tokens_per_word))


@dataclass(slots=True)
class IdSource:
    """Token ids, so lengths are exact: drawn from ``ids`` (of real text), or any below ``vocab_size``."""

    vocab_size: int
    ids: Sequence[int] = ()

    def draw(self, rng: random.Random, tokens: int) -> Content:
        if not self.ids:
            return tuple(rng.randrange(3, self.vocab_size) for _ in range(tokens))
        start = rng.randrange(len(self.ids))
        body = tuple(self.ids[(start + i) % len(self.ids)] for i in range(tokens - 1))
        return (self.ids[rng.randrange(len(self.ids))], *body)

    def empty(self) -> Content:
        return ()

    def count(self, text: str) -> int:
        return max(1, round(len(text.split()) * 1.35))


@dataclass(frozen=True, slots=True)
class DataSpec:
    """Which requests. Lengths are tokens."""

    kind: str = "random"
    path: Path | None = None
    input_len: int = 256
    output_len: int | None = None  # None: 128, or what the file says
    range_ratio: float = 0.0  # lengths vary evenly by so much either way
    prefix_len: int = 512
    num_prefixes: int = 4
    turns: int = 4
    think: float = 0.0
    chat: bool = False
    seed: int = 0

    def __post_init__(self) -> None:
        if self.kind not in DATASETS:
            raise ValueError(f"dataset is {self.kind!r}; it must be one of {', '.join(DATASETS)}")
        if self.kind in ("sharegpt", "jsonl", "trace") and self.path is None:
            raise ValueError(f"dataset {self.kind} needs --dataset-path")
        if not 0 <= self.range_ratio < 1:
            raise ValueError(f"range-ratio is {self.range_ratio}; it must be 0 or more and below 1")


@dataclass(frozen=True, slots=True)
class Drawn:
    """Sessions, and for a trace when each is due."""

    sessions: list[Session]
    due: list[float] | None = None


def draw(spec: DataSpec, source: Source, count: int, number: int = 0) -> Drawn:
    """``count`` sessions for level ``number`` of a run.

    Raises:
        ValueError: the file can't be read or holds nothing usable.
    """
    rng = random.Random(f"{spec.seed} {number}")
    if spec.kind == "trace":
        return _trace(spec, source, count)
    if spec.kind in ("sharegpt", "jsonl"):
        found = list(_sharegpt(spec, source) if spec.kind == "sharegpt" else _jsonl(spec, source))
        if not found:
            raise ValueError(f"{spec.path} holds no usable request")
        rng.shuffle(found)
        return Drawn([found[i % len(found)] for i in range(count)])
    if spec.kind == "multiturn":
        return Drawn([_conversation(spec, source, rng) for _ in range(max(1, count // spec.turns))])
    heads = [source.draw(rng, spec.prefix_len) for _ in range(spec.num_prefixes)] if spec.kind == "prefix" else []
    sessions = []
    for i in range(count):
        head = heads[i % len(heads)] if heads else source.empty()
        text = head + source.draw(rng, _vary(rng, spec.input_len, spec.range_ratio))
        sessions.append(Session((_prompt(text, _vary(rng, spec.output_len or 128, spec.range_ratio), spec.chat),)))
    rng.shuffle(sessions)
    return Drawn(sessions)


def _prompt(content: Content, max_tokens: int, chat: bool) -> Prompt:
    if chat and isinstance(content, str):
        return Prompt(({"role": "user", "content": content},), max_tokens)
    return Prompt(content, max_tokens)


def _vary(rng: random.Random, length: int, ratio: float) -> int:
    return rng.randint(max(1, int(length * (1 - ratio))), max(1, int(-(-length * (1 + ratio) // 1))))


def _conversation(spec: DataSpec, source: Source, rng: random.Random) -> Session:
    turns = []
    for _ in range(spec.turns):
        text = source.draw(rng, _vary(rng, spec.input_len, spec.range_ratio))
        length = _vary(rng, spec.output_len or 128, spec.range_ratio)
        turns.append(Prompt(({"role": "user", "content": text},) if isinstance(text, str) else text, length))
    return Session(tuple(turns), spec.think)


def _sharegpt(spec: DataSpec, source: Source) -> Iterator[Session]:
    """The first question and answer of each conversation; the answer's length is what is asked for."""
    for item in _items(spec):
        turns = item.get("conversations") or item.get("conversation") or []
        texts = [str(t.get("value") or t.get("content") or "") for t in turns if isinstance(t, dict)]
        if len(texts) < 2:
            continue
        length, answer = source.count(texts[0]), spec.output_len or source.count(texts[1])
        if 4 <= length <= 1024 and 4 <= answer and length + answer <= 2048:  # as in vLLM
            yield Session((_prompt(texts[0], answer, spec.chat),))


def _jsonl(spec: DataSpec, source: Source) -> Iterator[Session]:
    """A request a line: ``prompt`` (text or ids) or ``messages``, and ``max_tokens`` or ``output_len``."""
    for item in _items(spec):
        length = spec.output_len or int(item.get("max_tokens") or item.get("output_len") or 128)
        if isinstance(item.get("messages"), list):
            yield Session((Prompt(tuple(item["messages"]), length),))
        elif isinstance(item.get("prompt"), list):
            yield Session((Prompt(tuple(int(token) for token in item["prompt"]), length),))
        elif isinstance(item.get("prompt"), str):
            yield Session((_prompt(item["prompt"], length, spec.chat),))


def _trace(spec: DataSpec, source: Source, count: int) -> Drawn:
    """Lines of ``timestamp`` (ms), ``input_length``, ``output_length``; ``hash_ids`` where prompts share blocks."""
    items = sorted(_items(spec), key=lambda item: float(item["timestamp"]))[:count]
    if not items:
        raise ValueError(f"{spec.path} holds no usable request")
    sessions, first = [], float(items[0]["timestamp"])
    for index, item in enumerate(items):
        length, text = int(item["input_length"]), source.empty()
        for block in item.get("hash_ids") or ():
            size = min(_TRACE_BLOCK, length)
            text, length = text + source.draw(random.Random(f"{spec.seed} block {block}"), max(1, size)), length - size
        if length > 0:
            text += source.draw(random.Random(f"{spec.seed} request {index}"), length)
        sessions.append(Session((_prompt(text, spec.output_len or int(item["output_length"]), spec.chat),)))
    return Drawn(sessions, [(float(item["timestamp"]) - first) / 1000 for item in items])


def _items(spec: DataSpec) -> list[dict[str, Any]]:
    """The objects of a JSON array or of JSON lines."""
    assert spec.path is not None
    try:
        text = spec.path.read_text(encoding="utf-8")
        found = json.loads(text) if text.lstrip().startswith("[") else [json.loads(x) for x in text.splitlines() if x]
    except (OSError, ValueError) as error:
        raise ValueError(f"{spec.path} is neither a JSON array nor JSON lines: {error}") from None
    return [item for item in found if isinstance(item, dict)]
