"""Grammar libraries behind one face, to be measured beside each other."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np

from ..core.grammar import GrammarError, GrammarSpec, mask_width
from ..grammar.vocabulary import TokenTable


class Follower(Protocol):
    """A place in a compiled schema."""

    def fill(self) -> None:
        """Make the next token's mask."""
        ...

    def accept(self, token: int) -> bool: ...

    def whole(self) -> bool:
        """Whether the text may end here."""
        ...


class Library(Protocol):
    def start(self, schema: str) -> Follower:
        """Compile a schema. Raises ``GrammarError``."""
        ...


class Llguidance:
    """As the engine uses it."""

    def __init__(self, table: TokenTable) -> None:
        from ..grammar.library import open_tokens

        self._tokens = open_tokens(table)

    def start(self, schema: str) -> Follower:
        from ..grammar.library import LibraryGrammar, grammar_text

        text = grammar_text(GrammarSpec("json_schema", schema))
        return _Matched(LibraryGrammar(self._tokens, text).matcher(), self._tokens.vocab_size)


class _Matched:
    def __init__(self, matcher: Any, vocab_size: int) -> None:
        self._matcher = matcher
        self._mask = np.zeros(mask_width(vocab_size), np.int32)

    def fill(self) -> None:
        if not self._matcher.complete:
            self._matcher.fill(self._mask)

    def accept(self, token: int) -> bool:
        try:
            self._matcher.accept(token)
        except GrammarError:
            return False
        return True

    def whole(self) -> bool:
        return bool(self._matcher.accepting)


class Xgrammar:
    """With its defaults, and every order of whitespace; one thread, nothing kept between schemas."""

    def __init__(self, table: TokenTable) -> None:
        import xgrammar

        self._library = xgrammar
        self._end = table.ends[0]
        info = xgrammar.TokenizerInfo(
            table.tokens, xgrammar.VocabType.RAW, vocab_size=len(table.tokens), stop_token_ids=table.ends
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self._mask = xgrammar.allocate_token_bitmask(1, len(table.tokens))

    def start(self, schema: str) -> Follower:
        try:
            compiled = self._compiler.compile_json_schema(schema, any_whitespace=True, strict_mode=False)
        except Exception as error:
            raise GrammarError(str(error)) from None
        follower = _XMatched(self._library.GrammarMatcher(compiled), self._mask, self._end)
        follower.fill()
        return follower


class _XMatched:
    def __init__(self, matcher: Any, mask: Any, end: int) -> None:
        self._matcher, self._mask, self._end = matcher, mask, end

    def fill(self) -> None:
        self._matcher.fill_next_token_bitmask(self._mask)

    def accept(self, token: int) -> bool:
        return bool(self._matcher.accept_token(token))

    def whole(self) -> bool:
        return bool(self._matcher.accept_token(self._end))


LIBRARIES: dict[str, Any] = {"llguidance": Llguidance, "xgrammar": Xgrammar}
