"""Completion in shells: the scripts, and what they ask the command line."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

MAIN = "import sys; sys.argv[0] = 'bireme'; from bireme.server.cli import main; main()"


def bireme(*arguments: str, **environment: str) -> str:
    command = [sys.executable, "-c", MAIN, *arguments]
    return subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=60).stdout


@pytest.mark.parametrize(
    "shell, word", [("bash", "complete -o"), ("zsh", "#compdef bireme"), ("fish", "complete --command bireme")]
)
def test_scripts(shell: str, word: str, tmp_path: Path) -> None:
    script = bireme("--show-completion", shell, _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    assert word in script and "_BIREME_COMPLETE" in script
    if shutil.which(shell):
        (tmp_path / "script").write_text(script)
        subprocess.run([shell, "-n", str(tmp_path / "script")], check=True, timeout=30)


def test_install_writes_into_the_home_folder(tmp_path: Path) -> None:
    bireme("--install-completion", "bash", HOME=str(tmp_path), _TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION="1")
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any("_BIREME_COMPLETE" in path.read_text() for path in written)
    assert any("bireme" in path.read_text() for path in written if path.name == ".bashrc")


def completed(line: str, **environment: str) -> list[str]:
    words = line.split(" ")
    environment |= {"_BIREME_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    return bireme(**environment).split()


def test_commands_options_and_values() -> None:
    assert {"serve", "run", "pull", "models", "doctor", "users"} <= set(completed("bireme "))
    assert "--max-num-seqs" in completed("bireme serve --max-num")
    assert completed("bireme serve --device c") == ["cpu", "cuda"]


def test_models_by_name_and_path(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "x.gguf").touch()
    home = {"BIREME_CACHE": str(tmp_path), "HF_HUB_CACHE": str(tmp_path)}
    for command in ("serve", "run"):
        assert completed(f"bireme {command} dem", **home) == ["demo"]
    assert completed("bireme models rm ", **home) == [str(tmp_path / "models" / "x.gguf")]
    assert completed(f"bireme serve {tmp_path}/mod", **home | {"BIREME_CACHE": "/nowhere"}) == [f"{tmp_path}/models/"]
    assert completed(f"bireme serve {tmp_path}/models/", **home) == [str(tmp_path / "models" / "x.gguf")]


def test_no_help_loads_what_is_heavy() -> None:
    code = """
import sys
from bireme.server.cli import app
for words in ([], ["serve"], ["run"], ["pull"], ["models"], ["models", "rm"], ["doctor"], ["users"], ["plan"]):
    try:
        app([*words, "--help"])
    except SystemExit as end:
        assert end.code == 0
heavy = {"torch", "mlx", "triton", "numba", "transformers", "fastapi", "uvicorn", "huggingface_hub", "tokenizers"}
print("LOADED", *sorted(heavy & set(sys.modules)))
"""
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60).stdout
    assert shown.splitlines()[-1].split() == ["LOADED"]
