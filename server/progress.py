"""Progress on a terminal while a model is fetched or loaded; silent where standard error is none."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

if TYPE_CHECKING:
    from rich.progress import TaskID

#: A model that loads sooner shows no bar.
WAIT_BYTES = 200 * 1024 * 1024


class LoadBar:
    """One bar in bytes. ``update`` may be called as often as one likes."""

    def __init__(self, title: str = "loading", at_least: int = WAIT_BYTES) -> None:
        self._title = title
        self._at_least = at_least
        self._task: TaskID | None = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(binary_units=True),
            TransferSpeedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )

    def __enter__(self) -> LoadBar:
        return self

    def update(self, done: int, total: int) -> None:
        """Bytes done of bytes in all; the bar appears at the first call with enough to do."""
        if total < self._at_least:
            return
        if self._task is None:
            self._progress.start()
            self._task = self._progress.add_task(self._title, total=total)
        self._progress.update(self._task, completed=done, total=total)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()


def resolve_model(model: str) -> Path:
    """The model's path; a download shows its progress."""
    from ..models.hub import resolve

    with LoadBar(f"fetching {model}", at_least=0) as bar:
        return resolve(model, bar.update)
