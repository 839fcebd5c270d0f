"""``bireme run``: one answer for scripts, and the chat on a terminal of its own."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted
from api_bodies import PATIENCE

from bireme.server.terminal.answer import Answer, receive
from bireme.server.terminal.connection import Connection, Delta, ServerError
from bireme.server.terminal.display import Display

RUN = [sys.executable, "-m", "bireme.server.cli", "run"]
HELLO = scripted.TRIGGERS["0"].text


def once(*arguments: str, typed: str = "", **options: Any) -> subprocess.CompletedProcess[str]:
    command = [*RUN, *arguments, "--temperature", "0"]
    return subprocess.run(command, input=typed, capture_output=True, text=True, timeout=120, **options)


def test_one_answer_is_plain_text(server: Any) -> None:
    result = once("--url", server.url, "go 0")
    assert (result.returncode, result.stdout, result.stderr) == (0, HELLO + "\n", "")


def test_piped_text_is_the_question_or_its_end(server: Any) -> None:
    assert once("--url", server.url + "/v1/", typed="go 0\n").stdout == HELLO + "\n"
    assert once("--url", server.url, "scripted", "go 5", typed="and then 0").stdout == HELLO + "\n"


def test_what_was_cut_off_is_said(server: Any) -> None:
    result = once("--url", server.url, "go 6", "--max-tokens", "6")
    assert result.returncode == 0 and result.stdout.startswith("tick tock") and "length limit" in result.stderr


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (("--url", "http://127.0.0.1:9", "x"), 1, "no server answers at http://127.0.0.1:9"),
        (("--url", "ftp://x", "x"), 2, "is no address of a server"),
        (("--port", "9"), 2, "name a MODEL"),
        (("/no/such.gguf", "x", "--port", "9"), 2, "/no/such.gguf"),
        (("m", "x", "--top-p", "2"), 2, "top_p is 2; it must be from 0 to 1"),
        (("m", "x", "--seed", "soon"), 2, "seed is 'soon'; wanted: a number"),
        (("--port", "0"), 2, "port"),
    ],
)
def test_what_goes_wrong_is_one_line(arguments: tuple[str, ...], code: int, words: str) -> None:
    result = once(*arguments)
    assert result.returncode == code and result.stdout == "" and words in result.stderr


def test_a_model_that_the_server_has_not(server: Any) -> None:
    result = once("--url", server.url, "other", "x")
    assert result.returncode == 2 and "has no model 'other'; it has scripted" in result.stderr
    assert "there is no question" in once("--url", server.url).stderr


def test_keys(start_server: Any) -> None:
    guarded = start_server("--device", "sim", "--api-key", "sesame")
    guarded.wait_serving()
    refused = once("--url", guarded.url, "x")
    assert refused.returncode == 1 and "key" in refused.stderr.lower()
    assert once("--url", guarded.url, "x", "--max-tokens", "3", "--api-key", "sesame").returncode == 0
    by_environment = once(
        "--url", guarded.url, "x", "--max-tokens", "3", env={**os.environ, "BIREME_API_KEY": "sesame"}
    )
    assert by_environment.returncode == 0


def test_a_server_that_has_the_model_is_used(server: Any) -> None:
    port = server.url.rpartition(":")[2]
    before = server.metrics()["vllm:prompt_tokens_total"]
    assert once(str(scripted.SCRIPTED), "go 0", "--port", port).stdout == HELLO + "\n"
    assert once("--port", port, "", typed="").returncode == 2  # no question
    assert server.metrics()["vllm:prompt_tokens_total"] > before


def test_a_server_of_its_own_ends_with_it(tmp_path: Path) -> None:
    folder = tmp_path / "t"
    folder.mkdir()
    command = (str(scripted.SCRIPTED), "go 0", "--device", "cpu", "--threads", "1", "--kv-cache-memory", "8MiB")
    result = once(*command, env={**os.environ, "TMPDIR": str(folder)})
    assert (result.returncode, result.stdout, result.stderr) == (0, HELLO + "\n", "")
    assert list(folder.iterdir()) == []  # no socket, no log, no process that holds them
    (tmp_path / "bad.gguf").write_bytes(b"GGUF nonsense")
    failed = once(str(tmp_path / "bad.gguf"), "x", "--device", "cpu")
    assert failed.returncode == 2 and failed.stdout == "" and failed.stderr.count("\n") == 1
    assert failed.stderr.startswith("bireme: ") and "bad.gguf" in failed.stderr


def test_what_its_server_has_no_use_for_is_said() -> None:
    result = once(str(scripted.SCRIPTED), "x", "--device", "sim", "--threads", "1", "--max-tokens", "3")
    said = "bireme: ignored, since the device is sim: threads (for cpu and cuda)"
    assert result.returncode == 0 and said in result.stderr.splitlines()


def test_a_reader_that_leaves_is_no_error_message(paced: Any) -> None:
    command = [*RUN, "--url", paced.url, "go 6", "--temperature", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.stdout.close()
        assert process.wait(PATIENCE) == 1 and b"Traceback" not in process.stderr.read()
    paced.wait_idle()


def test_ctrl_c_stops_one_answer(paced: Any) -> None:
    command = [*RUN, "--url", paced.url, "go 6", "--temperature", "0"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout and process.stderr
        process.stdout.read(10)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=PATIENCE)
        assert process.returncode == 130
    paced.wait_idle()


class Terminal:
    """A pseudo terminal with ``bireme run`` in it."""

    def __init__(self, command: list[str], environment: dict[str, str]) -> None:
        self.pid, self._end = pty.fork()
        if self.pid == 0:
            os.execvpe(command[0], command, {**os.environ, "TERM": "xterm", "COLUMNS": "80", **environment})
        self.seen = ""
        self._mark = 0

    def type(self, text: str) -> None:
        os.write(self._end, text.encode())

    def wait_for(self, words: str, timeout: float = PATIENCE) -> None:
        """Until ``words`` come behind what was waited for last."""
        until = time.monotonic() + timeout
        while words not in self.seen[self._mark :]:
            assert time.monotonic() < until, self.seen
            if select.select([self._end], [], [], 0.1)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self._end, 65536).decode(errors="replace")
        self._mark = self.seen.index(words, self._mark) + len(words)

    def ended(self) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def terminal(paced: Any, tmp_path: Path) -> Iterator[Terminal]:
    command = [*RUN, "--url", paced.url, "--temperature", "0"]
    one = Terminal(command, {"XDG_DATA_HOME": str(tmp_path), "HOME": str(tmp_path)})
    one.wait_for(">>> ")
    yield one
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(one.pid, signal.SIGKILL)


def test_a_chat(terminal: Terminal, paced: Any, tmp_path: Path) -> None:
    terminal.type("go 0\n")
    terminal.wait_for("hello there!")
    terminal.wait_for(">>> ")
    terminal.type('"""several\n')
    terminal.wait_for("... ")
    terminal.type('lines 7"""\n')
    terminal.wait_for("bye")
    terminal.wait_for(">>> ")
    terminal.type("go 6\n")
    terminal.wait_for("tick tock")
    terminal.type("\x03")
    terminal.wait_for("(stopped)")
    paced.wait_idle()
    terminal.type(f"/save {tmp_path}/kept.json\n")
    terminal.wait_for("6 messages are in")
    terminal.wait_for(">>> ")
    terminal.type("\x03")
    terminal.wait_for("(Ctrl-D leaves)")
    terminal.wait_for(">>> ")
    terminal.type("\x04")
    assert terminal.ended() == 0
    history = tmp_path / "bireme" / "chat_history"
    if sys.platform == "darwin":
        history = tmp_path / "Library" / "Application Support" / "bireme" / "chat_history"
    assert "go 0" in history.read_text() and history.stat().st_mode & 0o077 == 0


def test_an_answer_that_breaks_off_is_said() -> None:
    def broken() -> Generator[Delta, None, None]:
        yield Delta("half")
        raise ServerError("the engine died")

    with pytest.raises(ServerError, match="the engine died"):
        receive(broken(), Display())


def test_statistics() -> None:
    times = iter([0.0, 0.5, 2.5])
    usage = {"prompt_tokens": 9, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 8}}
    deltas = (one for one in (Delta("a"), Delta("b"), Delta(finish="stop", usage=usage)))
    answer = receive(deltas, Display(), lambda: next(times))
    assert answer.statistics() == (
        "first token after 0.50 s; 2.50 s in all; 9 prompt tokens, 8 of them cached; 5 tokens made at 2.0 tokens/s"
    )
    assert Answer().statistics() == "no answer yet"


def test_addresses() -> None:
    for given in ("127.0.0.1:8000", "http://127.0.0.1:8000/", "http://127.0.0.1:8000/v1"):
        assert Connection(given).url == "http://127.0.0.1:8000"
    assert Connection("https://host/under/v1/").url == "https://host/under"
