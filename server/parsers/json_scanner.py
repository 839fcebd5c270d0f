"""Where a JSON value ends (RFC 8259), told character by character as it comes."""

from __future__ import annotations

import re
from enum import Enum

_SPACE = re.compile(r"[ \t\r\n]*")
_IN_STRING = re.compile(r'[^"\\\x00-\x1f]*')
_WORD = re.compile(r"[-+.0-9A-Za-z]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?|true|false|null")
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}
_MAX_WORD = 400  # characters of one number


class ScanState(Enum):
    OPEN = "open"  # more may come
    DONE = "done"  # the value is complete
    BROKEN = "broken"  # the next character can't stand here


class _Want(Enum):
    VALUE = "a value"
    VALUE_OR_END = "a value, or the array's end"
    KEY = "a key"
    KEY_OR_END = "a key, or the object's end"
    COLON = "a colon"
    NEXT = "a comma or a closing bracket"


class JsonScanner:
    """One JSON value. Characters that belong to it are handed back unaltered, except control characters inside
    strings, which JSON forbids and models write: they come back escaped."""

    def __init__(self) -> None:
        self.state = ScanState.OPEN
        self._stack: list[str] = []  # closing brackets wanted, innermost last
        self._want = _Want.VALUE
        self._in_string = False
        self._is_key = False
        self._escape = 0  # characters of an escape still to come
        self._word = ""  # a number or a name begun

    def feed(self, text: str, at: int) -> tuple[int, str]:
        """Read ``text`` from ``at``: where the value's part of it ends, and that part."""
        pieces: list[str] = []
        while at < len(text) and self.state is ScanState.OPEN:
            if self._in_string:
                at = self._string(text, at, pieces)
            elif self._word or text[at] not in '"{}[]:, \t\r\n':
                at = self._scalar(text, at, pieces)
            else:
                at = self._structure(text, at, pieces)
        return at, "".join(pieces)

    def finish(self) -> bool:
        """The text is over: whether the value is complete."""
        if self.state is ScanState.OPEN and self._word and not self._stack:
            self._end_word()
        return self.state is ScanState.DONE

    def _string(self, text: str, at: int, pieces: list[str]) -> int:
        if self._escape:
            return self._escaped(text, at, pieces)
        match = _IN_STRING.match(text, at)
        assert match is not None
        pieces.append(match[0])
        at = match.end()
        if at == len(text):
            return at
        character = text[at]
        if character < " ":
            pieces.append(_ESCAPES.get(character) or f"\\u{ord(character):04x}")
            return at + 1
        pieces.append(character)
        if character == "\\":
            self._escape = 1
        else:
            self._in_string = False
            if self._is_key:
                self._want = _Want.COLON
            else:
                self._end_value()
        return at + 1

    def _escaped(self, text: str, at: int, pieces: list[str]) -> int:
        character = text[at]
        allowed = '"\\/bfnrtu' if self._escape == 1 else "0123456789abcdefABCDEF"
        if character not in allowed:
            self.state = ScanState.BROKEN
            return at
        self._escape = 5 if self._escape == 1 and character == "u" else max(self._escape - 1, 0)
        if self._escape == 1:
            self._escape = 0
        pieces.append(character)
        return at + 1

    def _scalar(self, text: str, at: int, pieces: list[str]) -> int:
        match = _WORD.match(text, at)
        assert match is not None
        if not self._word and (not match[0] or self._want not in (_Want.VALUE, _Want.VALUE_OR_END)):
            self.state = ScanState.BROKEN
            return at
        self._word += match[0]
        if len(self._word) > _MAX_WORD:
            self.state = ScanState.BROKEN
            return at
        pieces.append(match[0])
        if match.end() < len(text):
            self._end_word()
        return match.end()

    def _end_word(self) -> None:
        if _SCALAR.fullmatch(self._word) is None:
            self.state = ScanState.BROKEN
            return
        self._word = ""
        self._end_value()

    def _structure(self, text: str, at: int, pieces: list[str]) -> int:
        character = text[at]
        if character in " \t\r\n":
            match = _SPACE.match(text, at)
            assert match is not None
            pieces.append(match[0])
            return match.end()
        if not self._step(character):
            self.state = ScanState.BROKEN
            return at
        pieces.append(character)
        return at + 1

    def _step(self, character: str) -> bool:
        """Take a structural character; False where it can't stand here."""
        want = self._want
        value = want in (_Want.VALUE, _Want.VALUE_OR_END)
        key = want in (_Want.KEY, _Want.KEY_OR_END)
        if character == '"' and (value or key):
            self._in_string, self._is_key = True, key
        elif character in "{[" and value:
            self._stack.append("}" if character == "{" else "]")
            self._want = _Want.KEY_OR_END if character == "{" else _Want.VALUE_OR_END
        elif character == ":" and want is _Want.COLON:
            self._want = _Want.VALUE
        elif character == "," and want is _Want.NEXT:
            self._want = _Want.KEY if self._stack[-1] == "}" else _Want.VALUE
        elif self._stack and character == self._stack[-1] and self._may_end():
            self._stack.pop()
            self._end_value()
        else:
            return False
        return True

    def _may_end(self) -> bool:
        return self._want in (_Want.NEXT, _Want.KEY_OR_END, _Want.VALUE_OR_END)

    def _end_value(self) -> None:
        self._want = _Want.NEXT
        if not self._stack:
            self.state = ScanState.DONE
