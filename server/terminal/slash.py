"""What begins with a slash is for the terminal's chat, not for the model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from .answer import Answer
from .session import Session


class Leave(Exception):
    """The chat is over."""


@dataclass
class Chat:
    """What commands act on."""

    session: Session
    last: Answer
    facts: str  # of the model and where it runs


def _system(chat: Chat, text: str) -> str:
    """TEXT  what the model is told before all else; without TEXT: show it; 'none': nothing"""
    if text:
        chat.session.system = "" if text == "none" else text
    return f"system: {chat.session.system or '(none)'}"


def _setting(name: str) -> Callable[[Chat, str], str]:
    def change(chat: Chat, text: str) -> str:
        if text:
            chat.session.set(name, text)
        return f"{name}: {chat.session.sampling.get(name, 'the model’s own')}"

    change.__doc__ = f"NUMBER  {name.replace('_', ' ')}; without NUMBER: show it; 'default': the model's own"
    return change


def _clear(chat: Chat, text: str) -> str:
    """forget what was said; system and sampling stay"""
    chat.session.messages.clear()
    return "Nothing was said."


def _save(chat: Chat, text: str) -> str:
    """FILE  keep this chat"""
    path = _path(text)
    chat.session.save(path)
    return f"{len(chat.session.messages)} messages are in {path}."


def _load(chat: Chat, text: str) -> str:
    """FILE  go on with a kept chat"""
    path = _path(text)
    chat.session.load(path)
    return f"{len(chat.session.messages)} messages from {path}."


def _path(text: str) -> Path:
    if not text:
        raise ValueError("name a file")
    return Path(text)


def _stats(chat: Chat, text: str) -> str:
    """numbers of the last answer"""
    return f"{chat.facts}\n{chat.last.statistics()}"


def _help(chat: Chat, text: str) -> str:
    """this"""
    rows = [f"  /{name:<12} {command.__doc__}" for name, command in COMMANDS.items()]
    return "\n".join([*rows, *_KEYS])


def _exit(chat: Chat, text: str) -> str:
    """leave; Ctrl-D does too"""
    raise Leave


_KEYS = (
    '  """           begins and ends a message of several lines; so does \\ at a line\'s end',
    "  A message that begins with a slash needs a space in front of it.",
    "  Ctrl-C        stops an answer; what came of it stays",
)
COMMANDS: dict[str, Callable[[Chat, str], str]] = {
    "system": _system,
    "temperature": _setting("temperature"),
    "top_p": _setting("top_p"),
    "max_tokens": _setting("max_tokens"),
    "seed": _setting("seed"),
    "clear": _clear,
    "save": _save,
    "load": _load,
    "stats": _stats,
    "help": _help,
    "exit": _exit,
}
_OTHER_NAMES = {"?": "help", "quit": "exit", "bye": "exit", "q": "exit"}


def run_command(chat: Chat, line: str) -> str:
    """Do what ``line`` says; returns what to tell. Raises ``Leave``."""
    name, _, text = line.removeprefix("/").partition(" ")
    command = COMMANDS.get(_OTHER_NAMES.get(name, name))
    if command is None:
        return f"There is no /{name}; /help lists what there is."
    try:
        return command(chat, text.strip())
    except ValueError as error:
        return str(error)
    except OSError as error:
        return f"/{name} can't use {error.filename or text.strip()}: {error.strerror or error}. Name another file."
