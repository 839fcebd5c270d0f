"""Threads that follow grammars while the device, or the engine itself, does something else.

A sequence's next mask depends on its last token, so it can only be made between that token's step and its own next one.
Grammar libraries release the GIL while they work: sequences are followed in parallel, and a grammar that is slow to
follow keeps nobody waiting but its own sequence.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from queue import Empty, SimpleQueue

from .constraint import Constraint, Outcome
from .sequence import Sequence

log = logging.getLogger(__name__)

#: Threads at most. A mask takes microseconds: more would only contend for the GIL.
_MOST_THREADS = 4
#: Bytes of each thread's stack: grammar libraries recurse over what users wrote. Only what is touched is real memory.
STACK_BYTES = 256 << 20

_Job = tuple[Sequence, Constraint, int, int]
_Done = tuple[Sequence, Outcome]


class MaskThreads:
    """Follows tokens in the background. No thread exists before the first is given."""

    def __init__(self) -> None:
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._done: SimpleQueue[_Done] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self.outstanding = 0  # given and not taken back
        self._fresh: set[Sequence] = set()  # given since the last ``take``

    def follow(self, seq: Sequence, constraint: Constraint, token: int) -> None:
        """Begin to find what may follow ``token``, the latest of ``seq``."""
        if len(self._threads) < min(_MOST_THREADS, os.cpu_count() or 1):
            self._threads.append(start_thread(self._work, "grammar-masks"))
        self.outstanding += 1
        self._fresh.add(seq)
        seq.waits_for_mask = True  # the engine's to say: a mask that a thread has made but nobody took is not there yet
        self._jobs.put((seq, constraint, token, seq.num_outputs))

    def take(self, patience: float, *, idle: bool = False) -> list[_Done]:
        """What has been found. Waits up to ``patience`` seconds for what was given since the last time; what
        takes longer comes when it comes, unless there is nothing else to do (``idle``)."""
        found: list[_Done] = []
        until = time.monotonic() + patience
        while self.outstanding:
            left = until - time.monotonic() if self._fresh or idle else 0.0
            try:
                seq, outcome = self._done.get(timeout=max(0.0, left))
            except Empty:
                break
            self._fresh.discard(seq)
            self.outstanding -= 1
            seq.waits_for_mask = False
            found.append((seq, outcome))
        self._fresh.clear()
        return found

    def close(self) -> None:
        """Let the threads end."""
        for _ in self._threads:
            self._jobs.put(None)
        self._threads.clear()

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            seq, constraint, token, made = job
            try:
                outcome = constraint.follow(token, made)
            except Exception as error:
                log.exception("following a grammar failed")
                constraint.error, outcome = f"following the grammar failed: {error}", Outcome.FAILED
            self._done.put((seq, outcome))


_starting = threading.Lock()


def start_thread(target: object, name: str) -> threading.Thread:
    """A daemon thread with a stack that deep grammars fit."""
    with _starting:
        before = threading.stack_size(STACK_BYTES)
        try:
            thread = threading.Thread(target=target, name=name, daemon=True)  # type: ignore[arg-type]
            thread.start()
        finally:
            threading.stack_size(before)
    return thread
