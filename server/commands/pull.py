"""``bireme pull MODEL``: fetch a model now, so that it is there when it is served."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from ..sizes import size_text
from .complete import complete_model
from .fail import EXIT_INTERRUPTED, fail


def pull(
    model: Annotated[
        str,
        typer.Argument(
            help="A Hub id (org/name, org/name:Q4_K_M) or 'demo'; a path is only checked.",
            metavar="MODEL",
            autocompletion=complete_model,
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Fetch a model and check that it can be read. What an interrupted fetch left is taken up again."""
    from ..progress import resolve_model

    begun = time.monotonic()
    try:
        facts = facts_of(resolve_model(model))
    except (ValueError, OSError) as error:
        fail(error)
    except KeyboardInterrupt:
        typer.echo("\nStopped. The same command goes on where this one was.", err=True)
        raise typer.Exit(EXIT_INTERRUPTED) from None
    facts = {"model": model, **facts, "seconds": round(time.monotonic() - begun, 1)}
    if as_json:
        typer.echo(json.dumps(facts, indent=1))
        return
    typer.echo(f"{model} is at {facts['path']}")
    typer.echo(f"{facts['quantization']}, {size_text(facts['weight_bytes'])}, context {facts['context']:,} tokens")
    typer.echo(f"Serve it: bireme serve {model}")


def facts_of(path: Path) -> dict[str, Any]:
    """What a model's headers say, once it is there. Raises ``CheckpointError``: it can't be served."""
    from ...models.checkpoint import open_checkpoint

    checkpoint = open_checkpoint(path)
    try:
        return {
            "path": str(path),
            "quantization": checkpoint.quantization,
            "weight_bytes": checkpoint.weight_bytes,
            "context": checkpoint.config.max_position,
        }
    finally:
        checkpoint.close()
