"""Every option of ``bireme serve`` reaches what it is for, and the command line itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
import typer.main
from api_bodies import chat

from bireme import __version__
from bireme.core.config import EngineConfig
from bireme.server.cli import app
from bireme.server.settings import ServerSettings

#: option -> (value given, where /server_info shows it, value expected there)
WALK: dict[str, tuple[list[str], tuple[str, str], Any]] = {
    "--block-size": (["--block-size", "32"], ("engine", "block_size"), 32),
    "--max-num-seqs": (["--max-num-seqs", "7"], ("engine", "max_num_seqs"), 7),
    "--max-num-batched-tokens": (["--max-num-batched-tokens", "96"], ("engine", "max_num_batched_tokens"), 96),
    "--max-model-len": (["--max-model-len", "300"], ("engine", "max_model_len"), 300),
    "--kv-cache-memory": (["--kv-cache-memory", "48KiB"], ("engine", "kv_cache_memory"), 48 * 2**10),
    "--gpu-memory-fraction": (["--gpu-memory-fraction", "0.5"], ("engine", "gpu_memory_fraction"), 0.5),
    "--kv-cache-dtype": (["--kv-cache-dtype", "int8"], ("engine", "kv_cache_dtype"), "int8"),
    "--max-stall-ms": (["--max-stall-ms", "75"], ("engine", "max_stall_ms"), 75.0),
    "--max-queue": (["--max-queue", "9"], ("engine", "max_queue"), 9),
    "--enable-prefix-caching": (["--no-enable-prefix-caching"], ("engine", "enable_prefix_caching"), False),
    "--grammar-timeout-s": (["--grammar-timeout-s", "3"], ("engine", "grammar_timeout_s"), 3.0),
    "--grammar-cache": (["--grammar-cache", "5"], ("engine", "grammar_cache"), 5),
    "--max-schema-bytes": (["--max-schema-bytes", "5000"], ("server", "max_schema_bytes"), 5000),
    "--max-schema-depth": (["--max-schema-depth", "9"], ("server", "max_schema_depth"), 9),
    "--watchdog-s": (["--watchdog-s", "33"], ("engine", "watchdog_s"), 33.0),
    "--device": (["--device", "cpu"], ("backend", "device"), "cpu"),
    "--cpu-precision": (["--cpu-precision", "exact"], ("options", "cpu_precision"), "exact"),
    "--mlx-weights": (["--mlx-weights", "dense"], ("options", "mlx_weights"), "dense"),
    "--threads": (["--threads", "1"], ("options", "threads"), 1),
    "--tensor-parallel": (["--tensor-parallel", "2"], ("backend", "ranks"), 2),
    "--served-model-name": (
        ["--served-model-name", "one", "--served-model-name", "org/two"],
        ("server", "served_model_names"),
        ["one", "org/two"],
    ),
    "--generation-defaults": (["--no-generation-defaults"], ("server", "generation_defaults"), {}),
    "--tool-parser": (["--tool-parser", "glm45"], ("server", "tool_parser"), "glm"),
    "--reasoning-parser": (["--reasoning-parser", "think"], ("server", "reasoning_parser"), "think"),
    "--api-key": (["--api-key", "k1", "--api-key", "k2"], ("server", "api_key"), True),
    "--max-queue-per-user": (["--max-queue-per-user", "5"], ("engine", "max_queue_per_user"), 5),
    "--slo": (["--slo", "ttft=90s,tpot=4s"], ("engine", "slo"), {"ttft": 90.0, "tpot": 4.0}),
    "--slo-policy": (["--slo-policy", "refuse"], ("engine", "slo_policy"), "refuse"),
    "--users-db": (["--users-db", "none"], ("server", "users_db"), "none"),
    "--prefix-cache-scope": (["--prefix-cache-scope", "user"], ("server", "prefix_cache_scope"), "user"),
    "--trusted-proxies": (["--trusted-proxies", "192.0.2.0/24"], ("server", "trusted_proxies"), ["192.0.2.0/24"]),
    "--cors-origins": (["--cors-origins", "http://ui.example"], ("server", "cors_origins"), ["http://ui.example"]),
    "--cors-credentials": (["--cors-credentials"], ("server", "cors_credentials"), True),
    "--max-body-size": (["--max-body-size", "2MiB"], ("server", "max_body_size"), 2 * 2**20),
    "--max-header-size": (["--max-header-size", "8KiB"], ("server", "max_header_size"), 8 * 2**10),
    "--response-store-size": (["--response-store-size", "3MiB"], ("server", "response_store_size"), 3 * 2**20),
    "--max-messages": (["--max-messages", "30"], ("server", "max_messages"), 30),
    "--max-tools": (["--max-tools", "3"], ("server", "max_tools"), 3),
    "--max-prompts": (["--max-prompts", "4"], ("server", "max_prompts"), 4),
    "--max-stop-strings": (["--max-stop-strings", "2"], ("server", "max_stop_strings"), 2),
    "--max-n": (["--max-n", "3"], ("server", "max_n"), 3),
    "--max-logprobs": (["--max-logprobs", "5"], ("server", "max_logprobs"), 5),
    "--max-logit-bias": (["--max-logit-bias", "6"], ("server", "max_logit_bias"), 6),
    "--grace": (["--grace", "2.5"], ("server", "grace"), 2.5),
}
KEY = {"Authorization": "Bearer k2"}


@pytest.fixture(scope="module")
def walked(start_server: Any, with_defaults: Path) -> Any:
    server = start_server(*(word for given, _, _ in WALK.values() for word in given), model=with_defaults)
    server.wait_serving()
    return server


def options() -> dict[str, Any]:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {option.opts[0]: option for option in command.params if option.opts[0].startswith("--")}


def test_every_option_is_walked() -> None:
    # F08: in every other test's server, in the log below, or in test_cli_config.py
    elsewhere = {"--host", "--port", "--log-level", "--config", "--show-config"}
    assert set(options()) - elsewhere == set(WALK)


@pytest.mark.parametrize("option", WALK)
def test_option_reaches_the_engine(walked: Any, option: str) -> None:
    _, (part, name), expected = WALK[option]
    info = walked.get("/server_info", **KEY).json()
    assert info[part][name] == expected
    if part == "engine":
        assert getattr(EngineConfig(), name) != expected


def test_effects_are_real(walked: Any) -> None:
    """Not only echoed: no prefix is reused, the context is 300, the pool is small, the arithmetic exact."""
    for _ in range(2):
        body = chat("0", model="two")
        body["messages"].insert(0, {"role": "system", "content": "again " * 30})
        usage = walked.post("/v1/chat/completions", body, **KEY).json()["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0
    long = walked.post("/v1/completions", {"prompt": [120] * 300}, **KEY).json()["error"]
    assert "maximum context length is 300 tokens" in long["message"]
    backend = walked.get("/server_info", **KEY).json()["backend"]
    assert backend["num_blocks"] * 32 * backend["kv_bytes_per_token"] <= 48 * 2**10
    assert backend["kv_cache_dtype"] == "int8"
    assert backend["block_size"] == 32 and "int8" not in backend["quantization"]
    for words in (
        "max_num_seqs=7",
        "ignored, since the device is cpu: mlx_weights (for mlx), gpu_memory_fraction (for cuda)",
        "max_queue=9",
        "enable_prefix_caching=False",
        "the model's generation defaults are off",
    ):
        assert words in walked.log


def test_generation_defaults_fill_what_was_left_out(small: Any) -> None:
    """D22: the model says temperature 100 and top-k 1. What a request gives counts, 0 too."""

    def answer(**fields: Any) -> str:
        body = {"messages": chat("0")["messages"], "seed": 5, "max_tokens": 12, **fields}
        return str(small.post("/v1/chat/completions", body).json()["choices"][0]["message"]["content"])

    script = " hello there!"
    assert answer() == answer(temperature=None, top_k=None) == answer(temperature=3.0) == script
    assert answer(top_k=0) != script
    assert answer(top_k=0, temperature=0) == answer(top_k=0, temperature=0.01) == script
    assert "defaults     temperature=100.0, top_k=1" in small.log


def test_generation_defaults_switched_off(walked: Any) -> None:
    """D22: the same model; nothing of its defaults is left, and the start says so."""
    answers = [
        walked.post("/v1/completions", {"prompt": "x0", "seed": 5, "max_tokens": 12, **fields}, **KEY).json()["choices"]
        for fields in ({}, {"temperature": 1, "top_k": 0}, {"temperature": 100})
    ]
    assert answers[0] == answers[1] != answers[2]
    assert "defaults     the model's generation defaults are off" in walked.log


def test_larger_than_the_whole_cache(walked: Any) -> None:
    """C01: a prompt that never fits is refused at once, what grows to the cache's end has its length; others go on."""
    backend = walked.get("/server_info", **KEY).json()["backend"]
    room = backend["num_blocks"] * backend["block_size"]
    assert 100 < room < 299
    words = "again " * (room // 6)
    conversation = [{"role": "system", "content": words}, *chat("0")["messages"]]
    for path, field, value in (
        ("/v1/completions", "prompt", [120] * room),
        ("/v1/chat/completions", "messages", conversation),
    ):
        for stream in (False, True):
            refused = walked.post(path, {field: value, "max_tokens": 5, "stream": stream}, **KEY)
            assert refused.status_code == 400
            error = refused.json()["error"]
            assert (error["code"], error["param"]) == ("kv_cache_exceeded", field) and str(room) in error["message"]
    assert walked.post("/v1/chat/completions", chat("0", max_tokens=3), **KEY).status_code == 200
    body = {"prompt": [120] * (room - 20), "max_tokens": 250, "ignore_eos": True}
    grown = walked.post("/v1/completions", body, **KEY).json()
    assert grown["choices"][0]["finish_reason"] == "length"
    assert room - 2 <= grown["usage"]["total_tokens"] <= room + 1
    assert walked.post("/v1/chat/completions", chat("0", max_tokens=3), **KEY).status_code == 200


def test_keys(walked: Any) -> None:
    """B29: asked for on everything but probes and preflights."""
    for path, headers in (
        ("/v1/models", {}),
        ("/v1/models", {"Authorization": "Bearer k3"}),
        ("/v1/models", {"Authorization": "k1"}),
        ("/v1/models", {"Authorization": "Bearer k1 k2"}),
        ("/server_info", {}),
    ):
        refused = walked.get(path, **headers)
        assert refused.status_code == 401 and refused.json()["error"]["code"] == "invalid_api_key"
    for headers in ({"Authorization": "Bearer k1"}, {"authorization": "bearer k2"}, {"x-api-key": "k1"}):
        assert walked.get("/v1/models", **headers).status_code == 200
    assert walked.post("/v1/chat/completions", chat("0")).status_code == 401
    assert walked.get("/health").status_code == walked.get("/metrics").status_code == 200
    asked = {
        "Origin": "http://ui.example",
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, content-type",
    }
    preflight = httpx.options(walked.url + "/v1/chat/completions", headers=asked)
    assert preflight.status_code == 200 and preflight.headers["access-control-allow-origin"] == "http://ui.example"
    assert "authorization" in preflight.headers["access-control-allow-headers"].lower()
    assert "POST" in preflight.headers["access-control-allow-methods"]
    refused = httpx.post(walked.url + "/v1/chat/completions", json={}, headers={"Origin": "http://ui.example"})
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == "http://ui.example"


def test_names(walked: Any) -> None:
    """B28: each served name, and its last part; the file's own name is not served once names are given."""
    for name, served in (("one", "one"), ("org/two", "org/two"), ("two", "org/two"), (None, "one")):
        answer = walked.post("/v1/chat/completions", chat("0", model=name), **KEY)
        assert answer.json()["model"] == served
    assert walked.post("/v1/chat/completions", chat("0", model="scripted"), **KEY).status_code == 404
    assert [card["id"] for card in walked.get("/v1/models", **KEY).json()["data"]] == ["one", "org/two"]


def test_defaults_stand_in_one_place() -> None:
    """The command line's defaults are the records' own."""
    settings = ServerSettings.__dataclass_fields__
    found = options()
    for field in EngineConfig.__dataclass_fields__:
        default = found["--" + field.replace("_", "-")].default
        assert default == getattr(EngineConfig(), field)
    for name in ("host", "port", "grace", "generation_defaults", "log_level"):
        assert found["--" + name.replace("_", "-")].default == settings[name].default


def test_help_imports_nothing_heavy() -> None:
    probe = (
        "import sys; from bireme.server.cli import main; sys.argv = ['bireme', '--help']\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'torch', 'mlx', 'transformers', 'numpy', 'fastapi', 'zmq', 'tokenizers'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    shown = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, timeout=30)
    assert shown.returncode == 0, shown.stderr
    assert "serve" in shown.stdout
    version = subprocess.run([sys.executable, "-m", "bireme", "--version"], capture_output=True, text=True)
    assert version.stdout == f"bireme {__version__}\n"


def test_help_of_serve_names_every_option() -> None:
    shown = subprocess.run(
        [sys.executable, "-m", "bireme.server.cli", "serve", "--help"],
        capture_output=True,
        text=True,
        env={"COLUMNS": "200", "PATH": "", "NO_COLOR": "1", "TERM": "dumb"},
    ).stdout
    plain = re.sub(r"\x1b\[[0-9;]*m", "", shown)
    for option in options():
        assert option in plain
