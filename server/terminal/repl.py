"""The chat itself: a question, an answer, and so on until Ctrl-D; or one question for one answer."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from .answer import Answer, receive
from .connection import Connection, ServerError
from .display import Display, MarkdownDisplay, printable
from .prompt import history, read_message
from .session import Session
from .slash import Chat, Leave, run_command

#: Said on standard error when the model had to stop.
CUT = "(cut off: the answer reached its length limit)"


def chat(
    session: Session,
    connection: Connection,
    console: Console,
    *,
    facts: str,
    reasoning: bool,
    history_file: Path | None,
    read: Callable[[], str] = read_message,
) -> None:
    """Until Ctrl-D or ``/exit``."""
    state = Chat(session, Answer(), facts)
    _note(console, f"{facts}. /help lists the commands, Ctrl-D leaves.")
    with history(history_file):
        while True:
            try:
                _turn(state, connection, console, read(), reasoning=reasoning)
            except KeyboardInterrupt:
                _note(console, "\n(Ctrl-D leaves)")
            except EOFError:
                console.print()
                return
            except Leave:
                return


def _turn(state: Chat, connection: Connection, console: Console, text: str, *, reasoning: bool) -> None:
    if text.startswith("/"):
        _note(console, run_command(state, text), style="")
    elif text.strip():
        _ask(state, connection, console, text.strip(), reasoning=reasoning)


def _ask(state: Chat, connection: Connection, console: Console, text: str, *, reasoning: bool) -> None:
    session = state.session
    session.say(text)
    try:
        answer = receive(connection.stream(session.body()), MarkdownDisplay(console, reasoning=reasoning))
    except ServerError as error:
        session.take_back()
        _note(console, str(error), style="red")
        return
    session.answered(answer.content, answer.reasoning)
    state.last = answer
    if answer.stopped:
        _note(console, "(stopped)")
    elif answer.finish == "length":
        _note(console, CUT)


def _note(console: Console, text: str, style: str = "dim") -> None:
    console.print(printable(text), style=style, markup=False, highlight=False)


def one_answer(session: Session, connection: Connection, text: str, display: Display) -> Answer:
    """Ask once. Raises ``ServerError``."""
    session.say(text)
    answer = receive(connection.stream(session.body()), display)
    if answer.finish == "length":
        print(CUT, file=sys.stderr)
    return answer
