"""``bireme models``: what is on this machine's disk, and ``bireme models rm NAME``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..sizes import size_text
from .columns import columns
from .complete import complete_stored
from .fail import fail
from .pull import facts_of

if TYPE_CHECKING:
    from ...models.stored import StoredModel

models = typer.Typer(name="models", help="Models on this machine's disk.", invoke_without_command=True)

_STEPS = ((365 * 86400, "year"), (30 * 86400, "month"), (86400, "day"), (3600, "hour"), (60, "minute"))

Folder = Annotated[list[Path] | None, typer.Option(help="Look below this folder too; may be repeated.")]


@models.callback()
def listing(
    ctx: typer.Context,
    folder: Folder = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """List the models in the Hub client's cache and in Bireme's own folder: what 'bireme serve' takes by name."""
    if ctx.invoked_subcommand is not None:
        return
    from ...models.stored import stored_models

    try:
        rows = [_row(model) for model in stored_models(folder or ())]
    except ValueError as error:
        fail(error)
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
    elif not rows:
        typer.echo("No models yet; 'bireme pull demo' fetches a small one.")
    else:
        _show(rows)


@models.command("rm")
def remove(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="As 'bireme models' lists it.", autocompletion=complete_stored)
    ],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Don't ask.")] = False,
) -> None:
    """Delete a model from its cache."""
    from ...models.stored import stored_models

    found = [model for model in stored_models() if model.name == name]
    if not found:
        known = ", ".join(model.name for model in stored_models()) or "nothing"
        fail(ValueError(f"no cache holds a model {name!r}; there is {known}"))
    for model in found:
        if not yes and not typer.confirm(f"Delete {name}, {size_text(model.nbytes)}, from {model.path}?"):
            raise typer.Exit(1)
        typer.echo(f"{name} was deleted; {size_text(model.remove())} are free again.")


def _row(model: StoredModel) -> dict[str, Any]:
    """One model for ``--json``; ``problem`` says why it can't be served, or is null."""
    row: dict[str, Any] = {
        "name": model.name,
        "place": model.place,
        "path": str(model.path),
        "bytes": model.nbytes,
        "quantization": None,
        "context": None,
        "last_used": int(model.last_used),
        "problem": None,
    }
    if model.missing:
        return row | {"problem": f"incomplete: {', '.join(model.missing)} missing; 'bireme pull {model.name}'"}
    try:
        facts = facts_of(model.path)
    except (ValueError, OSError) as error:
        return row | {"problem": " ".join(str(error).split())}
    return row | {name: facts[name] for name in ("quantization", "context")}


def _show(rows: list[dict[str, Any]]) -> None:
    cells = []
    for row in rows:
        context = f"{row['context']:,}" if row["context"] else "-"
        ago = age(time.time() - row["last_used"])
        cells.append((row["name"], size_text(row["bytes"]), row["quantization"] or "-", context, ago))
    typer.echo(columns(("NAME", "SIZE", "QUANTISATION", "CONTEXT", "LAST USED"), cells, right=(1, 3)))
    for row in rows:
        if row["problem"]:
            typer.echo(f"{row['name']} can't be served: {row['problem']}")


def age(seconds: float) -> str:
    """How long ago, in the largest unit that fits."""
    for size, unit in _STEPS:
        if seconds >= size:
            count = int(seconds // size)
            return f"{count} {unit}{'' if count == 1 else 's'} ago"
    return "just now"
