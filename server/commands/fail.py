"""How every command says that it can't: one line on standard error, and an exit code that tells whose fault it was."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

#: It could not be done: no network, no room, a port that is taken, a server that failed.
EXIT_FAILED = 1
#: What was asked for is wrong: an option, a value, a name, or a file that is not what it should be. Typer's own too.
EXIT_USAGE = 2
#: What Ctrl-C leaves behind, as shells count it.
EXIT_INTERRUPTED = 130


def fail(reason: str | Exception) -> NoReturn:
    """End the command. A ``ValueError`` says what is wrong with the input; any other reason is no fault of it."""
    typer.echo(f"bireme: {' '.join(str(reason).split())}", err=True)
    sys.exit(EXIT_USAGE if isinstance(reason, ValueError) else EXIT_FAILED)
