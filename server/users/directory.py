"""Whose key is whose, while the server runs: kept current, and usage written down, by one thread of its own."""

from __future__ import annotations

import logging
import sqlite3
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from .allowance import Allowance
from .caller import Caller
from .keys import digest
from .store import UserError, UserStore
from .usage import UsageBook
from .user import OTHER, User

logger = logging.getLogger("bireme.server")

#: Seconds between two looks at the users' file; a crash loses no more usage than that.
INTERVAL = 1.0


@dataclass(frozen=True, slots=True)
class _Known:
    """What the keys mean; replaced as a whole, so a look-up needs no lock."""

    users: Mapping[bytes, User]  # by the digest of their key
    filed: bool  # a users' file was seen: from then on a key is asked for, whoever is in it


class Directory:
    """Looks keys up, and counts what each user uses.

    A key is found by its digest, so the time of a look-up says nothing of the keys that there are. With no key given
    and no users' file everybody may come in. A file that comes later is noticed; one that goes leaves the door shut.
    """

    def __init__(self, path: Path | None, keys: tuple[str, ...] = ()) -> None:
        self.book = UsageBook()
        self._path = path
        self._static = {digest(key): f"key:{number}" for number, key in enumerate(keys, 1)}
        self._known = _Known({}, False)
        self._allowances: dict[str, Allowance] = {}
        self._store: UserStore | None = None
        self._version: int | None = None
        self._trouble = ""  # said in the log, once
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def keyed(self) -> bool:
        """Whether a key is asked for."""
        return bool(self._static) or self._known.filed

    @property
    def names(self) -> list[str]:
        """The users of the file."""
        return [user.name for user in self._known.users.values()]

    def start(self) -> None:
        """Read the file, if it is there, and go on watching it. Raises ``UserError`` where it can't be used."""
        if self._path is None:
            return
        self._refresh()
        self._thread = threading.Thread(target=self._watch, name="users", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Write down what is left, and stop."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def find(self, key: str, address: str) -> Caller | None:
        """Who has this key; None for nobody. Called on the event loop only."""
        known = self._known
        if not self.keyed:
            return Caller(address=address, usage=self.book.of(OTHER))
        found = digest(key)
        user = known.users.get(found)
        if user is not None:
            return Caller(user.name, address, self.book.of(user.name), user, self._allowance(user))
        if found not in self._static:
            return None
        alone = len(self._static) == 1 and not known.users  # it opens the door and tells nobody apart
        return Caller("" if alone else self._static[found], address, self.book.of(OTHER))

    def _allowance(self, user: User) -> Allowance:
        allowance = self._allowances.get(user.name)
        if allowance is None:
            allowance = self._allowances[user.name] = Allowance(user)
        elif allowance.user != user:
            allowance.change(user)
        return allowance

    def _watch(self) -> None:
        while not self._stop.wait(INTERVAL):
            self._turn()
        self._turn()
        if self._store is not None:
            self._store.close()

    def _turn(self) -> None:
        """Read what changed and write what grew; trouble leaves both as they were, for the next turn."""
        try:
            self._refresh()
            self._write()
        except (UserError, sqlite3.Error) as error:
            if str(error) != self._trouble:
                logger.error("the users' file: %s; going on with what was read before", error)
            self._trouble = str(error)
        else:
            self._trouble = ""

    def _refresh(self) -> None:
        assert self._path is not None
        if self._store is None:
            if not self._path.is_file():
                return
            self._known = _Known(self._known.users, True)
            self._store = UserStore(self._path)
        version = self._store.version
        if version != self._version:
            users = {entry.digest: entry.user for entry in self._store.entries()}
            self._known = _Known(users, True)
            self._version = version

    def _write(self) -> None:
        if self._store is None:
            return
        growth = self.book.growth()
        if growth:
            self._store.add_usage(growth)
            self.book.wrote(growth)
