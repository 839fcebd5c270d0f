"""The server's own settings. The engine's stand in ``core/config.py``; each default exists in one place only."""

from __future__ import annotations

from dataclasses import dataclass, field

from ..core.config import EngineConfig
from .parsers.choose import check_names
from .parsers.formats import AUTO

#: Builds the engine in its process; ``module:function`` taking (EngineSpec, progress) and returning an Engine.
DEFAULT_LOADER = "bireme.server.loading:load_engine"


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything the engine process needs to build its engine."""

    model: str  # a path, a Hub id or "demo"; resolved to a path before it crosses
    device: str = "auto"
    config: EngineConfig = field(default_factory=EngineConfig)
    cpu_precision: str = "fast"
    threads: int | None = None
    mlx_weights: str = "auto"
    loader: str = DEFAULT_LOADER


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """How the HTTP side behaves. Times are seconds, sizes are bytes."""

    spec: EngineSpec
    host: str = "127.0.0.1"
    port: int = 8000
    served_model_names: tuple[str, ...] = ()  # (): derived from the model
    api_keys: tuple[str, ...] = ()  # (): no key asked
    generation_defaults: bool = True  # the checkpoint's temperature and so on fill fields a request leaves out
    tool_parser: str = AUTO  # how calls are written; auto: as the chat template's text shows
    reasoning_parser: str = AUTO
    grace: float = 5.0  # running requests may finish for so long after the first Ctrl-C
    keep_alive: float = 10.0  # a silent stream gets a comment line so often
    accept_wait: float = 2.0  # a stream's headers go out after so long even if the engine has not answered yet
    max_body: int = 32 * 1024 * 1024
    max_schema_bytes: int = 256 * 1024  # of a JSON schema, expression or grammar
    max_schema_depth: int = 64  # of a schema's objects and arrays in each other
    max_restarts: int = 5  # engine restarts in a row before the server gives up
    restart_delay: float = 0.5  # before the first restart; doubles each time, up to 30
    stats_interval: float = 10.0
    log_level: str = "info"

    def __post_init__(self) -> None:
        check_names(self.tool_parser, self.reasoning_parser)
