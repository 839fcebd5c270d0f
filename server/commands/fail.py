"""How every command says that it can't: one line on standard error, exit code 1."""

from __future__ import annotations

import sys
from typing import NoReturn

import typer

#: What Ctrl-C leaves behind, as shells count it.
EXIT_INTERRUPTED = 130


def fail(message: str) -> NoReturn:
    typer.echo(f"bireme: {' '.join(message.split())}", err=True)
    sys.exit(1)
