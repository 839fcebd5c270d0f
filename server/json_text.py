"""JSON for answers that repeat what a client or the model wrote."""

from __future__ import annotations

import json
from typing import Any

import orjson


def json_text(value: Any) -> bytes:
    """``value`` as JSON. What orjson refuses, integers beyond 64 bits and half surrogate pairs, goes the slower way."""
    try:
        return orjson.dumps(value)
    except orjson.JSONEncodeError:
        return json.dumps(value).encode()
