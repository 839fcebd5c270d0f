"""The dashboard's feed, read as the page reads it, without a browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
import pytest
from api_bodies import PATIENCE
from spoken import say

from bireme.core.request import FinishReason
from bireme.core.slo import Slo
from bireme.server.client import EngineClient
from bireme.server.errors import ApiError
from bireme.server.metrics import Metrics
from bireme.server.names import ServedNames
from bireme.server.recent import Latency, Recent
from bireme.server.settings import EngineSpec, ServerSettings
from bireme.server.snapshot import Names, snapshot
from bireme.server.state import ServerState
from bireme.server.users.caller import Caller
from bireme.server.users.store import UserStore
from bireme.server.users.user import User
from bireme.server.watchers import MOST, Watchers

SECRET = "a word that must not leak"


@contextmanager
def watching(server: Any, **headers: str) -> Iterator[Iterator[dict[str, Any]]]:
    with server.client() as client, client.stream("GET", "/dashboard/events", headers=headers) as stream:
        assert stream.status_code == 200 and stream.headers["content-type"].startswith("text/event-stream")
        yield (json.loads(line[6:]) for line in stream.iter_lines() if line.startswith("data: "))


def ask(server: Any, text: str, **fields: Any) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": SECRET + say(text)}], **fields}
    answer: httpx.Response = server.post("/v1/chat/completions", body, **{"x-request-id": "abcdefgh-and-more"})
    return answer


def until(feed: Iterator[dict[str, Any]], met: Any) -> list[dict[str, Any]]:
    """Snapshots up to the first that meets a condition."""
    seen = []
    for one in feed:
        seen.append(one)
        if met(one):
            return seen
        assert len(seen) < 40, seen
    raise AssertionError("the feed ended")


def test_steps_sequences_and_blocks(server: Any) -> None:
    with watching(server) as feed:
        next(feed)
        usage = ask(server, "told " * 5, user="anna").json()["usage"]
        seen = until(feed, lambda one: any(row[6] for row in one.get("sequences", [])))
    steps = [step for one in seen for step in one.get("steps", [])]
    order, request, place, prompt, cached, output, ended = next(row for row in seen[-1]["sequences"] if row[6])
    assert seen[-1]["users"][place]["name"] == "anna" and request == "abcdefgh" and ended
    assert (prompt, output) == (usage["prompt_tokens"], usage["completion_tokens"])
    read = sum(tokens for step in steps for chunk, _, tokens in step[4] if chunk == order)
    assert read == prompt - cached
    decodes, decoding = 0, []
    for _, _, _, told, _ in steps:
        decoding = decoding if told is None else told
        decodes += order in decoding
    # The first token comes of the prompt's last chunk; with two steps in flight, one may be wasted at the end.
    assert output - 1 <= decodes <= output
    blocks, stats = seen[-1]["blocks"], seen[-1]["stats"]
    held = sum(base64.b64decode(blocks["used"])) + sum(base64.b64decode(blocks["shared"]))
    assert held == stats["kv_blocks_live"] and blocks["num_blocks"] == stats["kv_blocks_total"]
    assert sum(base64.b64decode(blocks["cached"])) == stats["kv_blocks_cached"] > 0
    assert seen[-1]["latency"]["ttft"]["count"] >= 1 and seen[-1]["latency"]["ttft"]["p50"] > 0


def test_no_words_of_anybody(server: Any) -> None:
    with watching(server) as feed:
        next(feed)
        ask(server, "and an answer nobody else reads")
        text = json.dumps(until(feed, lambda one: one.get("steps")))
    assert SECRET not in text and "nobody else reads" not in text and "and-more" not in text


def test_several_watch_and_the_last_turns_it_off(server: Any) -> None:
    with watching(server) as one:
        next(one)
        with watching(server) as two:
            next(two)
        next(one)
    with watching(server) as again:
        assert next(again)["state"] == "ok"


class Client:
    """What the watchers ask of the engine's client."""

    def __init__(self) -> None:
        self.watched: list[bool] = []

    def watch(self, on_view: Any) -> None:
        self.watched.append(on_view is not None)


def test_the_engine_takes_notes_only_while_somebody_watches() -> None:
    client = Client()
    watchers = Watchers(client)  # type: ignore[arg-type]
    one, two = watchers.join(), watchers.join()
    watchers.leave(one)
    watchers.leave(one)
    assert client.watched == [True]
    watchers.leave(two)
    assert client.watched == [True, False]
    seats = [watchers.join() for _ in range(MOST)]
    with pytest.raises(ApiError) as refused:
        watchers.join()
    assert refused.value.status == 429 and len(watchers) == MOST
    for seat in seats:
        watchers.leave(seat)
    assert client.watched == [True, False] * 2


def test_the_engine_is_watched_again_after_a_restart_and_to_its_end(start: Any) -> None:
    frail = start(restart_delay=2.5)  # longer than the feed is silent before it says how things stand
    frail.wait_ready()
    with watching(frail) as feed:
        until(feed, lambda one: "stats" in one)
        frail.engine().kill()
        until(feed, lambda one: one["state"] == "restarting")
        until(feed, lambda one: one["state"] == "ok" and "stats" in one)
        frail.process.terminate()
        last = list(feed)  # the stream ends: a dashboard holds no server up
    assert frail.process.wait(PATIENCE) == 0 and last[-1]["state"] in ("draining", "ok")


def test_keys_open_the_feed_and_names_stay_with_their_owners(start: Any, tmp_path: Any) -> None:
    users = tmp_path / "users.db"
    store = UserStore(users, create=True)
    keys = {name: store.add(User(name)) for name in ("anna", "bo")}
    store.close()
    keyed = start(users_db=str(users), api_keys=["operator"])
    keyed.wait_ready()
    assert keyed.get("/dashboard/events").status_code == 401
    assert keyed.get("/", accept="text/html").status_code == 200
    authorization = {name: f"Bearer {key}" for name, key in {**keys, "operator": "operator"}.items()}
    with watching(keyed, authorization=authorization["bo"]) as bo:
        with watching(keyed, authorization=authorization["operator"]) as operator:
            next(bo), next(operator)
            body = {"messages": [{"role": "user", "content": say("x" * 20)}]}
            keyed.post("/v1/chat/completions", body, authorization=authorization["anna"])
            seen = {
                name: until(feed, lambda one: one.get("sequences"))[-1]
                for name, feed in (("bo", bo), ("operator", operator))
            }
    assert [one["name"] for one in seen["bo"]["users"]] == ["user 1"]
    assert seen["bo"]["sequences"][0][1] == ""
    assert [one["name"] for one in seen["operator"]["users"]] == ["anna"]
    assert len(seen["operator"]["sequences"][0][1]) == 8


def test_names_before_each_watcher() -> None:
    anna = Names(Caller("anna", user=User("anna")))
    assert [anna.of(one) for one in ("bo", "anna", "cid", "bo")] == ["user 1", "anna", "user 2", "user 1"]
    guest = Names(Caller(address="10.0.0.7"))
    shares = ("address:10.0.0.7", "address:10.0.0.8", "user:zoe", "key:2", "")
    assert [guest.of(one) for one in shares] == ["you", "guest 1", "zoe", "key:2", "nobody"]
    assert guest.is_own("address:10.0.0.7") and not guest.is_own("user:zoe")


def test_latencies_of_the_last_minutes() -> None:
    now = [0.0]
    recent = Recent(lambda: now[0])
    recent.add(9.0, None)
    now[0] = 400.0
    assert recent.latencies()["ttft"] == Latency(0, {})
    for number in range(1, 101):
        recent.add(number / 100, number / 1000)
    ttft = recent.latencies()["ttft"]
    assert ttft.count == 100 and ttft.percentiles == {"p50": 0.5, "p90": 0.9, "p99": 0.99}
    assert recent.latencies()["tpot"].percentiles["p99"] == 0.099


def test_the_objective_and_who_met_it() -> None:
    settings = ServerSettings(EngineSpec("none"))
    client = EngineClient(settings)
    metrics = Metrics("m", Slo(ttft=1.0))
    state = ServerState(settings, client, ServedNames(("m",)), metrics)
    metrics.goodput.judge("other", FinishReason.STOP, 0.5, 0.1, 2.0)
    metrics.goodput.judge("other", FinishReason.STOP, 1.5, 0.1, 2.0)
    told = snapshot(state, None, Names(Caller()))
    assert told["objective"] == {"ttft": 1.0, "tpot": None, "met": 1, "judged": 2} and told["state"] == "loading"
    client.terminate()
