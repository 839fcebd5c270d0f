"""The list of models as Anthropic's clients read it."""

from __future__ import annotations

import datetime
from typing import Any

from ..state import ServerState


def model_card(state: ServerState, name: str) -> dict[str, Any]:
    """One model."""
    created = datetime.datetime.fromtimestamp(state.started, datetime.UTC)
    return {
        "type": "model",
        "id": name,
        "display_name": name,
        "created_at": created.isoformat(timespec="seconds").replace("+00:00", "Z"),
        "lifecycle": "active",
        "max_input_tokens": state.max_model_len,
        "max_tokens": state.max_model_len,
    }


def model_list(state: ServerState) -> dict[str, Any]:
    """All models, on one page."""
    data = [model_card(state, name) for name in state.names.served]
    return {"data": data, "has_more": False, "first_id": data[0]["id"], "last_id": data[-1]["id"]}
