"""From specifications to grammars, in threads: tried in a process first, then compiled here, and kept for a while."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue

from ..core.grammar import Grammar, GrammarError, GrammarSpec
from ..core.masks import start_thread
from ..models.tokenizer import Tokenizer
from .library import LibraryGrammar, Tokens, open_tokens
from .trial import Trials
from .vocabulary import TokenTable

log = logging.getLogger(__name__)

#: One grammar that takes its time holds up every other that is asked for; two do.
THREADS = 2
#: Characters of specifications whose grammars are kept: a compiled grammar takes tens of bytes for each.
KEPT_CHARACTERS = 4 << 20

Compiled = Future[Grammar]


class GrammarCompiler:
    """Compiles for one vocabulary. ``submit``, ``prepare`` and ``close`` are called from one thread.

    Nothing is there until the first grammar is asked for: no vocabulary, no thread, no process.
    """

    def __init__(self, read: Callable[[], Tokenizer], ends: frozenset[int], timeout: float, kept: int) -> None:
        """
        Args:
            read: reads the tokenizer; called once, from a thread. Where it fails, or the tokens can't be held to a
                grammar, every grammar asked for is refused with the reason.
            ends: ids that end a turn.
            timeout: seconds per grammar.
            kept: grammars, and reasons why there is none, that are remembered.
        """
        self._read = read
        self._ends = ends
        self._vocabulary: Future[tuple[TokenTable, Tokens]] = Future()
        self._opening = threading.Lock()
        self._timeout = timeout
        self._kept = kept
        self._known: OrderedDict[GrammarSpec, Compiled] = OrderedDict()  # done and under way
        self._characters = 0
        self._lock = threading.Lock()
        self._jobs: SimpleQueue[tuple[GrammarSpec, Compiled] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._trials: list[Trials] = []
        self._closed = False

    @classmethod
    def of(cls, tokenizer: Tokenizer, ends: frozenset[int], timeout: float, kept: int) -> GrammarCompiler:
        """A compiler for a tokenizer that is there already."""
        return cls(lambda: tokenizer, ends, timeout, kept)

    def prepare(self) -> None:
        """Open the vocabulary now, in the background, so that it is there when the first grammar is asked for."""
        if not self._threads:
            self._add_thread()

    def submit(self, spec: GrammarSpec) -> Compiled:
        """``spec``'s grammar, at once or later; a ``GrammarError`` where there is none. Equal ones are compiled once.

        A future that is cancelled before its turn is never worked on; others may have it too.
        """
        with self._lock:
            known = self._known.get(spec)
            if known is not None and not known.cancelled():
                self._known.move_to_end(spec)
                return known
            future: Compiled = Future()
            if known is None:
                self._characters += len(spec.text)
            self._known[spec] = future
            self._forget()
        if len(self._threads) < THREADS:
            self._add_thread()
        self._jobs.put((spec, future))
        return future

    def compile(self, spec: GrammarSpec) -> Grammar:
        """``spec``'s grammar, waited for. Raises ``GrammarError``."""
        return self.submit(spec).result()

    def close(self) -> None:
        """End threads and processes; what has not had its turn is given up."""
        self._closed = True
        for _ in self._threads:
            self._jobs.put(None)
        for trials in self._trials:
            trials.close()

    def _forget(self) -> None:
        """Let go of what was asked for longest ago. What is under way stays with those who wait for it."""
        while len(self._known) > self._kept or (self._characters > KEPT_CHARACTERS and len(self._known) > 1):
            spec, _ = self._known.popitem(last=False)
            self._characters -= len(spec.text)

    def _add_thread(self) -> None:
        trials = Trials(lambda: self._open()[0], self._timeout)
        self._trials.append(trials)
        self._threads.append(start_thread(lambda: self._work(trials), "grammar-compiler"))

    def _open(self) -> tuple[TokenTable, Tokens]:
        """The vocabulary, opened by whoever needs it first. Raises ``GrammarError``, each time for the same reason."""
        with self._opening:
            if not self._vocabulary.done():
                try:
                    self._vocabulary.set_result(_opened(self._read(), self._ends))
                except (ValueError, OSError) as error:
                    log.warning("answers can't be held to schemas or grammars: %s", error)
                    self._vocabulary.set_exception(GrammarError(str(error)))
                del self._read  # with all it holds of a file
        return self._vocabulary.result()

    def _work(self, trials: Trials) -> None:
        with contextlib.suppress(GrammarError):
            self._open()
        while (job := self._jobs.get()) is not None:
            spec, future = job
            if self._closed:
                future.cancel()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(LibraryGrammar(self._open()[1], trials.run(spec)))
            except GrammarError as error:
                future.set_exception(error)
            except Exception as error:
                log.exception("compiling a grammar failed")
                future.set_exception(GrammarError(f"compiling it failed: {error}"))
        trials.close()


def _opened(tokenizer: Tokenizer, ends: frozenset[int]) -> tuple[TokenTable, Tokens]:
    def encode(data: bytes) -> list[int]:
        return tokenizer.encode(data.decode("utf-8", "replace"), add_special_tokens=False, parse_special=False)

    table = TokenTable.of(tokenizer, ends)
    return table, open_tokens(table, encode)
