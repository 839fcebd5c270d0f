"""The command line. Imports nothing heavy before a command really runs."""

from __future__ import annotations

from typing import Annotated

import typer

from .. import __version__
from ..bench.command import bench, simulate
from ..core.config import EngineConfig
from ..core.slo import parse_slo
from ..planner.command import plan
from . import options
from .commands.config_file import ENV_PREFIX, ConfigFile, ShowConfig, show
from .commands.doctor import doctor
from .commands.fail import fail
from .commands.models import models
from .commands.pull import pull
from .commands.run import run
from .limits import RequestLimits
from .settings import EngineSpec, ServerSettings, origins
from .sizes import parse_size, size_text
from .users.command import users

#: The defaults shown in the help are the records' own.
ENGINE = EngineConfig()
SERVER = ServerSettings(EngineSpec(""))
LIMITS = SERVER.limits
BODY_SIZE, HEADER_SIZE = size_text(SERVER.max_body_size), size_text(SERVER.max_header_size)
STORE_SIZE = size_text(SERVER.response_store_size)

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
def serve(
    ctx: typer.Context,
    model: options.Model = None,
    config_file: ConfigFile = None,
    show_config: ShowConfig = False,
    device: options.Device = "auto",
    served_model_name: options.ServedModelName = None,
    max_model_len: options.MaxModelLen = ENGINE.max_model_len,
    generation_defaults: options.GenerationDefaults = SERVER.generation_defaults,
    cpu_precision: options.CpuPrecision = "fast",
    mlx_weights: options.MlxWeights = "auto",
    threads: options.Threads = None,
    tensor_parallel: options.TensorParallel = 1,
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
    max_queue_per_user: options.MaxQueuePerUser = ENGINE.max_queue_per_user,
    slo: options.SloOption = None,
    slo_policy: options.SloPolicy = ENGINE.slo_policy,
    enable_prefix_caching: options.EnablePrefixCaching = ENGINE.enable_prefix_caching,
    grammar_timeout_s: options.GrammarTimeoutS = ENGINE.grammar_timeout_s,
    grammar_cache: options.GrammarCache = ENGINE.grammar_cache,
    watchdog_s: options.WatchdogS = ENGINE.watchdog_s,
    host: options.Host = SERVER.host,
    port: options.Port = SERVER.port,
    api_key: options.ApiKey = None,
    trusted_proxies: options.TrustedProxies = None,
    cors_origins: options.CorsOrigins = None,
    cors_credentials: options.CorsCredentials = SERVER.cors_credentials,
    grace: options.Grace = SERVER.grace,
    log_level: options.LogLevel = SERVER.log_level,
    users_db: options.UsersDb = None,
    prefix_cache_scope: options.PrefixCacheScope = SERVER.prefix_cache_scope,
    max_body_size: options.MaxBodySize = BODY_SIZE,
    max_header_size: options.MaxHeaderSize = HEADER_SIZE,
    response_store_size: options.ResponseStoreSize = STORE_SIZE,
    max_messages: options.MaxMessages = LIMITS.max_messages,
    max_tools: options.MaxTools = LIMITS.max_tools,
    max_prompts: options.MaxPrompts = LIMITS.max_prompts,
    max_stop_strings: options.MaxStopStrings = LIMITS.max_stop_strings,
    max_n: options.MaxN = LIMITS.max_n,
    max_logprobs: options.MaxLogprobs = LIMITS.max_logprobs,
    max_logit_bias: options.MaxLogitBias = LIMITS.max_logit_bias,
    max_schema_bytes: options.MaxSchemaBytes = SERVER.max_schema_bytes,
    max_schema_depth: options.MaxSchemaDepth = SERVER.max_schema_depth,
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
            max_queue_per_user=max_queue_per_user,
            slo=None if slo is None else parse_slo(slo),
            slo_policy=slo_policy,
            enable_prefix_caching=enable_prefix_caching,
            grammar_timeout_s=grammar_timeout_s,
            grammar_cache=grammar_cache,
            watchdog_s=watchdog_s,
        )
        spec = EngineSpec(model, device, config, cpu_precision, threads, mlx_weights, tensor_parallel)
        names, keys = tuple(served_model_name or ()), tuple(api_key or ())
        limits = RequestLimits(
            max_messages, max_tools, max_prompts, max_stop_strings, max_n, max_logprobs, max_logit_bias
        )
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
            max_body_size=parse_size(max_body_size),
            max_header_size=parse_size(max_header_size),
            response_store_size=parse_size(response_store_size),
            limits=limits,
            users_db=users_db,
            prefix_cache_scope=prefix_cache_scope,
            trusted_proxies=tuple(trusted_proxies or ()),
            cors_origins=origins(cors_origins),
            cors_credentials=cors_credentials,
        )
        listener = bind(host, port)
    except (ValueError, OSError) as error:
        fail(str(error))
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
