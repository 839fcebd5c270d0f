"""``/health``, ``/live``, ``/ready``, ``/version`` and ``/server_info``."""

from __future__ import annotations

import dataclasses
from typing import Any

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ... import __version__
from ..client import EngineState
from ..errors import ApiError
from ..state import state_of
from ..users.store import NO_USERS

router = APIRouter()


@router.get("/health")
@router.head("/health", include_in_schema=False)
async def health(http: Request) -> Response:
    """200 when requests are served; else 503 with the state: loading, restarting, stalled, failed, draining.

    That the process lives at all is shown by any answer.
    """
    state = state_of(http)
    status = state.client.state
    body: dict[str, Any] = {"status": "draining" if state.draining else status.value}
    if status is EngineState.READY and state.frontend is None:
        body["status"] = EngineState.LOADING.value
    if body["status"] == EngineState.LOADING.value and state.client.loaded[1]:
        body["loaded_bytes"], body["total_bytes"] = state.client.loaded
    if status is EngineState.FAILED:
        body["error"] = str(state.client.failure)
    return Response(orjson.dumps(body), 200 if body["status"] == "ok" else 503, media_type="application/json")


@router.get("/ready")
@router.head("/ready", include_in_schema=False)
async def ready(http: Request) -> dict[str, str]:
    """200 when a request sent now would be taken up; else 503 with the reason and ``Retry-After``."""
    state = state_of(http)
    state.ready()
    if state.client.state is EngineState.STALLED:
        raise ApiError(503, "Requests wait and the engine does not move.", code="stalled", retry_after=5)
    return {"status": "ready"}


@router.get("/live")
@router.head("/live", include_in_schema=False)
async def live() -> dict[str, str]:
    """200 as long as the process answers, whether it serves or still loads."""
    return {"status": "live"}


@router.get("/version")
@router.head("/version", include_in_schema=False)
async def version() -> dict[str, str]:
    """The server's version."""
    return {"version": __version__}


@router.get("/server_info")
@router.head("/server_info", include_in_schema=False)
async def server_info(http: Request) -> dict[str, Any]:
    """What is really in effect: the engine's own settings object and what its backend says of itself."""
    state = state_of(http)
    state.ready()
    assert state.client.config is not None and state.client.info is not None
    info = dataclasses.asdict(state.client.info)
    info["end_ids"] = sorted(info["end_ids"])
    spec, settings = state.settings.spec, state.settings
    return {
        "version": __version__,
        "engine": dataclasses.asdict(state.client.config),
        "backend": info,
        "options": {
            name: getattr(spec, name)
            for name in ("device", "cpu_precision", "mlx_weights", "threads", "tensor_parallel")
        },
        "server": {
            "served_model_names": list(state.names.served),
            "generation_defaults": state.defaults,
            "tool_parser": state.parsers.tool_name,
            "reasoning_parser": state.parsers.reasoning_name,
            "api_key": state.directory.keyed,
            "users_db": str(settings.users_path or NO_USERS),
            "users": len(state.directory.names),
            "prefix_cache_scope": settings.prefix_cache_scope,
            "trusted_proxies": list(settings.trusted_proxies),
            "cors_origins": list(settings.cors_origins),
            "cors_credentials": settings.cors_credentials,
            "max_body_size": settings.max_body_size,
            "max_header_size": settings.max_header_size,
            "response_store_size": settings.response_store_size,
            **dataclasses.asdict(settings.limits),
            "grace": settings.grace,
            "max_schema_bytes": settings.max_schema_bytes,
            "max_schema_depth": settings.max_schema_depth,
            "max_model_len": state.max_model_len,
        },
    }
