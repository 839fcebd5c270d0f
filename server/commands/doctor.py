"""``bireme doctor``: what this machine can do, and what to do about what it can't."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Annotated

import typer

from .complete import complete_model

if TYPE_CHECKING:
    from ..doctor.check import Finding

_SIGNS = {"ok": ("green", "ok"), "warning": ("yellow", "note"), "problem": ("red", "FAIL")}


def doctor(
    model: Annotated[
        str | None, typer.Argument(metavar="MODEL", help="Does it fit?", autocompletion=complete_model)
    ] = None,
    host: Annotated[str, typer.Option(help="Address that is to be listened on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port that is to be listened on.", min=1, max=65535)] = 8000,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Look at this machine: the device that would be chosen and why, libraries, memory, disk, port.

    Exit code 1: it can't serve as it is.
    """
    from ..doctor.check import FAIL, check
    from ..doctor.look import look

    machine = look(host, port)
    findings = check(machine)
    if model is not None:
        from ..doctor.fit import fits

        findings.append(fits(machine, model))
    serves = all(finding.status != FAIL for finding in findings)
    if as_json:
        listed = [dataclasses.asdict(finding) for finding in findings]
        typer.echo(json.dumps({"serves": serves, "device": machine.chosen, "findings": listed}, indent=1))
    else:
        _show(findings)
        typer.echo("This machine can serve." if serves else "This machine can't serve as it is.")
    raise typer.Exit(0 if serves else 1)


def _show(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False)
    for finding in findings:
        style, sign = _SIGNS[finding.status]
        text = Text(finding.text)
        if finding.fix:
            text.append(f"\n-> {finding.fix}", style="bold")
        table.add_row(Text(sign, style=style), finding.name, text)
    Console(highlight=False).print(table)
