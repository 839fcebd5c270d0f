"""The server's own settings. The engine's stand in ``core/config.py``; each default exists in one place only."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, get_args

from ..backends.options import BackendOptions
from ..core.config import EngineConfig
from .limits import RequestLimits
from .parsers.choose import check_names
from .parsers.formats import AUTO
from .users.store import NO_USERS, default_path

#: Who shares cached prompts: all, each user alone, or each ``prompt_cache_key`` of a user alone.
PrefixCacheScope = Literal["shared", "user", "prompt_cache_key"]
LogLevel = Literal["debug", "info", "warning", "error"]
#: What a key may hold: every character can stand in a header, and none at its ends would be trimmed there.
_KEY = re.compile(r"[!-~]([ -~]*[!-~])?")

#: Builds the engine in its process; ``module:function`` as ``loading.Loader`` says.
DEFAULT_LOADER = "bireme.server.loading:load_engine"


def origins(given: list[str] | None) -> tuple[str, ...]:
    """Pages that may call the server, as an option names them: none given means any, 'none' means none."""
    if not given:
        return ("*",)
    return () if given == ["none"] else tuple(given)


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """Everything the engine process needs to build its engine."""

    model: str  # a path, a Hub id or "demo"; resolved to a path before it crosses
    device: str = "auto"
    config: EngineConfig = field(default_factory=EngineConfig)
    cpu_precision: str = "fast"
    threads: int | None = None
    mlx_weights: str = "auto"
    tensor_parallel: int = 1
    given: tuple[str, ...] = ()  # options that were named, on the command line or elsewhere, defaults among them
    loader: str = DEFAULT_LOADER

    @property
    def backend_options(self) -> BackendOptions:
        """Raises ``ValueError`` naming the option, its value and what it may be."""
        return BackendOptions(self.cpu_precision, self.threads, self.mlx_weights, tensor_parallel=self.tensor_parallel)


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
    max_body_size: int = 32 * 1024 * 1024
    max_header_size: int = 64 * 1024  # of a request's line and headers
    response_store_size: int = 256 * 1024 * 1024  # of responses kept for later, in memory
    limits: RequestLimits = field(default_factory=RequestLimits)
    max_schema_bytes: int = 256 * 1024  # of a JSON schema, expression or grammar
    max_schema_depth: int = 64  # of a schema's objects and arrays in each other
    max_restarts: int = 5  # engine restarts in a row before the server gives up
    restart_delay: float = 0.5  # before the first restart; doubles each time, up to 30
    stats_interval: float = 10.0
    log_level: LogLevel = "info"
    users_db: str | None = None  # the users' file; None: the one in the user's data folder, "none": none
    prefix_cache_scope: PrefixCacheScope = "shared"  # who may profit from whose cached prompts
    trusted_proxies: tuple[str, ...] = ()  # addresses and networks whose X-Forwarded-For is believed
    cors_origins: tuple[str, ...] = ("*",)  # pages that may call the server; (): none
    cors_credentials: bool = False

    def __post_init__(self) -> None:
        check_names(self.tool_parser, self.reasoning_parser)
        for key in self.api_keys:
            if not _KEY.fullmatch(key):
                odd, empty = "holds characters that no header can carry", "is empty: it would open the door"
                what = odd if key.strip() else empty
                raise ValueError(f"an api_key {what}; give one of printable ASCII characters, or none at all")
        if not all(name.strip() for name in self.served_model_names):
            raise ValueError("a served_model_name is empty; clients need something to ask for")
        if self.prefix_cache_scope not in (scopes := get_args(PrefixCacheScope)):
            raise ValueError(
                f"prefix_cache_scope is {self.prefix_cache_scope!r}; it must be one of {', '.join(scopes)}"
            )
        if self.cors_credentials and "*" in self.cors_origins:
            raise ValueError(
                "cors_credentials needs cors_origins that are named: '*' would let any page act as its reader"
            )
        for one in self.trusted_proxies:
            try:
                ipaddress.ip_network(one)
            except ValueError as error:
                raise ValueError(f"trusted_proxies: {error}; give addresses and networks, such as 10.0.0.0/8") from None

    @property
    def users_path(self) -> Path | None:
        """The users' file, there or not; None: there is to be none."""
        if self.users_db == NO_USERS:
            return None
        return Path(self.users_db).expanduser() if self.users_db else default_path()
