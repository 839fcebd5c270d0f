"""``GET /v1/models`` and ``/v1/models/{id}``, in OpenAI's shape, or in Anthropic's for its clients."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.requests import Request

from ..anthropic.errors import asks_for
from ..anthropic.models import model_card, model_list
from ..state import ServerState, state_of
from ..users.caller import caller_of

router = APIRouter()


@router.get("/v1/models")
@router.head("/v1/models", include_in_schema=False)
async def list_models(http: Request) -> dict[str, Any]:
    """The served names. 503 while the model loads: whoever lists models sends a request next."""
    state = state_of(http)
    state.ready()
    if asks_for(http.scope):
        return model_list(state)
    return {"object": "list", "data": [_card(state, http, name) for name in state.names.served]}


@router.get("/v1/models/{name:path}")
@router.head("/v1/models/{name:path}", include_in_schema=False)
async def get_model(http: Request, name: str) -> dict[str, Any]:
    """One model, by any accepted name."""
    state = state_of(http)
    state.ready()
    name = state.names.check(name)
    return model_card(state, name) if asks_for(http.scope) else _card(state, http, name)


def _card(state: ServerState, http: Request, name: str) -> dict[str, Any]:
    """The context is that of whoever asks: clients cut their prompts to it."""
    info, frontend = state.client.info, state.frontend
    assert info is not None and frontend is not None
    return {
        "id": name,
        "object": "model",
        "created": state.started,
        "owned_by": "bireme",
        "root": frontend.name,
        "parent": None,
        "max_model_len": caller_of(http.scope).context(state.max_model_len),
        "meta": {
            "n_vocab": info.vocab_size,
            "n_ctx_train": info.max_model_len,
            "size": info.weight_bytes,
            "quantization": info.quantization,
        },
    }
