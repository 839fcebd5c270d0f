"""The command line. Imports nothing heavy before a command really runs."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from ..bench.command import bench, simulate
from ..planner.command import plan
from .commands.config_file import ENV_PREFIX, ConfigFile, ShowConfig, named, show
from .commands.doctor import doctor
from .commands.fail import fail
from .commands.models import models
from .commands.pull import pull
from .commands.run import run
from .options import Model, ServeOptions, takes_options
from .users.command import users

app = typer.Typer(
    name="bireme",
    help="Serve one language model to many people at once, through the OpenAI API.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)


def _version(asked: bool) -> None:
    if asked:
        typer.echo(f"bireme {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Serve one language model to many people at once, through the OpenAI API."""


@app.command(context_settings={"auto_envvar_prefix": ENV_PREFIX})
@takes_options
def serve(
    ctx: typer.Context,
    given: ServeOptions,
    model: Model = None,
    config_file: ConfigFile = None,
    show_config: ShowConfig = False,
) -> None:
    """Serve MODEL at http://HOST:PORT/v1 until Ctrl-C.

    Each option may also stand in the environment (--max-queue is BIREME_MAX_QUEUE) or in a file (max-queue = 100).
    """
    from .listen import bind

    if show_config:
        typer.echo(show(ctx))
        return
    if model is None:
        raise typer.BadParameter("name one; 'demo' is a small one that is fetched", param_hint="MODEL")
    try:
        settings = given.to_settings(model, named(ctx))
        listener = bind(settings.host, settings.port)
    except (ValueError, OSError) as error:
        fail(error)
    from .run import serve as run_server

    if failure := run_server(settings, listener):
        fail(failure)


app.command()(run)
app.command()(pull)
app.add_typer(models)
app.command()(doctor)
app.command()(plan)
app.command()(simulate)
app.add_typer(bench)
app.add_typer(users)


def main() -> None:
    """The ``bireme`` command."""
    app()


if __name__ == "__main__":
    main()
