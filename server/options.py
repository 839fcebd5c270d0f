"""The options of ``bireme serve``: each once, with its help. Defaults are those of the settings' own records."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Collection
from typing import Annotated, Any, Literal, TypeVar, cast, get_type_hints

import typer

from ..backends.uses import unused_options
from ..core import config
from ..core.config import EngineConfig
from ..core.slo import parse_slo
from . import settings
from .commands.complete import complete_model
from .commands.config_file import ENV_PREFIX
from .limits import RequestLimits
from .parsers.choose import REASONING_NAMES, TOOL_NAMES
from .settings import EngineSpec, ServerSettings
from .sizes import parse_size, size_text

#: Whose fields' defaults are those of the options of the same names.
_RECORDS = (EngineConfig, EngineSpec, RequestLimits, ServerSettings)
#: Written as sizes are, held in bytes.
_SIZES = ("max_body_size", "max_header_size", "response_store_size")

Record = TypeVar("Record")


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

# Those that other commands have too.
TensorParallel = Annotated[int, _model("cuda: GPUs that share the model, each holding a part of every matrix.", min=1)]
MaxNumSeqs = Annotated[int, _engine("Sequences that run at once.")]
MaxNumBatchedTokens = Annotated[int, _engine("Tokens in one step.")]
BlockSize = Annotated[int, _engine("Tokens per KV block.")]
MaxStallMs = Annotated[float, _engine("The most a long prompt may delay running streams.")]
MaxQueuePerUser = Annotated[int | None, _engine("Waiting requests of one user; one more is answered 429.", min=1)]
SloOption = Annotated[str | None, _engine("Objective to keep to: ttft=1s,tpot=50ms, or one of them.")]
SloPolicy = Annotated[
    config.SloPolicy, _engine("What is done with requests that can't have their first token in time.")
]
EnablePrefixCaching = Annotated[bool, _engine("Reuse what prompts begin with alike.")]


@dataclasses.dataclass(frozen=True, slots=True)
class ServeOptions:
    """What was given beside the model, as it was written. What a settings record has by the same name goes there."""

    device: Annotated[
        Literal["auto", "cpu", "cuda", "mlx", "sim"],
        _model("Where the model runs; sim computes nothing and answers noise."),
    ]
    served_model_name: Annotated[list[str] | None, _model("Name in the API; may be repeated. Default: from MODEL.")]
    max_model_len: Annotated[int | None, _model("Context per sequence. Default: the model's.")]
    generation_defaults: Annotated[bool, _model("Fill fields a request leaves out from the model's files.")]
    cpu_precision: Annotated[Literal["fast", "exact"], _model("cpu: int8 linear layers, or float32 throughout.")]
    mlx_weights: Annotated[
        Literal["auto", "quantized", "dense"],
        _model("mlx: keep quantised weights so, or decode them. Default: keep them on a Mac."),
    ]
    threads: Annotated[int | None, _model("cpu, cuda: threads of the CPU's own work. Default: the cores.", min=1)]
    tensor_parallel: TensorParallel
    tool_parser: Annotated[str, _model(f"How the model writes tool calls: {', '.join(TOOL_NAMES)}.")]
    reasoning_parser: Annotated[str, _model(f"How the model marks its reasoning: {', '.join(REASONING_NAMES)}.")]

    max_num_seqs: MaxNumSeqs
    max_num_batched_tokens: MaxNumBatchedTokens
    kv_cache_memory: Annotated[
        str | None, _engine("Memory for the KV cache: 2GiB, 512MiB, bytes. Default: by the machine.")
    ]
    gpu_memory_fraction: Annotated[
        float, _engine("cuda: share of the free memory that weights, work and KV cache may take.", min=0.01, max=1)
    ]
    kv_cache_dtype: Annotated[
        str,
        _engine(
            "What the KV cache keeps: auto (16 bits; float32 where all is exact), int8, or fp8 (cuda): half of that; "
            "float16 or float32 (cpu)."
        ),
    ]
    block_size: BlockSize
    max_stall_ms: MaxStallMs
    max_queue: Annotated[int, _engine("Waiting requests; one more is answered 429.")]
    max_queue_per_user: MaxQueuePerUser
    slo: SloOption
    slo_policy: SloPolicy
    enable_prefix_caching: EnablePrefixCaching
    grammar_timeout_s: Annotated[float, _engine("Seconds that compiling one schema or grammar may take.", min=0.1)]
    grammar_cache: Annotated[int, _engine("Compiled schemas and grammars that are kept.", min=1)]
    watchdog_s: Annotated[float, _engine("Seconds without a step before /health turns red.")]

    host: Annotated[str, _http("Address to listen on.")]
    port: Annotated[int, _http("Port to listen on; 0: any free one.", min=0, max=65535)]
    api_key: Annotated[list[str] | None, _http("Ask for this key; may be repeated.")]
    trusted_proxies: Annotated[
        list[str] | None, _http("Address or network whose X-Forwarded-For is believed; may be repeated. Default: none.")
    ]
    cors_origins: Annotated[
        list[str] | None,
        _http("Page that may call the server from a browser; may be repeated. Default: '*'. Or 'none'."),
    ]
    cors_credentials: Annotated[bool, _http("Let those pages send cookies and the like.")]
    grace: Annotated[float, _http("Seconds that Ctrl-C leaves running requests.", min=0)]
    log_level: Annotated[settings.LogLevel, _http("What to log.")]

    users_db: Annotated[
        str | None, _users("The file of 'bireme users', or 'none'. Default: the one in your data folder.")
    ]
    prefix_cache_scope: Annotated[settings.PrefixCacheScope, _users("Who may profit from whose cached prompts.")]

    max_body_size: Annotated[str, _limit("Size of a body.")]
    max_header_size: Annotated[str, _limit("Size of a request's line and headers.")]
    response_store_size: Annotated[str, _limit("Memory for responses that /v1/responses keeps.")]
    max_messages: Annotated[int, _limit("Messages of a conversation.", min=1)]
    max_tools: Annotated[int, _limit("Tools offered.", min=0)]
    max_prompts: Annotated[int, _limit("Texts in one request to /v1/completions or /v1/embeddings.", min=1)]
    max_stop_strings: Annotated[int, _limit("Stop strings.", min=0)]
    max_n: Annotated[int, _limit("Choices per prompt: n and best_of.", min=1, max=config.MAX_N)]
    max_logprobs: Annotated[int, _limit("Alternatives per token with logprobs.", min=0, max=config.MAX_LOGPROBS)]
    max_logit_bias: Annotated[int, _limit("Entries of logit_bias.", min=0)]
    max_schema_bytes: Annotated[int, _limit("Bytes of a JSON schema, expression or grammar.", min=1)]
    max_schema_depth: Annotated[int, _limit("Levels of objects and arrays in a JSON schema.", min=1)]

    def to_settings(self, model: str, given: Collection[str] = ()) -> ServerSettings:
        """``given``: names of the options that were named, with whatever value.

        Raises:
            ValueError: it names the option, its value and what it may be.
        """
        engine = self._record(
            EngineConfig,
            kv_cache_memory=None if self.kv_cache_memory is None else parse_size(self.kv_cache_memory),
            slo=None if self.slo is None else parse_slo(self.slo),
        )
        spec = self._record(EngineSpec, model=model, config=engine, given=tuple(given))
        if spec.device != "auto":  # that one is known once the engine's process has looked
            unused_options(spec.device, engine, spec.backend_options, given)
        return self._record(
            ServerSettings,
            spec=spec,
            served_model_names=tuple(self.served_model_name or ()),
            api_keys=tuple(self.api_key or ()),
            trusted_proxies=tuple(self.trusted_proxies or ()),
            cors_origins=settings.origins(self.cors_origins),
            limits=self._record(RequestLimits),
            **{name: parse_size(getattr(self, name)) for name in _SIZES},
        )

    def _record(self, kind: Callable[..., Record], **made: Any) -> Record:
        """A ``kind``: of what was ``made`` for it, and else of the options of its fields' names."""
        names = {field.name for field in dataclasses.fields(cast(Any, kind))}
        same = {option.name for option in dataclasses.fields(self)} & names
        return kind(**{name: getattr(self, name) for name in same} | made)


def _default(name: str) -> Any:
    """What the settings' records say, as it would be written; None, where they hold what becomes of nothing given."""
    held = next((field.default for kind in _RECORDS for field in dataclasses.fields(kind) if field.name == name), None)
    if name in _SIZES:
        return size_text(cast(int, held))
    return None if isinstance(held, tuple) else held


def takes_options(command: Callable[..., None]) -> Callable[..., None]:
    """``command``, whose parameter ``given`` is a ``ServeOptions``, with a parameter for each option in its place."""
    hints = get_type_hints(ServeOptions, include_extras=True)
    kind = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, kind, default=_default(name), annotation=hint) for name, hint in hints.items()]
    own = inspect.signature(command, eval_str=True)
    others = [parameter for parameter in own.parameters.values() if parameter.name != "given"]

    @functools.wraps(command)
    def run(**values: Any) -> None:
        given = ServeOptions(**{name: values.pop(name) for name in hints})
        command(**values, given=given)

    cast(Any, run).__signature__ = own.replace(parameters=[*others, *options])
    return run
