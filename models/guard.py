"""The guard that tells a template's own control tokens from the same words in a message; see ``template.py``."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import jinja2
from jinja2 import nodes

from .jinja import TemplateEnvironment


def unused_character(value: Any) -> str:
    """A private character that stands nowhere in ``value``."""
    text = repr(value)
    return next(chr(code) for code in range(0xF0000, 0xFFFFD) if chr(code) not in text and f"U{code:08x}" not in text)


def cut_like(parts: Sequence[Mapping[str, Any]], guarded: str, guard: str) -> list[dict[str, Any]]:
    """``guarded``, the parts' texts joined, as parts again: a token may begin in one part and end in the next."""
    cut, start = [], 0
    for part in parts:
        end, wanted = start, len(part["text"])
        while wanted > 0:
            wanted -= guarded[end] != guard
            end += 1
        while guarded[end : end + 1] == guard:
            end += 1
        cut.append({"type": "text", "text": guarded[start:end]})
        start = end
    return cut


def guarded_places(source: str, environment: TemplateEnvironment, literals: Sequence[str]) -> re.Pattern[str] | None:
    """Where the guard goes: after the first character of each place where a control token might begin.

    The first two characters of a control token are enough to tell such a place, which guards a message even against
    parts that form a token only once a template has joined them. Where the template's own strings hold these two
    outside a control token ("</" of "</think>", with a token "</s>"), it may look for them in a message; only whole
    tokens, and beginnings of one at a string's end, are guarded there. A string's last character, and its first two,
    may be a token's beginning or its rest as well.
    """
    literals = sorted((literal for literal in literals if len(literal) > 1), key=len, reverse=True)
    own = _string_constants(source, environment, literals)
    free = {start for start in (literal[:2] for literal in literals) if not any(start in text for text in own)}
    patterns = [re.escape(start) for start in sorted(free)]
    for literal in literals:
        if literal[:2] not in free:
            ends = "|".join(re.escape(literal[:n]) for n in range(len(literal) - 1, 1, -1))
            patterns.append(re.escape(literal) + (rf"|(?:{ends})(?=\s*\Z)" if ends else ""))
    firsts = {literal[0] for literal in literals}
    patterns += [rf"{re.escape(first)}(?=\s*\Z)" for first in sorted(firsts) if not first.isalnum()]
    seconds = {literal[1:3] for literal in literals if not literal[1].isalnum()}
    patterns += [rf"\A{re.escape(second)}" for second in sorted(seconds)]
    return re.compile("|".join(patterns)) if patterns else None


def _string_constants(source: str, environment: TemplateEnvironment, literals: Sequence[str]) -> list[str]:
    """The template's strings, control tokens taken out."""
    try:
        tree = environment.parse(source)
    except (jinja2.TemplateError, RecursionError):
        return []
    known = re.compile("|".join(map(re.escape, literals)) or r"(?!)")
    constants = (node.value for node in tree.find_all(nodes.Const) if isinstance(node.value, str))
    return [known.sub("\n", text) for text in constants]
