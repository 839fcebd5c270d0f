"""Users, keys, limits and usage by themselves, on clocks of their own."""

from __future__ import annotations

import sqlite3
import threading
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import hypothesis.strategies as st
import pytest
from hypothesis import given
from starlette.requests import Request as HttpRequest

from bireme.core.request import SamplingParams
from bireme.server.errors import ApiError
from bireme.server.metrics import Metrics
from bireme.server.names import ServedNames
from bireme.server.openai_types import CompletionRequest
from bireme.server.params import TextRules
from bireme.server.settings import EngineSpec, ServerSettings
from bireme.server.state import ServerState
from bireme.server.users.allowance import Allowance
from bireme.server.users.bucket import Bucket
from bireme.server.users.caller import Caller, network
from bireme.server.users.directory import Directory
from bireme.server.users.keys import PREFIX, digest, new_key
from bireme.server.users.limit_headers import anthropic_headers, duration, openai_headers
from bireme.server.users.store import UserError, UserStore
from bireme.server.users.usage import Usage, UsageBook
from bireme.server.users.user import User


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@given(st.lists(st.tuples(st.floats(0, 90), st.integers(1, 80)), max_size=40))
def test_a_bucket_lets_in_what_it_promises(moves: list[tuple[float, int]]) -> None:
    """Waits are exact: a moment before, it is not there. What was let in keeps to the rate and one bucket more."""
    clock = Clock()
    bucket, taken, start = Bucket(60, clock), 0, clock.now
    for pause, amount in moves:
        clock.now += pause
        if wait := bucket.wait(amount):
            clock.now += wait * 0.99
            assert bucket.wait(amount) > 0
            clock.now += wait * 0.01 + 1e-6
        assert bucket.wait(amount) == 0
        bucket.take(amount)
        taken += amount
        assert taken <= 60 + (clock.now - start) + max(0, -bucket.level) + 1e-3
    clock.now += bucket.reset
    assert bucket.level == pytest.approx(60)


def test_more_than_a_minutes_tokens_waits_for_a_full_bucket_and_is_paid_off() -> None:
    clock = Clock()
    bucket = Bucket(60, clock)
    assert bucket.wait(600) == 0
    bucket.take(600)
    assert bucket.wait(1) == pytest.approx(541)
    bucket.take(-100)
    assert bucket.wait(1) == pytest.approx(441)


def test_limits_that_change_keep_what_was_used() -> None:
    clock = Clock()
    allowance = Allowance(User("u", tokens_per_minute=100, requests_per_minute=2), clock)
    allowance.enter()
    allowance.admit(80)
    allowance.change(User("u", tokens_per_minute=200))
    assert openai_headers(allowance.left()) == {
        "x-ratelimit-limit-tokens": "200",
        "x-ratelimit-remaining-tokens": "120",
        "x-ratelimit-reset-tokens": "24s",
    }
    assert anthropic_headers(allowance.left(), datetime(2030, 1, 1, 23, 59, 50, tzinfo=UTC)) == {
        "anthropic-ratelimit-tokens-limit": "200",
        "anthropic-ratelimit-tokens-remaining": "120",
        "anthropic-ratelimit-tokens-reset": "2030-01-02T00:00:14Z",
    }
    with pytest.raises(ApiError) as refused:
        allowance.admit(150)
    assert refused.value.status == 429 and refused.value.retry_after == pytest.approx(9)
    allowance.change(User("u"))
    allowance.admit(10**9)
    assert allowance.left() == []


def test_a_place_is_given_back() -> None:
    allowance = Allowance(User("u", max_concurrent=1, requests_per_minute=1), Clock())
    allowance.enter()
    with pytest.raises(ApiError, match="1 requests at once"):
        allowance.enter()
    allowance.leave()
    with pytest.raises(ApiError, match="1 requests per minute"):
        allowance.enter()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0ms"), (0.12, "120ms"), (1.54, "1.5s"), (59, "59s"), (360, "6m0s"), (61, "1m1s")]
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"name": ""}, "can't be"), ({"name": "a:b"}, "can't be"), ({"name": "other"}, "not 'other'"),
        ({"name": "é"}, "can't be"), ({"name": "x" * 65}, "1 to 64"), ({"weight": 0.0}, "weight is 0.0"),
        ({"weight": float("nan")}, "weight is nan"), ({"max_context": 1}, "max_context is 1; it must be 2"),
        ({"tokens_per_minute": 0}, "must be 1 to"), ({"priority": 2**31}, "priority"),
    ],
)  # fmt: skip
def test_wrong_users_are_refused_with_the_value(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        User(**{"name": "u", **fields})


def test_shares_of_different_kinds_never_meet() -> None:
    named = Caller(name="anna", address="10.0.0.1", user=User("anna"))
    nobody = Caller(address="10.0.0.1")
    assert named.share("bert") == "anna"
    shares = [named.share(None), nobody.share("anna"), nobody.share(None), nobody.share("10.0.0.1")]
    shares += [nobody.share("x" * 500), nobody.share("x" * 501), nobody.share("address:10.0.0.1")]
    assert len(set(shares)) == len(shares) and max(map(len, shares)) < 200
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("::ffff:10.0.0.1") == "10.0.0.1" and network("fe80::1%eth0") == network("fe80::2")
    assert network("") == "" and network("testclient") == "testclient"


def test_priorities_stop_at_the_users_own() -> None:
    user = Caller(name="u", user=User("u", priority=3))
    assert [user.priority(asked) for asked in (None, -5, 3, 9)] == [3, 3, 3, 9]
    assert [Caller().priority(asked) for asked in (None, -5, 9)] == [0, -5, 9]


def test_keys_are_long_and_kept_as_digests(tmp_path: Path) -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100 and all(key.startswith(PREFIX) and len(key) == len(PREFIX) + 43 for key in keys)
    store = UserStore(tmp_path / "u.db", create=True)
    key = store.add(User("u", weight=2.0))
    [entry] = store.entries()
    assert entry.digest == digest(key) and entry.hint == key[-4:] and entry.user == User("u", weight=2.0)
    with pytest.raises(UserError, match="there is a user 'u' already"):
        store.add(User("u"))
    for call in (store.remove, store.rotate, store.get, lambda name: store.set(User(name))):
        with pytest.raises(UserError, match="there is no user 'v'; there are: u"):
            call("v")
    store.close()


def test_files_of_something_else_are_refused(tmp_path: Path) -> None:
    other, newer = tmp_path / "other.db", tmp_path / "newer.db"
    with sqlite3.connect(other) as db:
        db.execute("CREATE TABLE recipes (x)")
    UserStore(newer, create=True).close()
    with sqlite3.connect(newer) as db:
        db.execute("PRAGMA user_version = 9")
    for path, words in (
        (other, "something else"),
        (newer, "newer Bireme.*--users-db"),
        (tmp_path / "none.db", "no users' file"),
    ):
        with pytest.raises(UserError, match=words):
            UserStore(path)


def test_two_writers_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "u.db"

    def write() -> None:
        store = UserStore(path, create=True)
        for _ in range(50):
            store.add_usage([("a", Usage(1, 0, 2, 1, 0)), ("b", Usage(0, 0, 0, 0, 1))])
        store.close()

    threads = [threading.Thread(target=write) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = UserStore(path)
    sums = {row.user: row.usage for row in store.usage(2)}  # a day may end in between: both are in
    store.close()
    assert sums == {"a": Usage(150, 0, 300, 150, 0), "b": Usage(0, 0, 0, 0, 150)}


def test_growth_is_written_once() -> None:
    book = UsageBook()
    book.of("a").prompt += 5
    first = book.growth()
    book.of("a").prompt += 2
    book.wrote(first)
    assert first == [("a", Usage(prompt=5))] and book.growth() == [("a", Usage(prompt=2))]
    book.wrote(book.growth())
    assert book.growth() == []


def test_who_has_which_key(tmp_path: Path) -> None:
    """One key opens the door and names nobody; several name one each; a users' file shuts the door for good."""
    path = tmp_path / "u.db"

    def names(directory: Directory, *keys: str) -> list[str | None]:
        return [None if (found := directory.find(key, "")) is None else found.name for key in keys]

    assert names(Directory(None), "", "anything") == ["", ""]
    assert names(Directory(None, ("k",)), "k", "", "K") == ["", None, None]
    assert names(Directory(None, ("k", "l")), "k", "l", "m") == ["key:1", "key:2", None]
    store = UserStore(path, create=True)
    key = store.add(User("u"))
    directory = Directory(path, ("k",))
    directory.start()
    assert names(directory, key, "k", "") == ["u", "key:1", None]
    store.remove("u")
    directory._turn()
    assert names(directory, key, "") == [None, None] and directory.keyed
    store.close()
    directory.close()


def test_a_broken_file_leaves_the_server_as_it_was(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "u.db"
    store = UserStore(path, create=True)
    key = store.add(User("u"))
    directory = Directory(path)
    directory.start()
    with sqlite3.connect(path) as db:
        db.execute("UPDATE users SET weight = -1")
    for _ in range(3):
        directory._turn()
    assert directory.find(key, "") is not None
    assert len([line for line in caplog.messages if "user 'u': weight is -1" in line]) == 1, "said once"
    store.close()
    directory.close()


def test_what_a_user_is_reaches_the_engine() -> None:
    """Share, weight, rank, context and scope, as they stand in the request that is sent to it."""
    user = User("anna", weight=3.0, priority=2, max_context=10)
    settings = ServerSettings(EngineSpec("m"), prefix_cache_scope="prompt_cache_key")
    text = SimpleNamespace(output=lambda *rules: None)
    state = ServerState(
        settings, cast(Any, None), ServedNames(("m",)), Metrics("m"), cast(Any, SimpleNamespace(text=text))
    )
    params = SamplingParams(max_tokens=500)
    sent = []
    for caller in (Caller("anna", user=user, allowance=Allowance(user)), Caller(address="10.0.0.1")):
        http = HttpRequest({"type": "http", "headers": [], "caller": caller})
        for body in (
            CompletionRequest(user="bert", priority=-9, prompt_cache_key="k"),
            CompletionRequest(priority=7, cache_salt="k"),
        ):
            sent.append(state.generation(http, body, (1, 2, 3), params, TextRules()).request)
    assert [one.user for one in sent] == ["anna", "anna", "user:bert", "address:10.0.0.1"]
    assert [one.weight for one in sent] == [3.0, 3.0, None, None]
    assert [one.priority for one in sent] == [2, 7, -9, 7]
    assert [one.params.max_tokens for one in sent] == [7, 7, 500, 500]
    assert len({one.cache_salt for one in sent}) == 4 and all(one.arrival_time > 0 for one in sent)
    with pytest.raises(ApiError, match="maximum context length for anna is 10 tokens, but the prompt has 10"):
        http = HttpRequest(
            {"type": "http", "headers": [], "caller": Caller("anna", user=user, allowance=Allowance(user))}
        )
        state.generation(http, CompletionRequest(), (1,) * 10, params, TextRules())
