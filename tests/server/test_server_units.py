"""Small parts of the server alone."""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
import scripted
from typer.testing import CliRunner

from bireme.core.config import EngineConfig
from bireme.core.request import FinishReason, Request, SamplingParams, SequenceOutput, TokenLogprob
from bireme.server.cli import app
from bireme.server.errors import ApiError
from bireme.server.frontend import load_frontend, without_billing_line
from bireme.server.generation import Piece
from bireme.server.listen import ListenError, bind
from bireme.server.messages import Add, FromEngine, Rejected, Step, ToEngine, encode
from bireme.server.names import ServedNames, default_name
from bireme.server.openai_types import ChatRequest, parse
from bireme.server.params import budget, sampling_params
from bireme.server.parsers.think import ThinkParser
from bireme.server.reply import ReplyReader
from bireme.server.report import context_text
from bireme.server.restarts import SOUND_S, Restarts
from bireme.server.settings import EngineSpec, ServerSettings
from bireme.server.sizes import parse_size, size_text
from bireme.server.socket_folder import PREFIX, SocketFolder, remove_stale
from bireme.server.stream import RequestStream


def test_tokens_that_came_together_are_shared_out_by_their_text() -> None:
    reader = ReplyReader(ThinkParser(), str)
    for text, made, thought in (("<think>aaa", 4, 4), ("aa</think>bbbb", 10, 6), ("cc", 12, 6)):
        reader.take(Piece(0, text, made=made))
        assert reader.thought_tokens == thought


@pytest.mark.parametrize(
    ("text", "size"),
    [("2GiB", 2**31), ("512 MiB", 2**29), ("1.5GB", 1_500_000_000), ("2g", 2 * 10**9), ("4096", 4096), ("1KiB", 1024)],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "lots", "-1", "0", "2 GiBs", "1e9", "iB", "GiB"])
def test_wrong_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="size"):
        parse_size(text)


@pytest.mark.parametrize("key", ["", " ", "k ", "k\n", "clé"])
def test_keys_that_no_header_brings_are_refused(key: str) -> None:
    """An empty one would let everybody in who sends none, and say that keys are asked for."""
    with pytest.raises(ValueError, match="api_key"):
        ServerSettings(EngineSpec("demo"), api_keys=("good key", key))


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="served_model_name is empty"):
        ServerSettings(EngineSpec("demo"), served_model_names=("one", " "))
    for field, value in (("max_model_len", 0), ("max_model_len", -5), ("watchdog_s", 0.0), ("watchdog_s", -1.0)):
        with pytest.raises(ValueError, match=f"{field} is {value}"):
            EngineConfig(**{field: value})  # type: ignore[arg-type]


def test_a_context_that_the_model_lacks_is_said() -> None:
    assert context_text(8192, None) == context_text(8192, 8192) == "8,192 tokens"
    assert "asks for 1,000,000" in context_text(8192, 1_000_000)


def test_users_of_no_file_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """BIREME_USERS_DB=none tells a server to know no users; the same words make no file of that name."""
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["users", "add", "ann"], env={"BIREME_USERS_DB": "none"})
    assert result.exit_code == 2 and "name a file" in result.output and not list(tmp_path.iterdir())


def test_size_text() -> None:
    assert [size_text(n) for n in (5, 1536, 3 * 2**20, 5 * 2**30)] == ["5 B", "1.5 KiB", "3.0 MiB", "5.00 GiB"]


def test_default_names(tmp_path: Path) -> None:
    file = tmp_path / "Tiny.Q4_K_M.gguf"
    file.touch()
    assert default_name(str(file)) == "Tiny.Q4_K_M" and default_name("org/model:Q4_0") == "org/model:Q4_0"
    names = ServedNames.of("org/model:Q4_0", ())
    assert names.check("model:Q4_0") == names.check("org/model:Q4_0") == names.check(None) == "org/model:Q4_0"
    with pytest.raises(ApiError) as unknown:
        names.check("x" * 5000)
    assert unknown.value.status == 404 and len(unknown.value.message) < 400


def test_defaults_fill_only_what_was_left_out() -> None:
    """D22: 0 and 1 are given; null is not."""
    defaults = {"temperature": 0.6, "top_p": 0.9, "top_k": 20, "repetition_penalty": None, "max_new_tokens": 5}

    def params(**fields: Any) -> SamplingParams:
        body = ChatRequest(**fields)
        return sampling_params(body, max_tokens=5, logprobs=None, defaults=defaults, vocab_size=100)

    assert (params().temperature, params().top_p, params().top_k) == (0.6, 0.9, 20)
    assert params(temperature=0).temperature == 0 and params(top_p=1.0).top_p == 1 and params(top_k=0).top_k == 0
    assert params().repetition_penalty == 1.0
    off = sampling_params(ChatRequest(), max_tokens=5, logprobs=None, defaults={}, vocab_size=100)
    assert off.temperature == 1.0


def test_budget_is_cut_to_the_context() -> None:
    assert [budget(asked, 90, 100, "max_tokens") for asked in (None, 5, 10, 11, 10**30)] == [10, 5, 10, 10, 10]
    with pytest.raises(ApiError, match="max_tokens is 0"):
        budget(0, 90, 100, "max_tokens")


def test_wrong_fields_are_named_with_their_place() -> None:
    with pytest.raises(ApiError) as error:
        parse(b'{"stream_options": {"include_usage": "yes"}}', ChatRequest)
    assert error.value.param == "stream_options" and "stream_options.include_usage" in error.value.message


def test_billing_line_goes_only_from_the_head_of_a_system_message() -> None:
    line = "x-anthropic-billing-header: cch=1;\n"
    system, user, inner = (
        {"role": "system", "content": line + "rules"},
        {"role": "user", "content": line + "rules"},
        {"role": "system", "content": "rules\n" + line},
    )
    parts = {"role": "system", "content": [{"type": "text", "text": line}, {"type": "text", "text": "rules"}]}
    kept = without_billing_line([system, user, inner, parts])
    assert kept[0]["content"] == "rules" and kept[1:3] == [user, inner]
    assert kept[3]["content"][0]["text"] == "" and system["content"] == line + "rules"


def test_messages_survive_the_crossing() -> None:
    params = SamplingParams(max_tokens=3, logit_bias={5: -1.5}, stop_token_ids=(1, 2), seed=2**64 - 1, logprobs=2)
    request = Request("id", (1, 2, 3), params, "user", -1, "salt", 1.5)
    assert msgspec.msgpack.decode(encode(Add(request)), type=ToEngine) == Add(request)
    scores = (TokenLogprob(-0.5, (7, 8), (-0.5, -2.0)),)
    output = SequenceOutput("id", 1, (7,), scores, FinishReason.LENGTH, 2)
    step = Step([output], ["a"], [Rejected("b", "full", "queue_full", 2.0)], [("a", 0.25)])
    assert msgspec.msgpack.decode(encode(step), type=FromEngine) == step


def test_stream_delivers_what_came_before_a_failure() -> None:
    async def scenario() -> None:
        def new() -> RequestStream:
            return RequestStream("id", "prompt", asyncio.Event())

        stream = new()
        stream.put(SequenceOutput("id", 0, (1,)))
        stream.put(SequenceOutput("id", 0, (2,)))
        stream.fail(ApiError(500, "dead"))
        await stream.wait_accepted()
        assert [output.token_ids for output in stream.take()] == [(1,), (2,)]
        with pytest.raises(ApiError, match="dead"):
            stream.take()
        refused = new()
        refused.fail(ApiError(429, "full"))
        with pytest.raises(ApiError, match="full"):
            await refused.wait_accepted(1)
        await new().wait_accepted(0.01)  # no answer in time is no error
        assert new().take() == []

    asyncio.run(scenario())


def test_bound_port_is_known_and_exclusive() -> None:
    with bind("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(ListenError, match=f"port {port} .* taken"):
            bind("127.0.0.1", port)
    bind("127.0.0.1", port).close()


def test_frontend_holds_no_weights_open() -> None:
    frontend = load_frontend(str(scripted.SCRIPTED))
    assert frontend.tokenizer.vocab_size == 352
    short = asyncio.run(frontend.encode("x0"))
    assert short == (120, 48)
    long = asyncio.run(frontend.encode("x0" * 5000))
    assert len(long) == 10_000
    frontend.pool.shutdown()


def test_restarts_are_bounded_and_only_work_earns_new_ones() -> None:
    """Hours of idling between deaths don't count: what kills the engine is a request, sent again and again."""
    restarts, now = Restarts(3, 0.5), 0.0
    for expected in (0.5, 1.0, 2.0, None):
        restarts.stepped(now := now + 3600)
        restarts.stepped(now := now + 0.1)
        assert restarts.died() == expected
    restarts = Restarts(3, 0.5)
    assert restarts.died() == 0.5 and restarts.died() == 1.0
    for _ in range(int(SOUND_S / 0.5) + 2):
        restarts.stepped(now := now + 0.5)
    assert restarts.died() == 0.5


def test_folders_of_dead_servers_go_and_others_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    live, closed = SocketFolder(), SocketFolder()
    closed.remove()
    closed.remove()
    dead, young = tmp_path / f"{PREFIX}dead", tmp_path / f"{PREFIX}young"
    for path in (dead, young):
        path.mkdir()
    (dead / "lock").touch()
    for path in (dead, live.path):
        os.utime(path, (time.time() - 100,) * 2)
    remove_stale()
    assert set(tmp_path.iterdir()) == {live.path, young}
    assert live.path.stat().st_mode & 0o777 == 0o700
    live.remove()
    assert not live.path.exists()
