"""Requests out of files: conversations as ShareGPT has them, prompts as JSON lines, traces with times.

An entry that can't be used is left out, and what is drawn says how many were.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from typing import Any

from .ask import Prompt, Session
from .dataset import USUAL_OUTPUT, DataSpec, Drawn, make_prompt
from .sources import Content, Source

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


def _left_out(spec: DataSpec, entries: int, usable: int) -> list[str]:
    """What a reader must know where not all entries can be used."""
    count = entries - usable
    return [f"{spec.path}: {count} of {entries} entries are left out: {_WANTED[spec.kind]}"] if count else []


def _sharegpt(spec: DataSpec, source: Source, entry: Entry) -> Session | None:
    """The first question and answer of a conversation; the answer's length is what is asked for. Bounds as in vLLM."""
    turns = entry.get("conversations") or entry.get("conversation") or []
    texts = [str(t.get("value") or t.get("content") or "") for t in turns if isinstance(t, dict)]
    if len(texts) < 2:
        return None
    length, answer = source.count(texts[0]), spec.output_len or source.count(texts[1])
    if not (4 <= length <= 1024 and 4 <= answer and length + answer <= 2048):
        return None
    return Session((make_prompt(texts[0], answer, spec.chat),))


def _jsonl(spec: DataSpec, source: Source, entry: Entry) -> Session | None:
    """``prompt`` (text or ids) or ``messages``, and ``max_tokens`` or ``output_len``."""
    length = spec.output_len or _number(spec, entry, "max_tokens", "output_len") or USUAL_OUTPUT
    messages, prompt = entry.get("messages"), entry.get("prompt")
    if isinstance(messages, list) and messages and all(isinstance(message, dict) for message in messages):
        return Session((Prompt(tuple(messages), length),))
    if isinstance(prompt, list) and prompt and all(isinstance(token, int) for token in prompt):
        return Session((Prompt(tuple(prompt), length),))
    return Session((make_prompt(prompt, length, spec.chat),)) if isinstance(prompt, str) and prompt else None


def _trace(spec: DataSpec, source: Source, entries: list[Entry], count: int) -> Drawn:
    """``timestamp`` (ms), ``input_length``, ``output_length``; ``hash_ids`` where prompts share blocks."""
    times = [(_number(spec, entry, "timestamp"), entry) for entry in entries]
    timed = [(at, entry) for at, entry in times if at is not None]
    if not timed:
        raise ValueError(f"{spec.path} holds no usable request: {_WANTED['trace']}")
    notes = tuple(_left_out(spec, len(entries), len(timed)))
    timed = sorted(timed, key=lambda pair: pair[0])[:count]
    first = timed[0][0]
    sessions = [Session((_traced(spec, source, entry, index),)) for index, (_, entry) in enumerate(timed)]
    return Drawn(sessions, [(at - first) / 1000 for at, _ in timed], notes)


def _traced(spec: DataSpec, source: Source, entry: Entry, index: int) -> Prompt:
    length, answer = _number(spec, entry, "input_length"), spec.output_len or _number(spec, entry, "output_length")
    if not length or not answer:
        raise ValueError(f"{spec.path}: the entry at {entry['timestamp']} ms lacks a length; {_WANTED['trace']}")
    text: Content = source.empty()
    for block in entry.get("hash_ids") or ():
        size = min(_TRACE_BLOCK, length)
        if size:
            text += source.draw(random.Random(f"{spec.seed} block {block}"), size)
        length -= size
    if length > 0:
        text += source.draw(random.Random(f"{spec.seed} request {index}"), length)
    return make_prompt(text, answer, spec.chat)


def _number(spec: DataSpec, entry: Entry, *names: str) -> int | None:
    """The first of ``names`` that ``entry`` has, as a whole number."""
    for name in names:
        value = entry.get(name)
        if value is not None:
            if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
                raise ValueError(f"{spec.path}: {name} is {value!r}; wanted is a number of 0 or more")
            return int(value)
    return None


def _entries(spec: DataSpec) -> list[Entry]:
    """The entries of a JSON array, or of JSON lines; one that is no object has no keys."""
    assert spec.path is not None
    try:
        text = spec.path.read_text(encoding="utf-8")
        if text.lstrip().startswith("["):
            found = json.loads(text)
        else:
            found = [_line(number, line) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    except (OSError, ValueError) as error:
        raise ValueError(f"{spec.path} is neither a JSON array nor JSON lines: {error}") from None
    return [item if isinstance(item, dict) else {} for item in found]


def _line(number: int, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise ValueError(f"line {number}: {error}") from None
