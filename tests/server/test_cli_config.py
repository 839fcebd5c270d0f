"""Settings of ``bireme serve`` from the environment and from files, and which of them wins."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer.testing import CliRunner, Result

from bireme.server.cli import app

#: Options that take one of some words, or a text with a form: a word that is not the default.
WORDS = {
    "device": "cpu",
    "cpu_precision": "exact",
    "mlx_weights": "dense",
    "slo_policy": "refuse",
    "log_level": "debug",
    "prefix_cache_scope": "user",
}
NOT_SETTINGS = {"help", "config_file", "show_config"}


def params() -> dict[str, Any]:
    command = typer.main.get_command(app).commands["serve"]  # type: ignore[attr-defined]
    return {param.name: param for param in command.params if param.name not in NOT_SETTINGS}


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working directory and an empty home."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    return tmp_path


def shown(*arguments: str, **environment: str) -> tuple[dict[str, Any], dict[str, str]]:
    """(settings, where each came from) of ``--show-config``."""
    result = asked(*arguments, **environment)
    assert result.exit_code == 0, result.output
    origins = {}
    for line in result.stdout.splitlines()[1:]:
        key, _, rest = line.removeprefix("# ").partition(" =")
        origins[key] = rest.rpartition("  # ")[2]
    return tomllib.loads(result.stdout)["serve"], origins


def asked(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(app, ["serve", "--show-config", *arguments], env={"COLUMNS": "500", **environment})


def write(path: Path, text: str, mode: int = 0o600) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def _sample(name: str) -> tuple[str, Any]:
    """(text in the environment, value)."""
    param = params()[name]
    if getattr(param, "is_flag", False):
        return ("0", False) if param.default else ("1", True)
    if name in WORDS:
        return WORDS[name], WORDS[name]
    if getattr(param, "multiple", False):
        return "one two", ["one", "two"]
    if isinstance(param.default, float):
        return "0.75", 0.75
    return "7", 7


def test_every_setting_has_its_variable() -> None:
    samples = {name: _sample(name) for name in params()}
    found, origins = shown(**{f"BIREME_{name.upper()}": text for name, (text, _) in samples.items()})
    for name, (_, value) in samples.items():
        key = name.replace("_", "-")
        assert origins[key] == f"BIREME_{name.upper()}"
        assert name == "api_key" or found[key] in (value, str(value))


def test_every_setting_can_stand_in_a_file(elsewhere: Path) -> None:
    before, _ = shown()
    lines = [f"{name.replace('_', '-')} = {_toml(_sample(name)[1])}" for name in params()]
    write(elsewhere / "all.toml", "\n".join(["[serve]", *lines]))
    found, origins = shown("--config", str(elsewhere / "all.toml"))
    assert set(origins.values()) == {str(elsewhere / "all.toml")}
    assert not {key for key, value in found.items() if before.get(key) == value}


def _toml(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else repr(value)


def test_the_command_line_wins_then_the_environment_then_the_file(elsewhere: Path) -> None:
    write(elsewhere / "work" / "bireme.toml", '[serve]\nmodel = "demo"\nport = 1111\nmax_queue = 5\ngrace = 2\n')
    found, origins = shown("--grace", "9", BIREME_MAX_QUEUE="6", BIREME_GRACE="7")
    assert (found["grace"], found["max-queue"], found["port"]) == (9.0, 6, 1111)
    assert origins["grace"] == "command line" and origins["max-queue"] == "BIREME_MAX_QUEUE"
    assert origins["port"] == origins["model"] == "bireme.toml" and origins["max-n"] == "default"


def test_what_is_shown_can_be_read_again(elsewhere: Path) -> None:
    text = 'weird "name" \\ ü\x7f'
    first = asked("m", "--served-model-name", text, "--no-enable-prefix-caching", "--slo", "ttft=1s")
    write(elsewhere / "again.toml", first.stdout)
    again, _ = shown("--config", str(elsewhere / "again.toml"))
    assert again == tomllib.loads(first.stdout)["serve"]
    assert again["served-model-name"] == [text]


def test_usual_places(elsewhere: Path) -> None:
    user = write(elsewhere / "home" / "bireme" / "config.toml", "[serve]\nport = 2222\n")
    assert shown()[1]["port"] == str(user)
    write(elsewhere / "work" / "bireme.toml", "[serve]\n")
    assert shown()[0]["port"] == 8000  # one file is read, the nearer one
    assert shown("--config", str(user))[0]["port"] == 2222
    assert shown("--config", "none")[1]["port"] == "default"
    assert "Settings are taken from bireme.toml" in asked().stderr


@pytest.mark.parametrize(
    "text, words",
    [
        ("[serve]\nprot = 1", "has no setting 'prot'; did you mean 'port'?"),
        ("[serve]\nxyzzy = 1", "'bireme serve --help' lists the options"),
        ("[serve]\nport = 'x'", "port = 'x'"),
        ("[serve]\nport = 1.5", "port = '1.5'"),
        ("[serve]\nport = true", "wanted: a number or a text"),
        ("[serve]\nmax-n = 1000000", "max-n = '1000000'"),
        ("[serve]\ndevice = 'tpu'", "'tpu' is not one of"),
        ("[serve]\ncors-credentials = 'yes'", "wanted: true or false"),
        ("[serve]\nserved-model-name = [['a']]", "wanted: a number or a text"),
        ("port = 1", "settings stand in the table [serve]"),
        ("[server]\nport = 1", "'server' is not known there"),
        ("serve = 3", "settings stand in the table [serve]"),
        ("[serve", "bad.toml"),
    ],
)
def test_what_is_wrong_in_a_file_is_named(elsewhere: Path, text: str, words: str) -> None:
    result = asked("--config", str(write(elsewhere / "bad.toml", text)))
    assert result.exit_code == 2
    said = " ".join(result.output.replace("│", " ").split())
    assert words in said and "bad.toml" in said


def test_a_file_that_is_not_there() -> None:
    result = asked("--config", "nowhere.toml")
    assert result.exit_code == 2 and "there is no file nowhere.toml" in result.output


def test_a_key_in_a_file_for_all_to_read_is_warned_of_and_never_shown(elsewhere: Path) -> None:
    path = write(elsewhere / "k.toml", "[serve]\napi-key = 'sesame'\n", mode=0o644)
    open_ = asked("--config", str(path))
    assert f"chmod 600 {path}" in open_.stderr.replace("\n", "") and "sesame" not in open_.output
    assert "1 given, not shown" in open_.stdout
    path.chmod(0o600)
    assert "chmod" not in asked("--config", str(path)).stderr
    path.chmod(0o640)
    assert f"chmod 600 {path}" in asked("--config", str(path)).stderr.replace("\n", "")
    write(path, "[serve]\napi-key = [['sesame']]\n")
    assert "sesame" not in asked("--config", str(path)).output


def test_the_group_may_read_a_key_in_a_file_of_somebody_else(elsewhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(elsewhere / "k.toml", "[serve]\napi-key = 'sesame'\n", mode=0o640)
    monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert "chmod" not in asked("--config", str(path)).stderr
    path.chmod(0o644)
    assert f"chmod 640 {path}" in asked("--config", str(path)).stderr.replace("\n", "")


def test_a_port_that_kubernetes_sets_is_none() -> None:
    result = asked(BIREME_PORT="tcp://10.0.0.1:8000")
    assert result.exit_code == 0 and "ignored" in result.stderr
    assert tomllib.loads(result.stdout)["serve"]["port"] == 8000


def test_serving_needs_a_model() -> None:
    result = CliRunner().invoke(app, ["serve"])
    assert result.exit_code == 2 and "MODEL" in result.output


def test_slips_in_the_environment_are_named() -> None:
    wrong = asked(BIREME_PORT="abc")
    assert wrong.exit_code == 2 and "BIREME_PORT" in wrong.output
    assert "sesame" not in asked(BIREME_API_KEY="sesame", BIREME_MAX_N="x").output
    near = asked(BIREME_MAX_QUEU="3", BIREME_CACHE="/x")
    assert near.exit_code == 0 and near.stderr.count("is ignored") == 1
    assert "BIREME_MAX_QUEU is no option's variable and is ignored; BIREME_MAX_QUEUE is one" in near.stderr
