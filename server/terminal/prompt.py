"""Reading what a person types: lines with a history that lasts, and messages of several lines."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

PROMPT, MORE = ">>> ", "... "
#: Around a message of several lines.
QUOTES = '"""'
HISTORY_LINES = 1000


def read_message(read: Callable[[str], str] = input) -> str:
    """One message. Raises ``EOFError`` (Ctrl-D) and ``KeyboardInterrupt``."""
    line = read(PROMPT)
    if line.lstrip().startswith(QUOTES):
        return _quoted(line.lstrip()[len(QUOTES) :], read)
    lines = [line]
    while lines[-1].endswith("\\"):
        lines[-1] = lines[-1][:-1]
        lines.append(read(MORE))
    return "\n".join(lines)


def _quoted(first: str, read: Callable[[str], str]) -> str:
    """Up to the next three quotes, wherever they stand."""
    lines = [first]
    while QUOTES not in lines[-1]:
        lines.append(read(MORE))
    lines[-1] = lines[-1][: lines[-1].index(QUOTES)]
    return "\n".join(lines).strip("\n")


@contextlib.contextmanager
def history(path: Path | None) -> Iterator[None]:
    """Arrow keys and editing, and what was typed before out of ``path``; None: kept nowhere."""
    try:
        import readline
    except ImportError:  # a Python built without it: lines can still be typed
        yield
        return
    if path is not None:
        with contextlib.suppress(OSError):  # none yet, or not ours to read
            readline.read_history_file(path)
    readline.set_history_length(HISTORY_LINES)
    try:
        yield
    finally:
        if path is not None:
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch(mode=0o600)  # what people type is nobody else's business
                readline.write_history_file(path)
            except OSError as error:
                print(f"bireme: the history could not be kept in {path}: {error.strerror}", file=sys.stderr)
