"""A file mapped into memory, read-only, whose every access is checked against its size."""

from __future__ import annotations

import contextlib
import mmap
import os
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .weight import CheckpointError


class MappedFile:
    """The bytes of ``path``. Arrays made from it are read-only views; they keep the mapping alive."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            with open(path, "rb") as file:
                self.size = os.fstat(file.fileno()).st_size
                self._map = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if self.size else None
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{path}: can't be opened: {error}") from error

    @property
    def buffer(self) -> mmap.mmap | bytes:
        """The whole file, for ``struct`` and slicing."""
        return b"" if self._map is None else self._map

    def array(self, offset: int, count: int, dtype: DTypeLike, what: str) -> NDArray[Any]:
        """``count`` items of ``dtype`` from byte ``offset`` on; ``what`` names them in errors."""
        kind = np.dtype(dtype)
        stop = offset + count * kind.itemsize
        if offset < 0 or count < 0 or stop > self.size:
            raise CheckpointError(
                f"{self.path}: {what} lies outside the file: it takes bytes {offset} to {stop}, "
                f"the file has {self.size}"
            )
        if count == 0:
            return np.empty(0, kind)
        return np.frombuffer(self.buffer, kind, count, offset)

    def advise_sequential(self) -> None:
        """Tell the system that the file will soon be read from end to end."""
        self._advise("MADV_SEQUENTIAL", "MADV_WILLNEED")

    def advise_done(self) -> None:
        """Tell the system that its cached pages of this mapping may go (another access reads them again)."""
        self._advise("MADV_NORMAL", "MADV_DONTNEED")

    def _advise(self, *names: str) -> None:
        for name in names:
            option = getattr(mmap, name, None)  # not on every system
            if self._map is not None and option is not None:
                with contextlib.suppress(OSError, ValueError):
                    self._map.madvise(option)

    def close(self) -> None:
        """Unmap now, or, while arrays still look at the file, when the last of them goes."""
        if self._map is not None:
            with contextlib.suppress(BufferError):
                self._map.close()
        self._map = None
