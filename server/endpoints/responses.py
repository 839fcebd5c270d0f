"""``/v1/responses``: OpenAI's Responses API; see docs/apis.md."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..conversation import converse, render
from ..errors import ApiError, bad_request
from ..json_text import json_text
from ..narration import narrate
from ..openai_types import parse
from ..renaming import field_names
from ..responses.answer import ResponseAnswer, ResponseNarrator
from ..responses.input import read_items
from ..responses.request import FIELD_NAMES, FittedChat, check, fit
from ..responses.store import ResponseStore, StoredResponse
from ..responses.tools import ToolTable, tool_table
from ..responses.types import Item, ResponsesRequest
from ..schema import json_body
from ..sse import EventStream, until_gone
from ..state import ServerState, new_id, request_id_of, state_of
from ..tool_use import tool_use
from ..users.caller import caller_of

router = APIRouter()

MAX_LISTED = 100


@dataclasses.dataclass(frozen=True, slots=True)
class _Asked:
    """A request that was read: its own items, and those of the conversation before it."""

    body: ResponsesRequest
    table: ToolTable
    before: list[Item]
    items: list[Item]
    fitted: FittedChat


@router.post("/v1/responses", openapi_extra=json_body(ResponsesRequest))
async def create_response(http: Request) -> Response:
    """Answer a conversation of items, whole or as a stream."""
    state, asked = await _read(http)
    body = asked.body
    with field_names(FIELD_NAMES):
        conversation = await converse(http, state, asked.fitted.chat)
        answer = ResponseAnswer(body, conversation, asked.table, asked.fitted.dropped, _keeper(http, asked))
        if not body.stream:
            return await until_gone(http.receive, _whole(answer))
        group = conversation.group
        await until_gone(http.receive, group.start(state.settings.accept_wait))
    events = narrate(group, ResponseNarrator(answer), request_id_of(http))
    return EventStream(events, group.close, state.settings.keep_alive)


@router.post("/v1/responses/input_tokens", openapi_extra=json_body(ResponsesRequest))
async def count_input_tokens(http: Request) -> dict[str, Any]:
    """How many tokens the prompt of such a request has."""
    state, asked = await _read(http)
    chat = asked.fitted.chat
    with field_names(FIELD_NAMES):
        ids = await render(state.ready(), chat, tool_use(chat))
    return {"object": "response.input_tokens", "input_tokens": len(ids)}


@router.get("/v1/responses/{response_id}")
async def get_response(http: Request, response_id: str) -> Response:
    """A stored response."""
    if http.query_params.get("stream", "false").lower() not in ("false", "0"):
        raise bad_request("stream: a stored response can't be streamed again; read it whole.", "stream")
    entry = _store(http).get(response_id, _owner(http))
    return Response(entry.response, media_type="application/json")


@router.delete("/v1/responses/{response_id}")
async def delete_response(http: Request, response_id: str) -> dict[str, Any]:
    """Forget a stored response."""
    _store(http).delete(response_id, _owner(http))
    return {"id": response_id, "object": "response", "deleted": True}


@router.post("/v1/responses/{response_id}/cancel")
async def cancel_response(http: Request, response_id: str) -> Response:
    """Only answers made in the background could be cancelled so, and there are none."""
    _store(http).get(response_id, _owner(http))
    raise bad_request(
        "Only background responses can be cancelled, and this server makes none: close the connection instead."
    )


@router.get("/v1/responses/{response_id}/input_items")
async def list_input_items(
    http: Request, response_id: str, limit: int = 20, order: str = "desc", after: str | None = None
) -> dict[str, Any]:
    """What a stored response's request brought, a page at a time."""
    if not 1 <= limit <= MAX_LISTED:
        raise bad_request(f"limit is {limit}; it must be 1 to {MAX_LISTED}", "limit")
    if order not in ("asc", "desc"):
        raise bad_request(f"order is {order!r:.50}; it can be 'asc' or 'desc'", "order")
    items = _store(http).get(response_id, _owner(http)).inputs()
    items = items if order == "asc" else items[::-1]
    if after is not None:
        at = next((at for at, item in enumerate(items) if item["id"] == after), None)
        if at is None:
            raise ApiError(404, f"after: item {after!r:.100} is not among this response's input.", param="after")
        items = items[at + 1 :]
    page = items[:limit]
    ends = {"first_id": page[0]["id"] if page else None, "last_id": page[-1]["id"] if page else None}
    return {"object": "list", "data": page, **ends, "has_more": len(items) > len(page)}


async def _read(http: Request) -> tuple[ServerState, _Asked]:
    """A request's body, its items found and its chat made to fit. Raises ``ApiError``."""
    state = state_of(http)
    state.ready()
    body = parse(await http.body(), ResponsesRequest)
    state.names.check(body.model)
    check(body)
    store, owner = _store(http), _owner(http)
    before: list[Item] = []
    if body.previous_response_id is not None:
        before = store.get(body.previous_response_id, owner, "previous_response_id").items()
    table = tool_table(body.tools)
    items = read_items(body.input, lambda item_id: store.find_item(item_id, owner))
    with field_names(FIELD_NAMES):
        fitted = await fit(state, body, [*before, *items], table)
    return state, _Asked(body, table, before, items, fitted)


async def _whole(answer: ResponseAnswer) -> Response:
    await answer.conversation.each(answer.take)
    status, _ = answer.close()
    return Response(json_text(answer.ended(status)), media_type="application/json")


def _keeper(http: Request, asked: _Asked) -> Callable[[Item], None]:
    """Puts the finished response where it can be referred to, unless it isn't to be kept."""
    store, owner = _store(http), _owner(http)

    def keep(response: Item) -> None:
        if asked.body.store is False:
            return
        own = [item if item.get("id") else {**item, "id": f"item_{new_id()}"} for item in asked.items]
        history = [*asked.before, *own, *response["output"]]
        store.put(
            StoredResponse(
                response["id"],
                owner,
                json_text(response),
                json_text(history),
                len(own),
                len(response["output"]),
                tuple(item["id"] for item in history),
            )
        )

    return keep


def _store(http: Request) -> ResponseStore:
    store = http.app.state.responses
    assert isinstance(store, ResponseStore)
    return store


def _owner(http: Request) -> str:
    """Whose responses a request may refer to: its key's, or without keys its address's."""
    return caller_of(http.scope).share(None)
