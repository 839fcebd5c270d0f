"""One engine request as the HTTP side sees it: an answer to 'will it be served', then outputs until an end."""

from __future__ import annotations

import asyncio

from ..core.request import SequenceOutput
from .errors import ApiError


class RequestStream:
    """Outputs of one request. Delivery never blocks: a slow reader finds several outputs at once."""

    def __init__(self, request_id: str, prompt_field: str, changed: asyncio.Event, grammar_field: str = "") -> None:
        self.request_id = request_id
        self.prompt_field = prompt_field  # of the body; errors about the prompt name it
        self.grammar_field = grammar_field  # errors about what the answer must match name it
        self._outputs: list[SequenceOutput] = []
        self._changed = changed  # the reader's; one reader may have several streams
        self._accepted = False
        self._error: ApiError | None = None
        self.queued: float | None = None  # seconds until a step worked on it

    def accept(self) -> None:
        self._accepted = True
        self._changed.set()

    def put(self, output: SequenceOutput) -> None:
        self._outputs.append(output)
        self._changed.set()

    def fail(self, error: ApiError) -> None:
        """End the stream with ``error``, after what was already delivered."""
        if self._error is None:
            self._error = error
        self._changed.set()

    async def wait_accepted(self, timeout: float | None = None) -> None:
        """Wait until the engine takes the request, at most ``timeout`` seconds. Raises its refusal (``ApiError``)."""
        try:
            async with asyncio.timeout(timeout):
                while not self._accepted and not self._outputs and self._error is None:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            return
        if self._error is not None and not self._outputs:
            raise self._error

    def take(self) -> list[SequenceOutput]:
        """All outputs since the last call, maybe none. Raises ``ApiError`` where the stream failed and all was read."""
        outputs, self._outputs = self._outputs, []
        if not outputs and self._error is not None:
            raise self._error
        return outputs
