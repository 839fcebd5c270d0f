"""How an answer looks: plain text for pipes, live Markdown on a terminal."""

from __future__ import annotations

import re
import sys
from types import TracebackType
from typing import TextIO

from rich.console import Console, ConsoleOptions, RenderResult
from rich.live import Live
from rich.markdown import Markdown
from rich.segment import Segment
from rich.text import Text

_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")
#: Characters that command a terminal instead of being shown: C0 and C1 without line breaks and tabs.
_COMMANDS = {code: None for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}
#: Lines of the terminal that the part still growing leaves free.
_MARGIN = 2


def printable(text: str) -> str:
    """``text`` without what would command the terminal: a model may say anything, and so may a server."""
    return text.translate(_COMMANDS)


class Display:
    """Takes pieces of one answer, inside a ``with`` block. This one shows nothing."""

    def __enter__(self) -> Display:
        return self

    def add(self, content: str, reasoning: str) -> None:
        """The next piece."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """The answer is over, whole or not."""


class PlainDisplay(Display):
    """The content alone, as it is; a line break at the end if it has none."""

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self._last = "\n"

    def add(self, content: str, reasoning: str) -> None:
        if content:
            self._out.write(content)
            self._out.flush()
            self._last = content[-1]

    def __exit__(self, *error: object) -> None:
        if self._last != "\n":
            self._out.write("\n")
            self._out.flush()


class MarkdownDisplay(Display):
    """Live: the block that still grows is drawn anew with each piece, those before it are printed once and stay.

    Reasoning is dim text in front of the answer.
    """

    def __init__(self, console: Console, *, reasoning: bool = True) -> None:
        self._console = console
        self._show_reasoning = reasoning
        self._thinking = False
        self._text = ""  # what is not printed for good yet
        self._started = False  # whether something was
        self._live = Live(
            console=console,
            get_renderable=self._growing,
            transient=True,
            refresh_per_second=12,
            vertical_overflow="crop",
        )

    def __enter__(self) -> MarkdownDisplay:
        self._live.start()
        return self

    def add(self, content: str, reasoning: str) -> None:
        if reasoning and self._show_reasoning:
            self._switch(thinking=True)
            self._text += printable(reasoning)
        if content:
            self._switch(thinking=False)
            self._text += printable(content)
        done, rest = split_blocks(self._text)
        if done:
            self._text = rest
            self._print(done)

    def __exit__(self, *error: object) -> None:
        self._flush()
        self._live.stop()

    def _switch(self, *, thinking: bool) -> None:
        if thinking is not self._thinking:
            self._flush()
            self._thinking = thinking

    def _flush(self) -> None:
        text, self._text = self._text, ""
        if text.strip():
            self._print(text)

    def _print(self, text: str) -> None:
        if not text.strip():
            return
        self._live.refresh()  # what is printed now must not be drawn below once more
        if self._started:
            self._console.print()
        self._started = True
        self._console.print(self._drawn(text.strip("\n")))

    def _drawn(self, text: str) -> Markdown | Text:
        return Text(text, style="dim italic") if self._thinking else Markdown(text, hyperlinks=False)

    def _growing(self) -> _Tail | str:
        if not self._text.strip():
            return ""
        return _Tail(self._drawn(self._text.strip("\n")), gap=self._started)


class _Tail:
    """The last lines of what is drawn, as many as the terminal has room for."""

    def __init__(self, drawn: Markdown | Text, *, gap: bool) -> None:
        self._drawn = drawn
        self._gap = gap

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = console.render_lines(self._drawn, options.update(height=None), pad=False)
        if self._gap:
            lines.insert(0, [])
        for line in lines[-max(1, console.height - _MARGIN) :]:
            yield from line
            yield Segment.line()


def split_blocks(text: str) -> tuple[str, str]:
    """Markdown that will not change any more, and the rest: cut at the last blank line outside of fenced code that is
    followed by a line which isn't indented, for such a line may still belong to a list."""
    cut, fence, position, blank = 0, "", 0, False
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if blank and not fence and line.strip() and not line[0].isspace():
            cut = position
        if found and not fence:
            fence = found[1]
        elif found and found[1].startswith(fence) and not line[found.end() :].strip():
            fence = ""
        blank = not line.strip() and line.endswith("\n")
        position += len(line)
    return text[:cut], text[cut:]
