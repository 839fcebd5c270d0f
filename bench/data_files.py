"""Requests out of files: conversations as ShareGPT has them, prompts as JSON lines, traces with times.

An entry that can't be used is left out, and what is drawn says how many were. A line that is no JSON, and a length or a
time that is no number, is an error that names it: it tells of a broken file.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .ask import Prompt, Session
from .dataset import USUAL_OUTPUT, DataSpec, Drawn, make_prompt
from .sources import Source

_TRACE_BLOCK = 512  # tokens that one hash of a trace stands for, as in Mooncake's

Entry = Mapping[str, Any]


def read_drawn(spec: DataSpec, source: Source, count: int, before: int) -> Drawn:
    """``count`` requests of the file, from the one after ``before``; around again where it ends.

    Raises:
        ValueError: the file can't be read or holds nothing usable.
    """
    entries = _entries(spec)
    if spec.kind == "trace":
        return _trace(spec, source, entries, count)
    read = _sharegpt if spec.kind == "sharegpt" else _jsonl
    found = [session for entry in entries if (session := read(spec, source, entry)) is not None]
    if not found:
        raise ValueError(f"{spec.path} holds no usable request: {_WANTED[spec.kind]}")
    notes = _left_out(spec, len(entries), len(found))
    if before + count > len(found):
        notes.append(
            f"{spec.path} holds {len(found)} usable requests, fewer than are asked: those that come again may be in "
            "the server's prefix cache"
        )
    random.Random(spec.seed).shuffle(found)
    return Drawn([found[(before + i) % len(found)] for i in range(count)], notes=tuple(notes))


_WANTED = {
    "sharegpt": "wanted is a question of 4 to 1,024 tokens with an answer of 4 or more, 2,048 together",
    "jsonl": "wanted is a prompt (text or token ids) or messages",
    "trace": "wanted are timestamp (ms), input_length and output_length",
}


#: Who asks the questions of a conversation, by its ``from`` or ``role``.
_ASKERS = ("human", "user")


def _left_out(spec: DataSpec, entries: int, usable: int) -> list[str]:
    """What a reader must know where not all entries can be used."""
    count = entries - usable
    return [f"{spec.path}: {count} of {entries} entries are left out: {_WANTED[spec.kind]}"] if count else []


def _sharegpt(spec: DataSpec, source: Source, entry: Entry) -> Session | None:
    """The first question and answer of a conversation; the answer's length is what is asked for. Bounds as in vLLM."""
    found = entry.get("conversations") or entry.get("conversation")
    turns = [turn for turn in found if isinstance(turn, dict)] if isinstance(found, list) else []
    while turns and turns[0].get("from", turns[0].get("role", "user")) not in _ASKERS:
        turns = turns[1:]  # what a system says first, or an assistant, is no question
    texts = [str(turn.get("value") or turn.get("content") or "") for turn in turns[:2]]
    if len(texts) < 2:
        return None
    length, answer = source.count(texts[0]), spec.output_len or source.count(texts[1])
    if not (4 <= length <= 1024 and 4 <= answer and length + answer <= 2048):
        return None
    return Session((make_prompt(texts[0], answer, spec.chat),))


def _jsonl(spec: DataSpec, source: Source, entry: Entry) -> Session | None:
    """``prompt`` (text or ids) or ``messages``, and ``max_tokens`` or ``output_len``."""
    length = spec.output_len or _count(spec, entry, "max_tokens", "output_len") or USUAL_OUTPUT
    messages, prompt = entry.get("messages"), entry.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return Session((Prompt(tuple(messages), length),))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return Session((Prompt(tuple(prompt), length),))
    return Session((make_prompt(prompt, length, spec.chat),)) if isinstance(prompt, str) and prompt else None


def _trace(spec: DataSpec, source: Source, entries: list[Entry], count: int) -> Drawn:
    """``timestamp`` (ms), ``input_length``, ``output_length``; ``hash_ids`` where prompts share blocks."""
    timed = [timed for entry in entries if (timed := _timed(spec, entry)) is not None]
    if not timed:
        raise ValueError(f"{spec.path} holds no usable request: {_WANTED['trace']}")
    notes = tuple(_left_out(spec, len(entries), len(timed)))
    timed = sorted(timed, key=lambda one: one.at)[:count]
    sessions = [Session((_traced(spec, source, one, index),)) for index, one in enumerate(timed)]
    return Drawn(sessions, [(one.at - timed[0].at) / 1000 for one in timed], notes)


@dataclass(frozen=True, slots=True)
class _Timed:
    """An entry of a trace: when (ms), how many tokens in and out, and the blocks that it shares with others."""

    at: float
    length: int
    answer: int
    blocks: tuple[object, ...]


def _timed(spec: DataSpec, entry: Entry) -> _Timed | None:
    at, length = _number(spec, entry, "timestamp"), _count(spec, entry, "input_length")
    answer = spec.output_len or _count(spec, entry, "output_length")
    if at is None or not length or not answer:
        return None
    blocks = entry.get("hash_ids")
    return _Timed(at, length, answer, tuple(blocks) if isinstance(blocks, list) else ())


def _traced(spec: DataSpec, source: Source, one: _Timed, index: int) -> Prompt:
    text, left = source.empty(), one.length
    for block in one.blocks:
        size = min(_TRACE_BLOCK, left)
        if size:
            text += source.draw(random.Random(f"{spec.seed} block {block}"), size)
        left -= size
    if left > 0:
        text += source.draw(random.Random(f"{spec.seed} request {index}"), left)
    return make_prompt(text, one.answer, spec.chat)


def _count(spec: DataSpec, entry: Entry, *names: str) -> int | None:
    """As a whole number."""
    value = _number(spec, entry, *names)
    return None if value is None else int(value)


def _number(spec: DataSpec, entry: Entry, *names: str) -> float | None:
    """The first of ``names`` that ``entry`` has."""
    for name in names:
        value = entry.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < math.inf:
                raise ValueError(f"{spec.path}: {name} is {value!r}; wanted is a number of 0 or more")
            return value
    return None


def _entries(spec: DataSpec) -> list[Entry]:
    """The entries of a JSON array, or of JSON lines; one that is no object has no keys."""
    assert spec.path is not None
    try:
        text = spec.path.read_text(encoding="utf-8-sig")
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            found = [_line(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{spec.path} is neither a JSON array nor JSON lines: {error}") from None
    return [item if isinstance(item, dict) else {} for item in found]


def _line(number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
