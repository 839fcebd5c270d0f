"""The ASGI application: FastAPI's routes inside pure ASGI middleware."""

from __future__ import annotations

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match

from .. import __version__
from .anthropic.errors import AnthropicErrors
from .endpoints import (
    chat,
    completions,
    dashboard,
    embeddings,
    health,
    messages,
    metrics,
    models,
    page,
    rerank,
    responses,
    tokenize,
)
from .errors import ApiError
from .middleware import BodyLimitMiddleware, RequestIdMiddleware, UserMiddleware
from .openapi import described
from .responses.store import ResponseStore
from .sse import ClientGoneError
from .state import ServerState
from .users import limit_headers
from .watchers import Watchers

ROUTERS = (
    chat,
    completions,
    responses,
    messages,
    embeddings,
    rerank,
    models,
    tokenize,
    health,
    metrics,
    dashboard,
    page,
)


def create_app(state: ServerState) -> FastAPI:
    """The application that serves ``state``. Middleware added later goes around all of this."""
    app = FastAPI(
        title="Bireme",
        version=__version__,
        description="An OpenAI-compatible server for one language model.",
        docs_url=None,  # both of FastAPI's pages load scripts from other hosts
        redoc_url=None,
    )
    app.state.server = state
    app.state.watchers = Watchers(state.client)
    app.state.responses = ResponseStore(state.settings.response_store_size)
    for module in ROUTERS:
        app.include_router(module.router)
    settings = state.settings
    app.add_middleware(BodyLimitMiddleware, limit=settings.max_body_size)
    app.add_middleware(UserMiddleware, directory=state.directory)
    app.add_middleware(RequestIdMiddleware)
    app.add_middleware(AnthropicErrors)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=settings.cors_origins,
        allow_credentials=settings.cors_credentials,
        allow_methods=["*"],
        allow_headers=["*"],
        expose_headers=["x-request-id", "retry-after", *limit_headers.NAMES],
        max_age=600,
    )
    app.add_exception_handler(ApiError, _api_error)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _validation_error)
    for gone in (ClientGoneError, ClientDisconnect):  # while answering, and while the body was read
        app.add_exception_handler(gone, _client_gone)
    app.openapi = described(app.openapi)  # type: ignore[method-assign]
    return app


async def _api_error(http: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return Response(error.json(), error.status, error.headers)


async def _http_error(http: Request, error: Exception) -> Response:
    """Starlette's own 404 and 405, in OpenAI's shape."""
    assert isinstance(error, HTTPException)
    what = {404: f"There is no {http.url.path} here.", 405: f"{http.url.path} does not take {http.method}."}
    answer = ApiError(error.status_code, what.get(error.status_code, str(error.detail)))
    headers = {**answer.headers, **(error.headers or {})}
    if error.status_code == 405 and (methods := _methods(http)):  # the error names the first route's only
        headers["Allow"] = ", ".join(sorted(methods))
    return Response(answer.json(), answer.status, headers)


def _methods(http: Request) -> set[str]:
    """Every method that the path takes."""
    routes = (route for module in ROUTERS for route in module.router.routes)
    found = (route for route in routes if route.matches(http.scope)[0] is not Match.NONE)
    return {method for route in found for method in getattr(route, "methods", None) or ()}


async def _validation_error(http: Request, error: Exception) -> Response:
    """FastAPI's 422 is OpenAI's 400."""
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    answer = ApiError(400, f"{'.'.join(map(str, first['loc']))}: {first['msg']}", param=str(first["loc"][-1]))
    return Response(answer.json(), answer.status, answer.headers)


async def _client_gone(http: Request, error: Exception) -> Response:
    """Nobody reads this; the status is for middleware that counts (nginx's 'client closed request')."""
    return Response(status_code=499)
