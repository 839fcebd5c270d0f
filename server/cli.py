"""The command line. Imports nothing heavy before a command really runs."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from .. import __version__
from ..bench.command import bench, simulate
from ..core.config import EngineConfig
from ..planner.command import plan
from . import options
from .settings import EngineSpec, ServerSettings
from .sizes import parse_size

#: The defaults shown in the help are the records' own.
ENGINE = EngineConfig()
SERVER = ServerSettings(EngineSpec(""))

app = typer.Typer(
    name="bireme",
    help="Serve one language model to many people at once, through the OpenAI API.",
    no_args_is_help=True,
    add_completion=False,
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


@app.command()
def serve(
    model: options.Model,
    device: options.Device = "auto",
    served_model_name: options.ServedModelName = None,
    max_model_len: options.MaxModelLen = ENGINE.max_model_len,
    generation_defaults: options.GenerationDefaults = SERVER.generation_defaults,
    cpu_precision: options.CpuPrecision = "fast",
    mlx_weights: options.MlxWeights = "auto",
    threads: options.Threads = None,
    tool_parser: options.ToolParser = SERVER.tool_parser,
    reasoning_parser: options.ReasoningParser = SERVER.reasoning_parser,
    max_num_seqs: options.MaxNumSeqs = ENGINE.max_num_seqs,
    max_num_batched_tokens: options.MaxNumBatchedTokens = ENGINE.max_num_batched_tokens,
    kv_cache_memory: options.KvCacheMemory = None,
    gpu_memory_fraction: options.GpuMemoryFraction = ENGINE.gpu_memory_fraction,
    kv_cache_dtype: options.KvCacheDtype = ENGINE.kv_cache_dtype,
    block_size: options.BlockSize = ENGINE.block_size,
    max_stall_ms: options.MaxStallMs = ENGINE.max_stall_ms,
    max_queue: options.MaxQueue = ENGINE.max_queue,
    enable_prefix_caching: options.EnablePrefixCaching = ENGINE.enable_prefix_caching,
    grammar_timeout_s: options.GrammarTimeoutS = ENGINE.grammar_timeout_s,
    watchdog_s: options.WatchdogS = ENGINE.watchdog_s,
    host: options.Host = SERVER.host,
    port: options.Port = SERVER.port,
    api_key: options.ApiKey = None,
    max_schema_bytes: options.MaxSchemaBytes = SERVER.max_schema_bytes,
    max_schema_depth: options.MaxSchemaDepth = SERVER.max_schema_depth,
    grace: options.Grace = SERVER.grace,
    log_level: options.LogLevel = "info",
) -> None:
    """Serve MODEL at http://HOST:PORT/v1 until Ctrl-C."""
    from .listen import bind

    try:
        config = EngineConfig(
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            max_model_len=max_model_len,
            kv_cache_memory=None if kv_cache_memory is None else parse_size(kv_cache_memory),
            gpu_memory_fraction=gpu_memory_fraction,
            kv_cache_dtype=kv_cache_dtype,
            max_stall_ms=max_stall_ms,
            max_queue=max_queue,
            enable_prefix_caching=enable_prefix_caching,
            grammar_timeout_s=grammar_timeout_s,
            watchdog_s=watchdog_s,
        )
        spec = EngineSpec(model, device, config, cpu_precision, threads, mlx_weights)
        names, keys = tuple(served_model_name or ()), _keys(api_key)
        settings = ServerSettings(
            spec,
            host,
            port,
            names,
            keys,
            generation_defaults,
            tool_parser,
            reasoning_parser,
            max_schema_bytes=max_schema_bytes,
            max_schema_depth=max_schema_depth,
            grace=grace,
            log_level=log_level,
        )
        listener = bind(host, port)
    except (ValueError, OSError) as error:
        _fail(str(error))
    from .run import serve as run

    if failure := run(settings, listener):
        _fail(failure)


app.command()(plan)
app.command()(simulate)
app.add_typer(bench)


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
