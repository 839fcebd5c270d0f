"""The command line. Imports nothing heavy before a command really runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated, Literal

import typer

from .. import __version__
from ..core.config import EngineConfig
from .sizes import parse_size

ENGINE = EngineConfig()

app = typer.Typer(
    name="bireme",
    help="Serve one language model to many people at once, through the OpenAI API.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

MODEL_PANEL = "Model"
ENGINE_PANEL = "Engine"
HTTP_PANEL = "HTTP"


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


@app.command()
def serve(
    model: Annotated[str, typer.Argument(help="A .gguf file, a model folder, a Hub id (org/name[:QUANT]), or 'demo'.")],
    device: Annotated[
        Literal["auto", "cpu", "cuda", "mlx", "sim"],
        typer.Option(help="Where the model runs; sim computes nothing and answers noise.", rich_help_panel=MODEL_PANEL),
    ] = "auto",
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(help="Name in the API; may be repeated. Default: from MODEL.", rich_help_panel=MODEL_PANEL),
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(help="Context per sequence. Default: the model's.", rich_help_panel=MODEL_PANEL)
    ] = ENGINE.max_model_len,
    generation_defaults: Annotated[
        bool,
        typer.Option(help="Fill fields a request leaves out from the model's files.", rich_help_panel=MODEL_PANEL),
    ] = True,
    cpu_precision: Annotated[
        Literal["fast", "exact"],
        typer.Option(help="cpu: int8 linear layers, or float32 throughout.", rich_help_panel=MODEL_PANEL),
    ] = "fast",
    threads: Annotated[
        int | None, typer.Option(min=1, help="cpu: threads. Default: the cores.", rich_help_panel=MODEL_PANEL)
    ] = None,
    max_num_seqs: Annotated[
        int, typer.Option(help="Sequences that run at once.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.max_num_seqs,
    max_num_batched_tokens: Annotated[
        int, typer.Option(help="Tokens in one step.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.max_num_batched_tokens,
    kv_cache_memory: Annotated[
        str | None,
        typer.Option(help="Memory for the KV cache: 2GiB, 512MiB, bytes.", rich_help_panel=ENGINE_PANEL),
    ] = None,
    block_size: Annotated[
        int, typer.Option(help="Tokens per KV block.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.block_size,
    max_stall_ms: Annotated[
        float, typer.Option(help="The most a long prompt may delay running streams.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.max_stall_ms,
    max_queue: Annotated[
        int, typer.Option(help="Waiting requests; one more is answered 429.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.max_queue,
    enable_prefix_caching: Annotated[
        bool, typer.Option(help="Reuse what prompts begin with alike.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.enable_prefix_caching,
    watchdog_s: Annotated[
        float, typer.Option(help="Seconds without a step before /health turns red.", rich_help_panel=ENGINE_PANEL)
    ] = ENGINE.watchdog_s,
    host: Annotated[str, typer.Option(help="Address to listen on.", rich_help_panel=HTTP_PANEL)] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.", rich_help_panel=HTTP_PANEL)] = 8000,
    api_key: Annotated[
        list[str] | None,
        typer.Option(help="Ask for this key; may be repeated. Also BIREME_API_KEY.", rich_help_panel=HTTP_PANEL),
    ] = None,
    grace: Annotated[
        float, typer.Option(min=0, help="Seconds that Ctrl-C leaves running requests.", rich_help_panel=HTTP_PANEL)
    ] = 5.0,
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], typer.Option(help="What to log.", rich_help_panel=HTTP_PANEL)
    ] = "info",
) -> None:
    """Serve MODEL at http://HOST:PORT/v1 until Ctrl-C."""
    from .listen import bind
    from .settings import EngineSpec, ServerSettings

    try:
        config = EngineConfig(
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            kv_cache_memory=None if kv_cache_memory is None else parse_size(kv_cache_memory),
            max_stall_ms=max_stall_ms,
            max_queue=max_queue,
            enable_prefix_caching=enable_prefix_caching,
            watchdog_s=watchdog_s,
        )
        spec = EngineSpec(model, device, config, cpu_precision, threads)
        settings = ServerSettings(
            spec,
            host,
            port,
            tuple(served_model_name or ()),
            _keys(api_key),
            generation_defaults,
            grace=grace,
            log_level=log_level,
        )
        listener = bind(host, port)
    except (ValueError, OSError) as error:
        _fail(str(error))
    from .run import serve as run

    if failure := run(settings, listener):
        _fail(failure)


def _keys(given: list[str] | None) -> tuple[str, ...]:
    """Keys from the options, else from the environment."""
    if given:
        return tuple(given)
    from_environment = os.environ.get("BIREME_API_KEY", "")
    return (from_environment,) if from_environment else ()


def _fail(message: str) -> None:
    """One line on standard error, exit code 1."""
    typer.echo(f"bireme: {' '.join(message.split())}", err=True)
    sys.exit(1)


def main() -> None:
    """The ``bireme`` command."""
    app()


if __name__ == "__main__":
    main()
