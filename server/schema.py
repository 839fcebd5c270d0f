"""OpenAPI for bodies that the endpoints decode themselves."""

from __future__ import annotations

from typing import Any

import msgspec

REF = "#/components/schemas/{name}"


def json_body(kind: type) -> dict[str, Any]:
    """The ``openapi_extra`` of an endpoint that takes a JSON body of ``kind``."""
    (schema,), _ = msgspec.json.schema_components([kind], ref_template=REF)
    return {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}


def components(*kinds: type) -> dict[str, Any]:
    """Schemas of ``kinds`` and of what they hold, by name."""
    return msgspec.json.schema_components(kinds, ref_template=REF)[1]
