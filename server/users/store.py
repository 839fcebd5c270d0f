"""The users' file: an SQLite database of users, digests of their keys, and usage by day."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

from .keys import digest, hint, new_key
from .usage import COUNTS, Usage
from .user import FIELDS, User

#: As a users' file: none, whatever lies in the data folder.
NO_USERS = "none"
_VERSION = 1
_SCHEMA = """
CREATE TABLE IF NOT EXISTS users (
    name TEXT PRIMARY KEY, digest BLOB NOT NULL UNIQUE, hint TEXT NOT NULL, created TEXT NOT NULL,
    weight REAL NOT NULL, priority INTEGER NOT NULL,
    max_concurrent INTEGER, requests_per_minute INTEGER, tokens_per_minute INTEGER, max_context INTEGER
);
CREATE TABLE IF NOT EXISTS usage (
    day TEXT NOT NULL, user TEXT NOT NULL,
    prompt INTEGER NOT NULL, cached INTEGER NOT NULL, output INTEGER NOT NULL,
    requests INTEGER NOT NULL, rejected INTEGER NOT NULL,
    PRIMARY KEY (day, user)
) WITHOUT ROWID;
"""
_BUSY_MS = 5000  # that one process waits for another's write


class UserError(ValueError):
    """The users' file can't be used, or a command doesn't fit what is in it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One user as kept."""

    user: User
    digest: bytes
    hint: str  # the key's last letters
    created: str  # a day, UTC


@dataclass(frozen=True, slots=True)
class DayUsage:
    day: str  # UTC
    user: str
    usage: Usage


def default_path() -> Path:
    """In the user's data folder."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Application Support"
    else:
        base = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
    return base / "bireme" / "users.db"


class UserStore:
    """One connection; used by one thread at a time. Several processes may have the file open: readers never wait for a
    writer (WAL), and writers wait for each other."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Raises ``UserError`` where there is no such file (unless to ``create`` it), or it is no users' file."""
        self.path = path
        if create:
            _create(path)
        elif not path.is_file():
            raise UserError(f"there is no users' file {path}; 'bireme users add NAME' makes one")
        try:
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.execute(f"PRAGMA busy_timeout = {_BUSY_MS}")
            self._prepare()
        except sqlite3.Error as error:
            raise UserError(f"{path} can't be used as a users' file: {error}") from None

    def close(self) -> None:
        self._db.close()

    @property
    def version(self) -> int:
        """A number that is another one after each change by another connection."""
        return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    def entries(self) -> list[Entry]:
        """All users, by name. Raises ``UserError`` naming one whose values are out of range."""
        columns = ", ".join(("digest", "hint", "created", *FIELDS))
        found = []
        for key_digest, ending, created, *values in self._db.execute(f"SELECT {columns} FROM users ORDER BY name"):
            try:
                user = User(**dict(zip(FIELDS, values, strict=True)))
            except (ValueError, TypeError) as error:
                raise UserError(f"{self.path}: user {values[0]!r}: {error}") from None
            found.append(Entry(user, bytes(key_digest), ending, created))
        return found

    def add(self, user: User) -> str:
        """Returns the new user's key, which is not kept."""
        key = new_key()
        values = (digest(key), hint(key), _today().isoformat(), *(getattr(user, name) for name in FIELDS))
        columns = ", ".join(("digest", "hint", "created", *FIELDS))
        try:
            self._db.execute(f"INSERT INTO users ({columns}) VALUES ({', '.join('?' * len(values))})", values)
        except sqlite3.IntegrityError:
            raise UserError(f"there is a user {user.name!r} already; 'bireme users set' changes one") from None
        return key

    def get(self, name: str) -> User:
        for entry in self.entries():
            if entry.user.name == name:
                return entry.user
        raise self._unknown(name)

    def set(self, user: User) -> None:
        """Replace the values of the user with this name."""
        names = FIELDS[1:]
        values = [getattr(user, name) for name in names]
        self._change(f"UPDATE users SET {', '.join(f'{name} = ?' for name in names)} WHERE name = ?", values, user.name)

    def rotate(self, name: str) -> str:
        """A new key; the old one opens nothing any more."""
        key = new_key()
        self._change("UPDATE users SET digest = ?, hint = ? WHERE name = ?", (digest(key), hint(key)), name)
        return key

    def remove(self, name: str) -> None:
        """The user's key opens nothing any more; past usage stays."""
        self._change("DELETE FROM users WHERE name = ?", (), name)

    def add_usage(self, growth: Sequence[tuple[str, Usage]]) -> None:
        """Count these up, today, all or none."""
        day = _today().isoformat()
        rows = [(day, name, *(getattr(more, one) for one in COUNTS)) for name, more in growth]
        sums = ", ".join(f"{one} = {one} + excluded.{one}" for one in COUNTS)
        with self._transaction():
            self._db.executemany(
                f"INSERT INTO usage (day, user, {', '.join(COUNTS)}) VALUES (?, ?, {', '.join('?' * len(COUNTS))}) "
                f"ON CONFLICT (day, user) DO UPDATE SET {sums}",
                rows,
            )

    def usage(self, days: int) -> list[DayUsage]:
        """Of the last ``days`` days, today included; days and users in order."""
        first = (_today() - timedelta(days=days - 1)).isoformat()
        query = f"SELECT day, user, {', '.join(COUNTS)} FROM usage WHERE day >= ? ORDER BY day, user"
        return [DayUsage(day, name, Usage(*counts)) for day, name, *counts in self._db.execute(query, (first,))]

    def _prepare(self) -> None:
        """Make the tables of a new file. While one process does, SQLite lets others fail at once, whatever their
        ``busy_timeout``: they try again."""
        until = time.monotonic() + _BUSY_MS / 1000
        while True:
            try:
                return self._prepare_once()
            except sqlite3.OperationalError:
                if time.monotonic() > until:
                    raise
            time.sleep(0.01)

    def _prepare_once(self) -> None:
        if not self.path.stat().st_size:
            self._db.execute("PRAGMA journal_mode = WAL")
        if self._made_by() == 0:
            with self._transaction():  # of those who come at once, one makes the tables
                if self._made_by() == 0:
                    self._make_tables()
        if self._made_by() > _VERSION:
            raise UserError(
                f"{self.path} was made by a newer Bireme (version {self._made_by()} of the file; this one reads "
                f"{_VERSION}); update this one, or name another file with --users-db"
            )

    def _made_by(self) -> int:
        """The version of the file's form; 0: it has none yet, or is something else."""
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    def _make_tables(self) -> None:
        if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UserError(f"{self.path} is a database of something else")
        for statement in filter(str.strip, _SCHEMA.split(";")):
            self._db.execute(statement)
        self._db.execute(f"PRAGMA user_version = {_VERSION}")

    def _change(self, statement: str, values: Sequence[Any], name: str) -> None:
        if not self._db.execute(statement, (*values, name)).rowcount:
            raise self._unknown(name)

    def _unknown(self, name: str) -> UserError:
        known = ", ".join(entry.user.name for entry in self.entries()) or "none"
        return UserError(f"there is no user {name!r}; there are: {known}")

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._db.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            self._db.execute("ROLLBACK")
            raise
        self._db.execute("COMMIT")


def _create(path: Path) -> None:
    """An empty file that its owner alone can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    except OSError as error:
        raise UserError(f"{path} can't be made: {error.strerror}") from None


def _today() -> date:
    return datetime.now(UTC).date()
