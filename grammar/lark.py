"""Pieces of grammars in llguidance's form of Lark, for those who put some together. Imports no library."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

#: Between JSON's own signs: one space, or one line break with its indentation. A model that pads for ever is a known
#: trap, so a run has an end.
WHITESPACE = r"( |\r?\n[ \t]{0,40})"
#: How JSON schemas are read: nothing that can't be kept to is passed over, but for oneOf, which is taken as anyOf.
JSON_OPTIONS: Mapping[str, Any] = {"whitespace_pattern": WHITESPACE, "lenient": False, "coerce_one_of": True}

#: Ids of those of some literals that are control tokens.
ControlIds = Callable[[str], int | None]

#: Terminals that the pieces below use; they go with every grammar made of them.
TERMINALS = "TEXT: /(.|\\n)*/\nSPACE: /[ \\n]{1,4}/\n"


def literal(text: str, marks: tuple[str, ...], control_id: ControlIds) -> str:
    """``text`` as a sequence of strings and, for those of ``marks`` that the model has control tokens for, tokens."""
    if not text:
        return ""
    known = [mark for mark in marks if mark in text and control_id(mark) is not None]
    pieces = re.split("(" + "|".join(re.escape(mark) for mark in known) + ")", text) if known else [text]
    written = (f"<[{control_id(piece)}]>" if piece in known else json.dumps(piece) for piece in pieces if piece)
    return " ".join(written)


def json_value(schema: Mapping[str, Any]) -> str:
    """A JSON value that ``schema`` allows."""
    return "%json " + json.dumps({**schema, "x-guidance": dict(JSON_OPTIONS)})


def until(name: str, mark: str, control_id: ControlIds) -> str:
    """Definition of a rule ``name``: any text up to and with ``mark``."""
    token = control_id(mark)
    if token is not None:
        return f"{name}: TEXT <[{token}]>\n"
    return f"{name}[lazy]: TEXT {json.dumps(mark)}\n"
