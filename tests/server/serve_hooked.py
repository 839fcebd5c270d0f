"""Run a server on the hooked engine: ``serve_hooked.py MODEL JSON``; JSON sets device, server and engine fields."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from dataclasses import fields

from fastapi import FastAPI
from starlette.middleware.base import RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import Response

from bireme.core.config import EngineConfig
from bireme.core.slo import parse_slo
from bireme.server import app as app_module
from bireme.server import run
from bireme.server.listen import bind
from bireme.server.settings import EngineSpec, ServerSettings
from bireme.server.state import ServerState

original_app = app_module.create_app


def app_inside_plain_middleware(state: ServerState) -> FastAPI:
    """The application as someone would extend it: a decorator middleware, which stands between server and endpoint, and
    a route, which tells how many tasks there are."""
    app = original_app(state)

    @app.middleware("http")
    async def passes(request: Request, call_next: RequestResponseEndpoint) -> Response:
        return await call_next(request)

    @app.get("/tasks")
    async def tasks() -> dict[str, int]:
        return {"tasks": len(asyncio.all_tasks())}

    return app


def main() -> None:
    app_module.create_app = app_inside_plain_middleware
    model, options = sys.argv[1], json.loads(sys.argv[2])
    options.setdefault("users_db", "none")
    os.environ["BIREME_TEST_LOAD_S"] = str(options.pop("load_s", 0))
    os.environ["BIREME_TEST_STEP_S"] = str(options.pop("step_s", 0.005))
    engine = {one.name: options.pop(one.name) for one in fields(EngineConfig) if one.name in options}
    engine["slo"] = parse_slo(engine["slo"]) if "slo" in engine else None
    config = EngineConfig(**{"kv_cache_memory": 32 * 2**20, **engine})
    spec = EngineSpec(model, options.pop("device", "sim"), config, loader="hooked_engine:load_hooked")
    sys.exit(run.serve(ServerSettings(spec, **options), bind("127.0.0.1", 0)))


if __name__ == "__main__":
    main()
