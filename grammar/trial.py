"""Grammars are compiled in a process of their own first: what never ends, takes all memory or breaks the library's
stack costs that process, and nobody's answer.

Run as ``python -m bireme.grammar.trial``. It reads MessagePack after a length of four bytes: a ``TokenTable``, then one
``GrammarSpec`` after the other, and answers each with a ``Verdict``.
"""

from __future__ import annotations

import contextlib
import os
import random
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable

import msgspec
import numpy as np

from ..core.grammar import Grammar, GrammarError, GrammarSpec
from .vocabulary import TokenTable

#: Of the trial's thread. Threads that follow grammars have far more (``core/masks.py``): what passed here fits there.
STACK_BYTES = 4 << 20
#: Bytes that a trial may take beside what the process has from the start.
MEMORY_BYTES = 1 << 30
#: Tokens of a grammar that are followed.
WALK = 8
#: Seconds for the process to start.
START_TIMEOUT = 60.0


class Verdict(msgspec.Struct):
    """The grammar as the library reads it, or why there is none."""

    text: str = ""
    error: str | None = None


class Trials:
    """The compiling process as seen from outside: started when first needed, and again after it had to end."""

    def __init__(self, table: Callable[[], TokenTable], timeout: float) -> None:
        """``table`` gives the vocabulary, or raises ``GrammarError``; ``timeout``: seconds one grammar may take."""
        self._table = table
        self._timeout = timeout
        self._process: subprocess.Popen[bytes] | None = None

    def run(self, spec: GrammarSpec) -> str:
        """The library's text of ``spec``, which has been compiled there without harm.

        Raises:
            GrammarError: it can't be compiled, or not within the limits.
        """
        process = self._process or self._start()
        try:
            _send(process, msgspec.msgpack.encode(spec))
            verdict = msgspec.msgpack.decode(_receive(process, self._timeout), type=Verdict)
        except TimeoutError:
            self.close()
            raise GrammarError(
                f"it took longer than {self._timeout:g} s to compile, the most allowed (grammar_timeout_s)"
            ) from None
        except (EOFError, OSError):
            self.close()
            raise GrammarError("it is nested too deeply, or too large, to be compiled") from None
        if verdict.error is not None:
            raise GrammarError(verdict.error)
        return verdict.text

    def close(self) -> None:
        """End the process, whatever it does. Safe to call twice."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for pipe in (process.stdin, process.stdout):
            with contextlib.suppress(OSError):
                assert pipe is not None
                pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        table = msgspec.msgpack.encode(self._table())
        process = self._process = subprocess.Popen(
            (sys.executable, "-P", "-m", "bireme.grammar.trial", str(self._timeout)),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        try:
            _send(process, table)
            _receive(process, START_TIMEOUT)
        except (TimeoutError, EOFError, OSError):
            self.close()
            raise GrammarError("the process that compiles grammars did not start") from None
        return process


def _send(process: subprocess.Popen[bytes], data: bytes) -> None:
    assert process.stdin is not None
    process.stdin.write(len(data).to_bytes(4, "little") + data)
    process.stdin.flush()


def _receive(process: subprocess.Popen[bytes], timeout: float) -> bytes:
    assert process.stdout is not None
    until = time.monotonic() + timeout
    data = b""
    wanted = 4
    while len(data) < wanted:
        if not select.select([process.stdout], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        piece = os.read(process.stdout.fileno(), 1 << 16)
        if not piece:
            raise EOFError
        data += piece
        if wanted == 4 and len(data) >= 4:
            wanted += int.from_bytes(data[:4], "little")
    return data[4:]


def _read_message() -> bytes | None:
    head = sys.stdin.buffer.read(4)
    return sys.stdin.buffer.read(int.from_bytes(head, "little")) if len(head) == 4 else None


def _write_message(data: bytes) -> None:
    sys.stdout.buffer.write(len(data).to_bytes(4, "little") + data)
    sys.stdout.buffer.flush()


def _limit_memory() -> None:
    """Where the system keeps to such limits (Linux)."""
    if not sys.platform.startswith("linux"):
        return
    import resource

    with open("/proc/self/statm", encoding="ascii") as file:
        used = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY_BYTES, used + MEMORY_BYTES))


def _walk(grammar: Grammar, vocab_size: int) -> None:
    """Follow the grammar a few tokens at random: some become too large only then. Raises ``GrammarError``."""
    rng, matcher, mask = random.Random(0), grammar.matcher(), grammar.first_mask.copy()
    for _ in range(WALK):
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")[:vocab_size])
        if matcher.complete or matcher.accepting or not len(allowed):
            return
        matcher.accept(int(rng.choice(allowed)))
        if not matcher.complete:
            matcher.fill(mask)


def _serve(seconds: int) -> None:
    from .library import LibraryGrammar, grammar_text, open_tokens

    data = _read_message()
    if data is None:
        return
    tokens = open_tokens(msgspec.msgpack.decode(data, type=TokenTable))
    _limit_memory()
    _write_message(b"")
    while (data := _read_message()) is not None:
        signal.alarm(seconds)  # should nobody be left to end this process
        try:
            text = grammar_text(msgspec.msgpack.decode(data, type=GrammarSpec))
            _walk(LibraryGrammar(tokens, text), tokens.vocab_size)
            verdict = Verdict(text)
        except GrammarError as error:
            verdict = Verdict(error=str(error))
        except MemoryError:
            verdict = Verdict(error="it needs too much memory to be compiled")
        signal.alarm(0)
        _write_message(msgspec.msgpack.encode(verdict))


def main() -> None:
    """Entry point of the compiling process."""
    seconds = int(float(sys.argv[1])) + 2
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, args=(seconds,), daemon=True)
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
