"""What one watcher is sent: numbers, users by names this watcher may know, and never a word of any prompt or answer."""

from __future__ import annotations

import base64
import dataclasses
from typing import Any

from ..core.watch import BlockMap, EngineView
from .client import EngineState
from .messages import View
from .state import ServerState
from .users.caller import Caller

#: Characters of a request's id that are shown: enough to find it in the log.
ID_CHARS = 8
STATS = (
    "running", "waiting", "prompt_tokens_cached", "prompt_tokens_computed", "tokens_generated", "preemptions", "steps",
    "kv_blocks_total", "kv_blocks_live", "kv_blocks_cached", "kv_blocks_free", "block_size",
)  # fmt: skip


class Names:
    """Who is called what before one watcher.

    Whoever has a key from the users' file knows only their own name; to others belong numbers. Everybody else (the key
    of ``--api-key``, or no keys at all) sees the names that requests give themselves. Addresses are shown to nobody.
    """

    def __init__(self, caller: Caller) -> None:
        self._own = caller.share(None)
        self.hides = caller.user is not None
        self._numbers: dict[str, int] = {}

    def is_own(self, share: str) -> bool:
        return share == self._own

    def of(self, share: str) -> str:
        kind, _, rest = share.partition(":")
        if self.is_own(share):
            return "you" if kind == "address" else share
        if not self.hides and kind != "address":
            return rest if kind == "user" else share or "nobody"
        number = self._numbers.setdefault(share, len(self._numbers) + 1)
        return f"{'user' if self.hides else 'guest'} {number}"


def snapshot(state: ServerState, view: View | None, names: Names) -> dict[str, Any]:
    """One event of the feed. Without a view (the engine loads, or is being restarted) it says how things stand."""
    client = state.client
    told: dict[str, Any] = {"state": "draining" if state.draining else client.state.value}
    if client.state is EngineState.LOADING and client.loaded[1]:
        told["loaded"] = list(client.loaded)
    told["latency"] = {name: {"count": one.count, **one.percentiles} for name, one in _latencies(state)}
    told["objective"] = _objective(state)
    if view is not None:
        told |= _view(view, names)
    return told


def _latencies(state: ServerState) -> Any:
    return state.metrics.recent.latencies().items()


def _objective(state: ServerState) -> dict[str, Any] | None:
    goodput = state.metrics.goodput
    if goodput.slo is None:
        return None
    met, judged = goodput.total
    return {"ttft": goodput.slo.ttft, "tpot": goodput.slo.tpot, "met": met, "judged": judged}


def _view(told: View, names: Names) -> dict[str, Any]:
    view, stats = told.view, told.stats
    users = {one.user: 0 for one in view.sequences} | dict.fromkeys(stats.users, 0)
    places = {user: place for place, user in enumerate(users)}
    return {
        "time": round(view.now, 4),
        "stats": {name: getattr(stats, name) for name in STATS},
        "users": [_user(user, told, names) for user in users],
        "sequences": _sequences(view, places, names),
        "steps": [
            [one.number, round(one.start, 4), round(one.seconds, 5), one.decodes, one.chunks] for one in view.steps
        ],
        "dropped": view.dropped,
        "blocks": _blocks(view.blocks),
    }


def _user(user: str, told: View, names: Names) -> dict[str, Any]:
    counts = told.stats.users.get(user)
    return {
        "name": names.of(user),
        "own": names.is_own(user),
        "running": counts.running if counts else 0,
        "waiting": counts.waiting if counts else 0,
    }


def _sequences(view: EngineView, places: dict[str, int], names: Names) -> list[list[Any]]:
    """[order, request, user's place, prompt, cached, output tokens, ended]"""
    rows = []
    for one in view.sequences:
        shown = not names.hides or names.is_own(one.user)
        request = f"{one.request_id[:ID_CHARS]}{f'.{one.index}' if one.index else ''}" if shown else ""
        counts = (one.prompt_tokens, one.cached_tokens, one.output_tokens)
        rows.append([one.order, request, places[one.user], *counts, one.ended])
    return rows


def _blocks(blocks: BlockMap) -> dict[str, Any]:
    planes = {one.name: getattr(blocks, one.name) for one in dataclasses.fields(blocks)}
    return {
        name: base64.b64encode(value).decode() if isinstance(value, bytes) else value for name, value in planes.items()
    }
