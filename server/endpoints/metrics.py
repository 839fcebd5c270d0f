"""``GET /metrics``: the Prometheus text format."""

from __future__ import annotations

from fastapi import APIRouter
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.requests import Request
from starlette.responses import Response

from ..state import state_of

router = APIRouter()


@router.get("/metrics")
@router.head("/metrics", include_in_schema=False)
async def metrics(http: Request) -> Response:
    """All metrics, by vLLM's names where the meaning is the same; see docs/metrics.md."""
    return Response(generate_latest(state_of(http).metrics.registry), headers={"content-type": CONTENT_TYPE_LATEST})
