"""``GET /dashboard/events``: what the engine does, twice a second, for as long as somebody reads it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import orjson
from fastapi import APIRouter
from starlette.requests import Request
from starlette.responses import Response

from ..client import EngineState
from ..snapshot import Names, snapshot
from ..sse import EventStream, event
from ..state import ServerState, state_of
from ..users.caller import caller_of
from ..watchers import Seat, Watchers

router = APIRouter()

#: With no view for so long, in seconds, an event says how things stand.
SILENCE = 1.0


@router.get("/dashboard/events")
async def dashboard_events(http: Request) -> Response:
    """A stream of snapshots: running and waiting requests, steps since the last one, blocks, latencies."""
    state, watchers = state_of(http), http.app.state.watchers
    assert isinstance(watchers, Watchers)
    seat = watchers.join()
    events = _events(state, seat, Names(caller_of(http.scope)))
    return EventStream(events, lambda: watchers.leave(seat), state.settings.keep_alive)


async def _events(state: ServerState, seat: Seat, names: Names) -> AsyncIterator[bytes]:
    if state.client.state is not EngineState.READY:
        yield event(orjson.dumps(snapshot(state, None, names)))
    while not state.draining:
        view = await seat.next(SILENCE)
        yield event(orjson.dumps(snapshot(state, view, names)))
