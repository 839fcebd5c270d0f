"""Users over HTTP: keys, limits, shares, usage, and changes while the server runs."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from api_bodies import PATIENCE, wait_for

from bireme.server.users.keys import PREFIX
from bireme.server.users.store import UserStore
from bireme.server.users.user import User


def command(*words: str, db: Path) -> subprocess.CompletedProcess[str]:
    call = [sys.executable, "-m", "bireme.server.cli", "users", *words, "--users-db", str(db)]
    return subprocess.run(call, capture_output=True, text=True)


@dataclass
class House:
    """A server with a users' file."""

    server: Any
    db: Path
    keys: dict[str, str]

    def ask(self, name: str, prompt: list[int] | str = "hello there", **fields: Any) -> httpx.Response:
        return self.with_key(self.keys[name], prompt, **fields)

    def with_key(self, key: str, prompt: list[int] | str = "hello there", **fields: Any) -> httpx.Response:
        body = {"prompt": prompt, "max_tokens": 3, "ignore_eos": True, "temperature": 0, **fields}
        return self.server.post("/v1/completions", body, Authorization=f"Bearer {key}")  # type: ignore[no-any-return]


USERS = (
    User("alice", weight=3.0, priority=2),
    User("short", max_context=40),
    User("few", requests_per_minute=3),
    User("thrifty", tokens_per_minute=1000),
    User("single", max_concurrent=1),
)


@pytest.fixture(scope="module")
def house(start_server: Any, tmp_path_factory: pytest.TempPathFactory) -> House:
    db = tmp_path_factory.mktemp("users") / "users.db"
    store = UserStore(db, create=True)
    keys = {user.name: store.add(user) for user in USERS}
    store.close()
    server = start_server(hook={"users_db": str(db), "api_keys": ["master"], "stats_interval": 60})
    server.wait_serving()
    return House(server, db, keys)


def test_keys_open_the_door_and_are_kept_nowhere(house: House) -> None:
    assert house.ask("alice").status_code == 200 and house.with_key("master").status_code == 200
    for key in ("x", "nobody", house.keys["alice"][:-1], house.keys["alice"] + "x", PREFIX):
        refused = house.with_key(key)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    kept = b"".join(path.read_bytes() for path in house.db.parent.iterdir()) + house.server.log.encode()
    for key in (*house.keys.values(), "master"):
        assert key.encode() not in kept
    assert house.db.stat().st_mode & 0o077 == 0, "others can't read the file"
    assert re.search(r"keys +asked for; 5 users in ", house.server.log)


def test_a_users_context(house: House) -> None:
    refused = house.ask("short", [120] * 40)
    error = refused.json()["error"]
    assert refused.status_code == 400 and error["code"] == "context_length_exceeded" and error["param"] == "prompt"
    assert "maximum context length for short is 40 tokens" in error["message"] and "40 tokens and" in error["message"]
    for asked in (None, 5, 500):
        usage = house.ask("short", [121] * 30, max_tokens=asked or 1000).json()["usage"]
        assert usage["completion_tokens"] == min(asked or 1000, 10)
    assert house.ask("alice", [120] * 40).status_code == 200
    listed = (house.server.get("/v1/models", Authorization=f"Bearer {house.keys[name]}") for name in ("short", "alice"))
    assert [answer.json()["data"][0]["max_model_len"] for answer in listed] == [40, 2048]


def test_requests_per_minute(house: House) -> None:
    began = time.monotonic()
    for left in (2, 1, 0):
        answer = house.ask("few")
        assert answer.status_code == 200
        assert answer.headers["x-ratelimit-limit-requests"] == "3"
        assert answer.headers["x-ratelimit-remaining-requests"] == str(left)
        assert re.fullmatch(r"[\d.]+s", answer.headers["x-ratelimit-reset-requests"])
    refused = house.ask("few")
    error = refused.json()["error"]
    assert refused.status_code == 429 and error["type"] == "rate_limit_error"
    assert error["code"] == "rate_limit_exceeded" and "3 requests per minute for few" in error["message"]
    assert 20 - (time.monotonic() - began) <= int(refused.headers["retry-after"]) <= 20
    assert refused.headers["x-ratelimit-remaining-requests"] == "0"
    claude = {"x-api-key": house.keys["few"], "anthropic-version": "2023-06-01"}
    turn = {"max_tokens": 5, "messages": [{"role": "user", "content": "go 0"}]}
    other = house.server.post("/v1/messages", turn, **claude)
    assert other.status_code == 429 and other.json()["error"]["type"] == "rate_limit_error"
    assert other.json()["type"] == "error" and int(other.headers["retry-after"]) >= 1
    assert other.headers["anthropic-ratelimit-requests-remaining"] == "0"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}Z", other.headers["anthropic-ratelimit-requests-reset"])
    listed = house.server.get("/v1/models", Authorization=f"Bearer {house.keys['few']}")
    assert listed.status_code == 200 and listed.headers["x-ratelimit-limit-requests"] == "3"
    assert "x-ratelimit-limit-requests" not in house.ask("alice").headers


def test_tokens_per_minute_and_what_the_cache_saves(house: House) -> None:
    def remaining(answer: httpx.Response) -> int:
        assert answer.status_code == 200, answer.text
        assert answer.headers["x-ratelimit-limit-tokens"] == "1000"
        return int(answer.headers["x-ratelimit-remaining-tokens"])

    began = time.monotonic()
    first = remaining(house.ask("thrifty", [122] * 500, max_tokens=20))
    given_back = (time.monotonic() - began) * 1000 / 60
    assert 470 <= first <= 490 + given_back, "500 read and 20 made, less what the clock gave back"
    again = remaining(house.ask("thrifty", [122] * 450, max_tokens=20))
    assert again >= first - 60, "what was in the cache is not charged"
    refused = house.ask("thrifty", [123] * 900)
    error = refused.json()["error"]
    assert refused.status_code == 429 and error["code"] == "rate_limit_exceeded"
    assert "1000 tokens per minute for thrifty" in error["message"] and "has 900" in error["message"]
    assert 1 <= int(refused.headers["retry-after"]) <= 35
    many = house.ask("thrifty", [[123] * 300, [124] * 300, [125] * 300])  # type: ignore[list-item]
    assert many.status_code == 429, "a list is taken whole or not at all"
    assert house.ask("thrifty", [126] * 100).status_code == 200, "a refusal costs nothing"
    house.server.wait_idle()


def test_requests_at_once(house: House) -> None:
    with ThreadPoolExecutor() as pool, house.server.client() as client:
        body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True, "stream": True}
        headers = {"x-api-key": house.keys["single"]}
        with client.stream("POST", "/v1/completions", json=body, headers=headers) as stream:
            assert stream.status_code == 200
            others = list(pool.map(lambda _: house.ask("single"), range(3)))
            for refused in others:
                assert refused.status_code == 429 and "1 requests at once" in refused.json()["error"]["message"]
                assert refused.headers["retry-after"] == "1"
            assert house.server.post("/tokenize", {"prompt": "x"}, **headers).status_code == 200
        # The client left in the midst of the stream: its place is free as soon as that is noticed.
        assert wait_for(lambda: house.ask("single").status_code == 200)


def test_changes_reach_a_running_server(house: House) -> None:
    added = command("add", "new", "--requests-per-minute", "7", db=house.db)
    key = added.stdout.strip()
    assert added.returncode == 0 and key.startswith(PREFIX) and "not shown again" in added.stderr
    assert wait_for(lambda: house.with_key(key).status_code == 200)
    assert command("set", "new", "--requests-per-minute", "none", "--max-context", "50", db=house.db).returncode == 0
    assert wait_for(lambda: house.with_key(key, [120] * 60).status_code == 400)
    assert "x-ratelimit-limit-requests" not in house.with_key(key).headers
    other = command("rotate", "new", db=house.db).stdout.strip()
    assert wait_for(lambda: house.with_key(key).status_code == 401)
    assert house.with_key(other).status_code == 200
    assert "new" in command("list", db=house.db).stdout
    assert command("remove", "new", db=house.db).returncode == 0
    assert wait_for(lambda: house.with_key(other).status_code == 401)
    assert other not in house.server.log and key not in house.server.log


def test_usage_is_written_down_and_counted(house: House) -> None:
    """By user, to the token; those without a name of their own are 'other'."""
    house.server.wait_idle()
    before = house.server.metrics()
    answers = [house.ask("alice", [127] * 64, max_tokens=9) for _ in range(2)] + [house.with_key("master", [128] * 5)]
    assert any(house.ask("few").status_code == 429 for _ in range(5))
    used = [answer.json()["usage"] for answer in answers]
    now = house.server.metrics()

    def grew(name: str, user: str) -> float:
        key = f'bireme:user_{name}_total{{user="{user}"}}'
        return now[key] - before.get(key, 0)

    assert grew("prompt_tokens", "alice") == 128 and grew("generation_tokens", "alice") == 18
    assert grew("cached_tokens", "alice") == used[1]["prompt_tokens_details"]["cached_tokens"] > 0
    assert grew("requests", "alice") == 2 and grew("rejected", "few") == 1
    assert grew("prompt_tokens", "other") == 5
    assert now['bireme:user_requests_running{user="alice"}'] == 0
    text = house.server.get("/metrics").text
    assert set(re.findall(r'user="([^"]*)"', text)) <= {*house.keys, "other", "new"}

    def written() -> dict[str, Any]:
        store = UserStore(house.db)
        found = {row.user: row.usage for row in store.usage(2)}
        store.close()
        return found

    sums = {user: now[f'bireme:user_generation_tokens_total{{user="{user}"}}'] for user in ("alice", "other")}
    assert wait_for(lambda: all(written()[user].output == total for user, total in sums.items()))
    shown = command("usage", "--days", "1", db=house.db).stdout
    assert re.search(r"alice +[\d,]+ +[\d,]+ +[\d,]+ +\d+ +0$", shown, re.MULTILINE)


def test_nothing_is_lost_at_the_end(start_server: Any, tmp_path: Path) -> None:
    """SIGTERM right behind an answer: it is on record. So is what a crash leaves, but for the last second."""
    db = tmp_path / "users.db"
    key = command("add", "bob", db=db).stdout.strip()
    for number in (signal.SIGTERM, signal.SIGKILL):
        server = start_server("--device", "sim", "--users-db", str(db))
        server.wait_serving()
        house = House(server, db, {"bob": key})
        assert house.ask("bob", max_tokens=10).status_code == 200

        def output() -> int:
            store = UserStore(db)
            found = store.usage(2)
            store.close()
            return sum(row.usage.output for row in found)

        if number == signal.SIGKILL:
            assert wait_for(lambda: output() == 20)
        server.stop(number)
        assert output() == (10 if number == signal.SIGTERM else 20)


def test_a_file_that_is_none_ends_the_start_with_a_line(start_server: Any, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no database, " * 500)
    server = start_server("--device", "sim", "--users-db", str(tmp_path / "notes.txt"))
    assert server.process.wait(PATIENCE) == 2  # what was asked for is wrong
    assert "notes.txt can't be used as a users' file" in server.log and "Traceback" not in server.log


def cached(server: Any, prompt: list[int], headers: dict[str, str] | None = None, **fields: Any) -> int:
    body = {"prompt": prompt, "max_tokens": 2, **fields}
    usage = server.post("/v1/completions", body, **(headers or {})).json()["usage"]
    return int(usage["prompt_tokens_details"]["cached_tokens"])


def test_who_shares_cached_prompts(start_server: Any) -> None:
    """--prefix-cache-scope user; without keys users are the ``user`` field, or the address a trusted proxy tells."""
    options = ("--device", "sim", "--prefix-cache-scope", "user", "--trusted-proxies", "127.0.0.1")
    server = start_server(*options)
    server.wait_serving()
    prompt = [120 + i % 7 for i in range(100)]
    anna, bert = ({"x-forwarded-for": f"203.0.113.{i}"} for i in (1, 2))
    assert [cached(server, prompt, anna) > 0 for _ in range(2)] == [False, True]
    assert [cached(server, prompt, bert) > 0 for _ in range(2)] == [False, True]
    spoofed = {"x-forwarded-for": "198.51.100.9, 203.0.113.1"}  # what the proxy did not add counts for nothing
    assert cached(server, prompt, spoofed) > 0
    assert [cached(server, prompt, anna, user="carl") > 0 for _ in range(2)] == [False, True]
    assert cached(server, prompt, bert, user="carl") > 0
    assert cached(server, prompt, anna, user="203.0.113.1") == 0, "a field never passes for an address"


def test_prompt_cache_key_as_scope_and_untrusted_addresses(start_server: Any) -> None:
    server = start_server("--device", "sim", "--prefix-cache-scope", "prompt_cache_key")
    server.wait_serving()
    prompt = [120 + i % 7 for i in range(100)]
    assert [cached(server, prompt, prompt_cache_key="a") > 0 for _ in range(2)] == [False, True]
    assert [cached(server, prompt, prompt_cache_key="b") > 0 for _ in range(2)] == [False, True]
    assert cached(server, prompt, {"x-forwarded-for": "203.0.113.1"}, prompt_cache_key="a") > 0, (
        "nobody asked the header"
    )
    assert cached(server, prompt, prompt_cache_key="a", cache_salt="s") == 0
