"""What is seen while a benchmark runs: a live line, and text above it."""

from __future__ import annotations


class Progress:
    """A live line where standard error is a terminal; nothing where it is not."""

    def __init__(self) -> None:
        from rich.console import Console
        from rich.status import Status

        self._console = Console(stderr=True)
        self._status = Status("starting", console=self._console) if self._console.is_terminal else None

    def __enter__(self) -> Progress:
        if self._status:
            self._status.start()
        return self

    def __exit__(self, *error: object) -> None:
        if self._status:
            self._status.stop()

    def show(self, what: str, done: int, total: int) -> None:
        if self._status:
            self._status.update(f"{what}: {done} of {total} requests")

    def say(self, text: str) -> None:
        """Print ``text`` where the live line is not."""
        if self._status:
            self._status.stop()
        print(text, flush=True)
        if self._status:
            self._status.start()
