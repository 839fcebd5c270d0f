"""The options of ``bireme serve``: types, limits and help. Defaults are those of the settings' own records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from ..core import config
from . import settings
from .commands.complete import complete_model
from .commands.config_file import ENV_PREFIX
from .parsers.choose import REASONING_NAMES, TOOL_NAMES


def _option(panel: str, text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, show_envvar=False, **limits)


def _model(text: str, **limits: Any) -> Any:
    return _option("Model", text, **limits)


def _engine(text: str, **limits: Any) -> Any:
    return _option("Engine", text, **limits)


def _http(text: str, **limits: Any) -> Any:
    return _option("HTTP", text, **limits)


def _users(text: str, **limits: Any) -> Any:
    return _option("Users", text, **limits)


def _limit(text: str, **limits: Any) -> Any:
    return _option("Limits of a request", text, **limits)


Model = Annotated[
    str | None,
    typer.Argument(
        help="A .gguf file, a model folder, a Hub id (org/name[:QUANT]), or 'demo'.",
        metavar="MODEL",
        envvar=f"{ENV_PREFIX}_MODEL",
        autocompletion=complete_model,
        show_envvar=False,
    ),
]
Device = Annotated[
    Literal["auto", "cpu", "cuda", "mlx", "sim"],
    _model("Where the model runs; sim computes nothing and answers noise."),
]
ServedModelName = Annotated[list[str] | None, _model("Name in the API; may be repeated. Default: from MODEL.")]
MaxModelLen = Annotated[int | None, _model("Context per sequence. Default: the model's.")]
GenerationDefaults = Annotated[bool, _model("Fill fields a request leaves out from the model's files.")]
CpuPrecision = Annotated[Literal["fast", "exact"], _model("cpu: int8 linear layers, or float32 throughout.")]
MlxWeights = Annotated[
    Literal["auto", "quantized", "dense"],
    _model("mlx: keep quantised weights so, or decode them. Default: keep them on a Mac."),
]
Threads = Annotated[int | None, _model("cpu: threads. Default: the cores.", min=1)]
TensorParallel = Annotated[int, _model("cuda: GPUs that share the model, each holding a part of every matrix.", min=1)]

ToolParser = Annotated[str, _model(f"How the model writes tool calls: {', '.join(TOOL_NAMES)}.")]
ReasoningParser = Annotated[str, _model(f"How the model marks its reasoning: {', '.join(REASONING_NAMES)}.")]

MaxNumSeqs = Annotated[int, _engine("Sequences that run at once.")]
MaxNumBatchedTokens = Annotated[int, _engine("Tokens in one step.")]
KvCacheMemory = Annotated[str | None, _engine("Memory for the KV cache: 2GiB, 512MiB, bytes. Default: by the machine.")]
GpuMemoryFraction = Annotated[
    float, _engine("cuda: share of the free memory that weights, work and KV cache may take.", min=0.01, max=1)
]
KvCacheDtype = Annotated[
    str,
    _engine(
        "What the KV cache keeps: auto (16 bits; float32 where all is exact), int8, or fp8 (cuda): half of that; "
        "float16 or float32 (cpu)."
    ),
]
BlockSize = Annotated[int, _engine("Tokens per KV block.")]
MaxStallMs = Annotated[float, _engine("The most a long prompt may delay running streams.")]
MaxQueue = Annotated[int, _engine("Waiting requests; one more is answered 429.")]
MaxQueuePerUser = Annotated[int | None, _engine("Waiting requests of one user; one more is answered 429.", min=1)]
SloOption = Annotated[str | None, _engine("Objective to keep to: ttft=1s,tpot=50ms, or one of them.")]
SloPolicy = Annotated[
    config.SloPolicy, _engine("What is done with requests that can't have their first token in time.")
]
EnablePrefixCaching = Annotated[bool, _engine("Reuse what prompts begin with alike.")]
GrammarTimeoutS = Annotated[float, _engine("Seconds that compiling one schema or grammar may take.", min=0.1)]
GrammarCache = Annotated[int, _engine("Compiled schemas and grammars that are kept.", min=1)]
WatchdogS = Annotated[float, _engine("Seconds without a step before /health turns red.")]

Host = Annotated[str, _http("Address to listen on.")]
Port = Annotated[int, _http("Port to listen on; 0: any free one.", min=0, max=65535)]
ApiKey = Annotated[list[str] | None, _http("Ask for this key; may be repeated.")]
TrustedProxies = Annotated[
    list[str] | None, _http("Address or network whose X-Forwarded-For is believed; may be repeated. Default: none.")
]
CorsOrigins = Annotated[
    list[str] | None,
    _http("Page that may call the server from a browser; may be repeated. Default: '*'. Or 'none'."),
]
CorsCredentials = Annotated[bool, _http("Let those pages send cookies and the like.")]
Grace = Annotated[float, _http("Seconds that Ctrl-C leaves running requests.", min=0)]
LogLevel = Annotated[settings.LogLevel, _http("What to log.")]

UsersDb = Annotated[str | None, _users("The file of 'bireme users', or 'none'. Default: the one in your data folder.")]
PrefixCacheScope = Annotated[settings.PrefixCacheScope, _users("Who may profit from whose cached prompts.")]

MaxBodySize = Annotated[str, _limit("Size of a body.")]
MaxHeaderSize = Annotated[str, _limit("Size of a request's line and headers.")]
ResponseStoreSize = Annotated[str, _limit("Memory for responses that /v1/responses keeps.")]
MaxMessages = Annotated[int, _limit("Messages of a conversation.", min=1)]
MaxTools = Annotated[int, _limit("Tools offered.", min=0)]
MaxPrompts = Annotated[int, _limit("Texts in one request to /v1/completions or /v1/embeddings.", min=1)]
MaxStopStrings = Annotated[int, _limit("Stop strings.", min=0)]
MaxN = Annotated[int, _limit("Choices per prompt: n and best_of.", min=1, max=config.MAX_N)]
MaxLogprobs = Annotated[int, _limit("Alternatives per token with logprobs.", min=0, max=config.MAX_LOGPROBS)]
MaxLogitBias = Annotated[int, _limit("Entries of logit_bias.", min=0)]
MaxSchemaBytes = Annotated[int, _limit("Bytes of a JSON schema, expression or grammar.", min=1)]
MaxSchemaDepth = Annotated[int, _limit("Levels of objects and arrays in a JSON schema.", min=1)]
