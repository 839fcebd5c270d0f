"""What the endpoints share: one object per server, at ``app.state.server``."""

from __future__ import annotations

import secrets
import time
from dataclasses import dataclass, field, replace

from starlette.requests import Request as HttpRequest

from ..core.request import Request, SamplingParams
from .client import EngineClient, EngineState
from .errors import ApiError, ContextExceededError, bad_request
from .frontend import Frontend
from .generation import Generation
from .metrics import Metrics
from .names import ServedNames
from .openai_types import SharedRequest
from .params import TextRules
from .parsers.choose import ParserChoice, choose
from .parsers.tools import Tools
from .settings import ServerSettings
from .structured import SchemaLimits
from .tracing import Tracer
from .users.caller import caller_of
from .users.directory import Directory


@dataclass(slots=True)
class ServerState:
    """One server: its settings, its engine, its model's text side once loaded."""

    settings: ServerSettings
    client: EngineClient
    names: ServedNames
    metrics: Metrics
    frontend: Frontend | None = None
    directory: Directory = field(default_factory=lambda: Directory(None))
    tracer: Tracer | None = None
    draining: bool = False
    started: int = field(default_factory=lambda: int(time.time()))
    _counter: int = 0
    _parsers: ParserChoice | None = None

    def ready(self) -> Frontend:
        """The text side, when requests can be served. Raises ``ApiError`` 503 with the reason otherwise."""
        if self.draining:
            raise ApiError(503, "The server is shutting down.", code="shutting_down", retry_after=5)
        if self.frontend is None or self.client.state not in (EngineState.READY, EngineState.STALLED):
            raise self.client.unavailable()
        return self.frontend

    @property
    def vocab_size(self) -> int:
        """Rows of the output matrix."""
        assert self.client.info is not None
        return self.client.info.vocab_size

    @property
    def max_model_len(self) -> int:
        """Tokens of context a request may use: the model's limit and the option, whichever is less."""
        info, config = self.client.info, self.client.config
        assert info is not None and config is not None
        return min(info.max_model_len, config.max_model_len or info.max_model_len)

    @property
    def defaults(self) -> dict[str, object]:
        """The checkpoint's generation defaults, unless switched off."""
        return dict(self.frontend.defaults) if self.frontend and self.settings.generation_defaults else {}

    @property
    def parsers(self) -> ParserChoice:
        """What answers go through: as the options say, or as the chat template's text shows."""
        assert self.frontend is not None
        if self._parsers is None:
            template, options = self.frontend.text.template, self.settings
            self._parsers = choose(
                template.source,
                self.frontend.tokenizer.control_literals,
                takes_tools=template.takes_tools,
                tools=options.tool_parser,
                reasoning=options.reasoning_parser,
            )
        return self._parsers

    def kept_specials(self, tools: Tools | None) -> frozenset[int]:
        """Ids of the special tokens that an answer's parsers must see."""
        assert self.frontend is not None
        return self.frontend.tokenizer.control_ids(self.parsers.specials(tools))

    def check_length(self, prompt: int, param: str) -> None:
        """Raises ``ApiError`` 400 ``context_length_exceeded`` when the prompt leaves no room for one token."""
        if prompt >= self.max_model_len:
            raise ContextExceededError(self.max_model_len, prompt, param)

    def check_counts(self, body: object) -> None:
        """Raises ``ApiError`` 400 where a request holds more of something than is taken."""
        if excess := self.settings.limits.excess(body):
            raise bad_request(excess[1], excess[0])

    @property
    def schema_limits(self) -> SchemaLimits:
        return SchemaLimits(self.settings.max_schema_bytes, self.settings.max_schema_depth)

    def generation(
        self,
        http: HttpRequest,
        body: SharedRequest,
        prompt_ids: tuple[int, ...],
        params: SamplingParams,
        rules: TextRules,
    ) -> Generation:
        """A generation for one prompt, not started yet. Raises ``ApiError`` 400 where the user's context is used up."""
        assert self.frontend is not None
        self._counter += 1
        prompt_field = body.prompt_field
        caller = caller_of(http.scope)
        if caller.allowance is not None:
            params = _within(params, caller.allowance.room(len(prompt_ids), prompt_field))
        share = caller.share(body.user)
        record = self.metrics.record(len(prompt_ids), f"{request_id_of(http)}-{self._counter}", caller)
        request = Request(
            request_id=record.request_id,
            prompt_ids=prompt_ids,
            params=params,
            user=share,
            priority=caller.priority(body.priority),
            cache_salt=self._salt(share, body),
            arrival_time=record.arrived,
            weight=None if caller.user is None else caller.user.weight,
        )
        if self.tracer is not None:
            record.on_end = self.tracer.follow(body.operation, request, http.headers)
        return Generation(self.client, request, rules, self.frontend.text, record, prompt_field)

    def _salt(self, share: str, body: SharedRequest) -> str:
        """What keeps cached blocks apart. Each part has its length, so none passes for another."""
        scope, salt = self.settings.prefix_cache_scope, body.cache_salt or ""
        if scope == "shared":
            return salt
        parts = [share, body.prompt_cache_key or ""] if scope == "prompt_cache_key" else [share]
        return "".join(f"{len(part)}:{part}" for part in (*parts, salt))


def _within(params: SamplingParams, room: int | None) -> SamplingParams:
    """No more tokens than ``room``."""
    if room is None or (params.max_tokens is not None and params.max_tokens <= room):
        return params
    return replace(params, max_tokens=room)


def state_of(http: HttpRequest) -> ServerState:
    state = http.app.state.server
    assert isinstance(state, ServerState)
    return state


def request_id_of(http: HttpRequest) -> str:
    """The request's id (X-Request-Id), or a fresh one where no middleware set it."""
    return str(http.scope.get("request_id") or new_id())


def new_id() -> str:
    return secrets.token_hex(12)
