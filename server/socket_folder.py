"""The private folder that holds the socket between the HTTP process and its engine."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
import time
from pathlib import Path

PREFIX = "bireme-socket-"
_LOCK = "lock"
#: A folder younger than this may not be locked yet by the server that just made it.
YOUNG_S = 10.0


class SocketFolder:
    """A new folder that nobody else may enter (mode 0700), locked for as long as its server lives."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.address = f"ipc://{self.path}/e"
        self._lock = os.open(self.path / _LOCK, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)

    def remove(self) -> None:
        """Safe to call twice."""
        if self._lock >= 0:
            shutil.rmtree(self.path, ignore_errors=True)
            os.close(self._lock)
            self._lock = -1


def remove_stale() -> None:
    """Take away this user's folders whose server is gone: one killed in its first moments leaves its folder behind."""
    for path in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another server may be cleaning too
            about = path.lstat()
            if about.st_uid == os.getuid() and time.time() - about.st_mtime > YOUNG_S and _unlocked(path / _LOCK):
                shutil.rmtree(path)


def _unlocked(lock: Path) -> bool:
    """Whether no server holds the lock; true also where it was never made."""
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    else:
        return True
    finally:
        os.close(descriptor)
