"""``POST /v1/rerank`` and ``/rerank``: not offered, and why."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.requests import Request

from ..errors import ApiError

router = APIRouter(include_in_schema=False)

REASON = (
    "This server does not rerank: that takes a model trained to score a query and a document together, with a head "
    "that says how well they fit, and the models served here have none. For an order by similarity, take the vectors "
    "of /v1/embeddings and compare them."
)


@router.post("/v1/rerank")
@router.post("/rerank")
async def rerank(http: Request) -> None:
    """A client learns the reason, not only that there is no such path."""
    raise ApiError(404, REASON, code="rerank_not_supported")
