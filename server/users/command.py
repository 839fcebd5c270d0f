"""``bireme users ...``: who may use a server, and what they used. A running server notices changes by itself."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from ..commands.columns import columns
from ..commands.fail import fail
from .store import NO_USERS, DayUsage, Entry, UserError, UserStore, default_path
from .user import LIMITS, User

users = typer.Typer(
    name="users",
    help="Users of a server: keys, shares, limits, usage. A running server notices changes within a second or two.",
    no_args_is_help=True,
)

#: How the command line says that a limit goes.
NONE = "none"


def _limit_option(text: str) -> Any:
    return typer.Option(help=f"{text} A number, or '{NONE}'.", metavar="N")


Name = Annotated[str, typer.Argument(metavar="NAME", help="1 to 64 letters, digits and . _ @ -")]
Weight = Annotated[
    float | None, typer.Option(help="Share beside other users' (1). 3 gets three times the tokens of 1.")
]
Priority = Annotated[int | None, typer.Option(help="Of their requests, at best; lower goes first (0).")]
MaxConcurrent = Annotated[str | None, _limit_option("Requests at once.")]
TokensPerMinute = Annotated[str | None, _limit_option("Prompt tokens computed and tokens made, per minute.")]
RequestsPerMinute = Annotated[str | None, _limit_option("Requests per minute.")]
MaxContext = Annotated[str | None, _limit_option("Tokens of prompt and answer together.")]
UsersDb = Annotated[
    Path | None, typer.Option(help="The users' file. Default: in your data folder.", envvar="BIREME_USERS_DB")
]


@users.command("add")
def add(
    name: Name,
    weight: Weight = None,
    priority: Priority = None,
    max_concurrent: MaxConcurrent = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    max_context: MaxContext = None,
    users_db: UsersDb = None,
) -> None:
    """Add a user and print the key. It is shown this once: only its digest and last letters are kept."""
    given = _given(locals())
    with _store(users_db, create=True) as store:
        key = store.add(User(name, **given))
    _show_key(key, f"{name} was added to {store.path}.")


@users.command("set")
def change(
    name: Name,
    weight: Weight = None,
    priority: Priority = None,
    max_concurrent: MaxConcurrent = None,
    requests_per_minute: RequestsPerMinute = None,
    tokens_per_minute: TokensPerMinute = None,
    max_context: MaxContext = None,
    users_db: UsersDb = None,
) -> None:
    """Change what is given, leave the rest."""
    given = _given(locals())
    if not given:
        raise typer.BadParameter("nothing to change; give at least one option")
    with _store(users_db) as store:
        store.set(dataclasses.replace(store.get(name), **given))
        typer.echo(f"{name} was changed.")


@users.command("rotate")
def rotate(name: Name, users_db: UsersDb = None) -> None:
    """Give a user a new key and print it; the old one opens nothing any more."""
    with _store(users_db) as store:
        key = store.rotate(name)
    _show_key(key, f"{name} has a new key.")


@users.command("remove")
def remove(name: Name, users_db: UsersDb = None) -> None:
    """Remove a user. What they used stays on record."""
    with _store(users_db) as store:
        store.remove(name)
        typer.echo(f"{name} was removed.")


@users.command("list")
def listing(users_db: UsersDb = None) -> None:
    """The users and their limits."""
    with _store(users_db) as store:
        entries = store.entries()
    head = ("name", "key", "weight", "priority", *(one.replace("_", " ") for one in LIMITS), "since")
    _table(head, [_row(entry) for entry in entries])


@users.command("usage")
def usage(
    days: Annotated[int, typer.Option(help="So many days back, today (UTC) included.", min=1, max=100_000)] = 30,
    users_db: UsersDb = None,
) -> None:
    """Tokens and requests per day and user."""
    with _store(users_db) as store:
        rows = store.usage(days)
    head = ("day", "user", "prompt", "of it cached", "output", "requests", "rejected")
    _table(head, [_usage_row(row) for row in rows])


def _given(values: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, as the user's fields."""
    given = {name: values[name] for name in ("weight", "priority", *LIMITS) if values[name] is not None}
    return {name: _limit(name, value) if name in LIMITS else value for name, value in given.items()}


def _limit(name: str, text: str) -> int | None:
    if text.lower() == NONE:
        return None
    try:
        return int(text)
    except ValueError:
        option = "--" + name.replace("_", "-")
        raise typer.BadParameter(f"{text!r} is neither a whole number nor '{NONE}'", param_hint=option) from None


@contextlib.contextmanager
def _store(path: Path | None, *, create: bool = False) -> Iterator[UserStore]:
    """The users' file; what goes wrong with it is one line."""
    import sqlite3

    try:
        if path is not None and str(path) == NO_USERS:
            raise UserError("--users-db (BIREME_USERS_DB) is 'none', and a server told so knows no users; name a file")
        store = UserStore(path.expanduser() if path else default_path(), create=create)
        try:
            yield store
        finally:
            store.close()
    except (ValueError, sqlite3.Error) as error:
        fail(error)


def _show_key(key: str, said: str) -> None:
    """The key alone on standard output, so that it can be put into a file or a variable."""
    typer.echo(f"{said} The key, which is not shown again:", err=True)
    typer.echo(key)


def _row(entry: Entry) -> tuple[str, ...]:
    user = entry.user
    limits = (NONE if (value := getattr(user, name)) is None else f"{value:,}" for name in LIMITS)
    return (user.name, f"...{entry.hint}", f"{user.weight:g}", str(user.priority), *limits, entry.created)


def _usage_row(row: DayUsage) -> tuple[str, ...]:
    one = row.usage
    counts = (one.prompt, one.cached, one.output, one.requests, one.rejected)
    return (row.day, row.user, *(f"{count:,}" for count in counts))


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> None:
    """All but the first two columns are numbers."""
    typer.echo(columns(head, rows, right=range(2, len(head))))
