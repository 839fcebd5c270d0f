"""``GET /v1/models`` and ``/v1/models/{id}``."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from ..state import ServerState, state_of

router = APIRouter()


@router.get("/v1/models")
async def list_models(http: Request) -> dict[str, Any]:
    """The served names. 503 while the model loads: whoever lists models sends a request next."""
    state = state_of(http)
    state.ready()
    return {"object": "list", "data": [_card(state, name) for name in state.names.served]}


@router.get("/v1/models/{name:path}")
async def get_model(http: Request, name: str) -> dict[str, Any]:
    """One model, by any accepted name."""
    state = state_of(http)
    state.ready()
    return _card(state, state.names.check(name))


def _card(state: ServerState, name: str) -> dict[str, Any]:
    info, frontend = state.client.info, state.frontend
    assert info is not None and frontend is not None
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "bireme",
        "root": frontend.name,
        "parent": None,
        "max_model_len": state.max_model_len,
        "meta": {
            "n_vocab": info.vocab_size,
            "n_ctx_train": info.max_model_len,
            "size": info.weight_bytes,
            "quantization": info.quantization,
        },
    }
