"""The one place that knows llguidance (https://github.com/guidance-ai/llguidance).

Every way in which it fails ends in a ``GrammarError``: a matcher that failed allows end tokens and nothing else, which
must never be taken for an answer.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.gbnf_to_lark import any_to_lark

from ..core.grammar import GrammarError, GrammarSpec, Mask, mask_width
from .lark import JSON_OPTIONS
from .vocabulary import TokenTable

#: Characters of a reason that are passed on.
_MAX_REASON = 400

Encode = Callable[[bytes], list[int]]
#: A vocabulary in the library's form.
Tokens = LLTokenizer


def limits() -> LLParserLimits:
    """What following a grammar may cost. The library's own limits, wider for schemas of a thousand properties."""
    return LLParserLimits(max_items_in_row=20_000, step_max_items=100_000, verbose_errors=False)


def open_tokens(table: TokenTable, encode: Encode | None = None) -> Tokens:
    """The library's form of a vocabulary. Takes 0.1 s for 50,000 tokens and holds the GIL: a thing for the start.

    ``encode`` writes text as the model would, so that a text the grammar leaves no choice about comes in the usual
    tokens; without it, the longest tokens are taken.
    """
    source = _Source(table, encode)
    tokens = LLTokenizer(source, n_vocab=len(table.tokens), eos_token=table.ends or [_no_end(table)])  # type: ignore[arg-type]
    source.greedy = tokens.greedy_tokenize
    return tokens


class _Source:
    """A vocabulary in the shape that ``LLTokenizer`` reads: attributes, and a call that encodes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, table: TokenTable, encode: Encode | None) -> None:
        self._table = table
        self._encode = encode
        self.greedy: Callable[[str], list[int]] = lambda text: []
        self.eos_token_id = table.ends[0] if table.ends else _no_end(table)
        self.special_token_ids = table.control
        self.tokens = list(table.tokens)
        for token in table.control:
            self.tokens[token] = b"\xff" + self.tokens[token]  # the library's mark of what is no text

    def __call__(self, text: str | bytes) -> list[int]:
        data = text.encode() if isinstance(text, str) else bytes(text)
        ids = self._encode(data) if self._encode is not None else []
        if b"".join(self._table.tokens[i] for i in ids) == data:
            return ids
        return self.greedy(data.decode("utf-8", "replace"))


def _no_end(table: TokenTable) -> int:
    """A model without end tokens still needs a number here: some token that is no text, or the last."""
    return table.control[0] if table.control else len(table.tokens) - 1


def grammar_text(spec: GrammarSpec) -> str:
    """``spec`` as the library reads it. Raises ``GrammarError``; what is left to find comes with ``compile_text``."""
    try:
        text = _WRITERS[spec.kind](spec.text)
        return _composed(text, spec) if spec.before or spec.instead else text
    except MemoryError:
        raise
    except Exception as error:  # of the converter's own making: an IndexError at an unclosed bracket, say
        raise GrammarError(_reason(str(error) or type(error).__name__)) from None


def _composed(text: str, spec: GrammarSpec) -> str:
    """``text`` with what may stand before it or in its place."""
    inner = json.loads(text)["grammars"] if text.startswith("{") else [{"lark_grammar": text}]
    inner[0]["name"] = "answer"
    others = [{"name": "instead", "lark_grammar": spec.instead}] if spec.instead else []
    body = "(@answer | @instead)" if spec.instead else "@answer"
    whole = f"start: before {body}\n{spec.before}" if spec.before else f"start: {body}\n"
    return json.dumps({"grammars": [{"name": "whole", "lark_grammar": whole}, *inner, *others]})


def _schema(text: str) -> str:
    overrides: Any = dict(JSON_OPTIONS)
    return LLMatcher.grammar_from_json_schema(text, overrides=overrides)


def _choice(text: str) -> str:
    try:
        choices = json.loads(text)
    except ValueError:
        choices = None
    if not isinstance(choices, list) or not all(isinstance(one, str) for one in choices):
        raise ValueError('choices are a list of strings, written as JSON: ["yes", "no"]')
    if not choices:
        raise ValueError("there are none to choose from")
    return LLMatcher.grammar_from_lark("start: " + " | ".join(json.dumps(one) for one in choices))


_WRITERS: dict[str, Callable[[str], str]] = {
    "json_schema": _schema,
    "regex": LLMatcher.grammar_from_regex,
    "choice": _choice,
    "grammar": lambda text: LLMatcher.grammar_from_lark(any_to_lark(text)),
}


class LibraryGrammar:
    """A ``Grammar``: a matcher at the start, to be copied, and its first mask."""

    def __init__(self, tokens: Tokens, text: str) -> None:
        """Raises ``GrammarError`` with the library's reason. Releases the GIL for most of its time."""
        self._start = LLMatcher(tokens, text, log_level=0, limits=limits())
        _check(self._start)
        self.first_mask: Mask = np.zeros(mask_width(tokens.vocab_size), np.int32)
        self.matcher().fill(self.first_mask)

    def matcher(self) -> LibraryMatcher:
        return LibraryMatcher(self._start.deep_copy())


class LibraryMatcher:
    """A ``Matcher``."""

    __slots__ = ("_inner",)

    def __init__(self, inner: LLMatcher) -> None:
        self._inner = inner

    @property
    def accepting(self) -> bool:
        return self._inner.is_accepting() and not self._inner.is_error()

    @property
    def complete(self) -> bool:
        return self._inner.is_stopped() and not self._inner.is_error()

    def accept(self, token: int) -> None:
        if not self._inner.consume_token(token):
            _check(self._inner)
            raise GrammarError(f"token {token} does not follow the grammar")

    def fill(self, mask: Mask) -> None:
        self._inner.unsafe_compute_mask_ptr(mask.ctypes.data, mask.nbytes)
        _check(self._inner)


def _check(matcher: LLMatcher) -> None:
    if matcher.is_error():
        raise GrammarError(_reason(matcher.get_error()))


def _reason(text: str) -> str:
    """The library's reason without its state, on one line."""
    text = " ".join(text.partition("\n<state>")[0].replace("<non-verbose/>", "").split())
    if text == "NoExtensionBias":
        return "nothing at all matches it"
    return text if len(text) <= _MAX_REASON else text[:_MAX_REASON] + " ..."
