"""Bireme's own folder of downloads and made files, and the care that nothing half-made is ever used from it."""

from __future__ import annotations

import fcntl
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def cache_folder() -> Path:
    """``$BIREME_CACHE``, else ``bireme`` in the platform's folder for caches. Not created here."""
    own = os.environ.get("BIREME_CACHE")
    if own:
        return Path(own).expanduser()
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches" / "bireme"
    xdg = os.environ.get("XDG_CACHE_HOME")
    return (Path(xdg) if xdg else Path.home() / ".cache") / "bireme"


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Hold the one lock for making ``target``; a second process waits. The lock ends with its process."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target.with_name(f".{target.name}.lock"), "w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic(target: Path) -> Iterator[Path]:
    """A path to write to, which becomes ``target`` only if the block ends well; otherwise it is removed."""
    part = target.with_name(f".{target.name}.part-{os.getpid()}")
    try:
        yield part
        with open(part, "rb") as handle:
            os.fsync(handle.fileno())
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
