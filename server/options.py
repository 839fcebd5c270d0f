"""The options of ``bireme serve``: types, limits and help. Defaults are those of the settings' own records."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

from .parsers.choose import REASONING_NAMES, TOOL_NAMES


def _option(panel: str, text: str, **limits: Any) -> Any:
    return typer.Option(help=text, rich_help_panel=panel, **limits)


def _model(text: str, **limits: Any) -> Any:
    return _option("Model", text, **limits)


def _engine(text: str, **limits: Any) -> Any:
    return _option("Engine", text, **limits)


def _http(text: str, **limits: Any) -> Any:
    return _option("HTTP", text, **limits)


Model = Annotated[str, typer.Argument(help="A .gguf file, a model folder, a Hub id (org/name[:QUANT]), or 'demo'.")]
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

ToolParser = Annotated[str, _model(f"How the model writes tool calls: {', '.join(TOOL_NAMES)}.")]
ReasoningParser = Annotated[str, _model(f"How the model marks its reasoning: {', '.join(REASONING_NAMES)}.")]

MaxNumSeqs = Annotated[int, _engine("Sequences that run at once.")]
MaxNumBatchedTokens = Annotated[int, _engine("Tokens in one step.")]
KvCacheMemory = Annotated[str | None, _engine("Memory for the KV cache: 2GiB, 512MiB, bytes. Default: by the machine.")]
GpuMemoryFraction = Annotated[
    float, _engine("cuda: share of the free memory that weights, work and KV cache may take.", min=0.01, max=1)
]
KvCacheDtype = Annotated[
    str, _engine("What the KV cache keeps: auto (as the device computes), int8, or fp8 (cuda): half of fp16.")
]
BlockSize = Annotated[int, _engine("Tokens per KV block.")]
MaxStallMs = Annotated[float, _engine("The most a long prompt may delay running streams.")]
MaxQueue = Annotated[int, _engine("Waiting requests; one more is answered 429.")]
EnablePrefixCaching = Annotated[bool, _engine("Reuse what prompts begin with alike.")]
GrammarTimeoutS = Annotated[float, _engine("Seconds that compiling one schema or grammar may take.", min=0.1)]
WatchdogS = Annotated[float, _engine("Seconds without a step before /health turns red.")]

Host = Annotated[str, _http("Address to listen on.")]
Port = Annotated[int, _http("Port to listen on; 0: any free one.", min=0, max=65535)]
ApiKey = Annotated[list[str] | None, _http("Ask for this key; may be repeated. Also BIREME_API_KEY.")]
MaxSchemaBytes = Annotated[int, _http("Bytes of a JSON schema, expression or grammar.", min=1)]
MaxSchemaDepth = Annotated[int, _http("Levels of objects and arrays in a JSON schema.", min=1)]
Grace = Annotated[float, _http("Seconds that Ctrl-C leaves running requests.", min=0)]
LogLevel = Annotated[Literal["debug", "info", "warning", "error"], _http("What to log.")]
