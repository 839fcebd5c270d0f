"""Requests whose grammars are being compiled: they wait here, outside the engine's queue, and hold nobody up."""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass

from ..core.grammar import Grammar, GrammarError
from ..core.request import Request
from ..grammar.compiler import Compiled, GrammarCompiler
from .forced_calls import blamed

_MEND_FORCED = "Change it, or leave the choice to the model (tool_choice 'auto'): such calls are held to no schema."
_MEND = "Change it, or leave out one of the two, that tool or the form of the answer."


@dataclass(frozen=True, slots=True)
class Settled:
    """A request whose grammar is there, or can't be had: then ``error`` says why."""

    request: Request
    grammar: Grammar | None
    error: str | None = None


class GrammarQueue:
    """Used from the engine's thread. ``fileno`` becomes readable when some grammar is settled."""

    def __init__(self, compiler: GrammarCompiler) -> None:
        self._compiler = compiler
        self._waiting: dict[str, tuple[Request, Compiled]] = {}
        self._wakes, self._wake = os.pipe()
        os.set_blocking(self._wakes, False)
        os.set_blocking(self._wake, False)

    def __len__(self) -> int:
        return len(self._waiting)

    def of_user(self, user: str) -> int:
        """How many of one user's wait here."""
        return sum(request.user == user for request, _ in self._waiting.values())

    def fileno(self) -> int:
        return self._wakes

    def add(self, request: Request) -> None:
        """Have the request's grammar compiled, or find it."""
        assert request.params.grammar is not None
        future = self._compiler.submit(request.params.grammar)
        self._waiting[request.request_id] = (request, future)
        future.add_done_callback(lambda _: self._signal())

    def cancel(self, request_id: str) -> bool:
        """Nobody waits for this request any more; false when it is not here."""
        entry = self._waiting.pop(request_id, None)
        if entry is None:
            return False
        if not any(future is entry[1] for _, future in self._waiting.values()):
            entry[1].cancel()  # unless it is being worked on
        return True

    def take(self) -> list[Settled]:
        """What is settled, in the order in which it came."""
        if not self._waiting:
            return []
        done = [entry for entry in self._waiting.values() if entry[1].done()]
        for request, _ in done:
            del self._waiting[request.request_id]
        return [_settled(request, future) for request, future in done]

    def drain(self) -> None:
        """Forget that something was settled, until something is again."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self._wakes, 4096):
                pass

    def close(self) -> None:
        """Give up what waits; end the compiler."""
        self._waiting.clear()
        self._compiler.close()

    def _signal(self) -> None:
        with contextlib.suppress(BlockingIOError):  # a full pipe wakes as well
            os.write(self._wake, b"\0")


def _settled(request: Request, future: Compiled) -> Settled:
    try:
        return Settled(request, future.result(timeout=0))
    except GrammarError as error:
        spec = request.params.grammar
        assert spec is not None
        if (tool := blamed(spec, str(error))) is None:
            return Settled(request, None, f"{spec.field} can't be kept to: {error}")
        mend = _MEND if spec.instead else _MEND_FORCED
        return Settled(request, None, f"{spec.field} can't be kept to with {tool}. {mend}")
