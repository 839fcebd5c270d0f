"""From token ids back to text, as they come: incremental detokenisation and stop strings, in linear time.

A token is not a character: bytes that don't complete one yet are held back, and so is text that may be the start of a
stop string. Everything held is given out at the end, unless a stop string really matched.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from .request import FinishReason, SequenceOutput, TokenLogprob
from .stops import StopMatcher


class Detokenizer(Protocol):
    """What this module needs of a tokenizer."""

    @property
    def special_ids(self) -> frozenset[int]: ...

    @property
    def context_free(self) -> bool:
        """Whether a token's bytes are the same whatever stands beside it."""
        ...

    def token_bytes(self, token_id: int, /) -> bytes: ...

    def decode(self, ids: Sequence[int], /, *, skip_special_tokens: bool) -> str: ...


class OutputText:
    """The text of one sequence's output.

    The pieces that ``push`` and ``flush`` return, joined, are the text of all tokens, up to the first stop string.
    Of several stop strings the one that is complete first wins; of two complete at once, the longer.
    """

    def __init__(
        self,
        tokenizer: Detokenizer,
        stop: Sequence[str] = (),
        include_stop: bool = False,
        skip_special_tokens: bool = True,
        kept: frozenset[int] = frozenset(),  # special tokens that are text all the same
    ) -> None:
        self._skipped = tokenizer.special_ids - kept if skip_special_tokens else frozenset[int]()
        self._decoder = _ByteDecoder(tokenizer) if tokenizer.context_free else _WindowDecoder(tokenizer)
        self._matcher = StopMatcher(stop) if stop else None
        self._include_stop = include_stop
        self.length = 0  # characters decoded, held ones included
        self.stopped: str | None = None  # the stop string found
        self.num_tokens = 0  # tokens taken; those behind a stop string's last are not
        self.offsets: list[int] = []  # per token taken: where in the text it begins, in characters

    def push(self, token_ids: Sequence[int]) -> str:
        """Take tokens; returns the text that is certain by now and was not returned before."""
        pieces = []
        for token_id in token_ids:
            if self.stopped is not None:
                break
            self.num_tokens += 1
            self.offsets.append(self.length)
            if token_id not in self._skipped:
                pieces.append(self._release(self._decoder.push(token_id)))
        return "".join(pieces)

    def flush(self) -> str:
        """The end: whatever is still held. A character that was never completed becomes U+FFFD."""
        if self.stopped is not None:
            return ""
        released = self._release(self._decoder.flush())
        return released if self.stopped is not None or self._matcher is None else released + self._matcher.flush()

    def _release(self, text: str) -> str:
        self.length += len(text)
        if self._matcher is None or not text:
            return text
        released, self.stopped = self._matcher.push(text)
        return released + self.stopped if self.stopped is not None and self._include_stop else released


class _ByteDecoder:
    """For tokenizers whose tokens are bytes: UTF-8, one token at a time."""

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._token_bytes = tokenizer.token_bytes
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_id: int) -> str:
        return self._utf8.decode(self._token_bytes(token_id))

    def flush(self) -> str:
        return self._utf8.decode(b"", final=True)


_LEFT = 8  # tokens of left context that a decode is given
_WINDOW = 64  # tokens decoded at once, at most, while text comes out


class _WindowDecoder:
    """For decoders in which a token's text depends on its neighbours.

    Text is given out once one more token left it unchanged. The window then moves on, but only where two windows of
    different left context agree on what is new; until they do it grows, which is slow and right.
    """

    def __init__(self, tokenizer: Detokenizer) -> None:
        self._tokenizer = tokenizer
        self._ids: list[int] = []  # the window: context, then tokens whose text isn't all out
        self._sent = ""  # of the window's text, what is out

    def push(self, token_id: int) -> str:
        before = self._text(self._ids)
        self._ids.append(token_id)
        sure = _common_prefix(before, self._text(self._ids)).rstrip("�")
        new = sure[len(self._sent) :]
        self._sent += new
        if len(self._ids) > _WINDOW:
            self._move()
        return new

    def flush(self) -> str:
        new = self._text(self._ids)[len(self._sent) :]
        self._sent += new
        return new

    def _text(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False)

    def _move(self) -> None:
        whole = self._text(self._ids)
        pending = whole[len(self._sent) :]
        near, far = self._ids[-_LEFT:], self._ids[-2 * _LEFT :]
        near_text, far_text = self._text(near), self._text(far)
        shared = whole.endswith(far_text) and far_text.endswith(near_text[1:]) and len(near_text) > len(pending)
        if shared:
            self._ids, self._sent = far, far_text[: len(far_text) - len(pending)]


def _common_prefix(left: str, right: str) -> str:
    if right.startswith(left):
        return left
    length = next(i for i, (a, b) in enumerate(zip(left + "\0", right + "\1", strict=False)) if a != b)
    return left[:length]


@dataclass(slots=True)
class TextDelta:
    """What one step added to one sequence, as text."""

    text: str
    token_ids: tuple[int, ...]  # up to and with the one that completed a stop string; an end token included
    offsets: tuple[int, ...]  # per token: where in the sequence's text it begins
    logprobs: tuple[TokenLogprob, ...] | None
    finish_reason: FinishReason | None
    stop: str | None = None  # the stop string that ended the sequence
    error: str | None = None

    @property
    def abort(self) -> bool:
        """Whether the engine still runs the sequence and must be told to end it."""
        return self.stop is not None


class SequenceText:
    """Turns one sequence's ``SequenceOutput``s into text and a final reason, stop strings included.

    An end token, or a stop token id, is counted and is never text.
    """

    def __init__(self, output: OutputText) -> None:
        self._output = output
        self.num_tokens = 0  # generated, the end token included
        self.finish_reason: FinishReason | None = None

    @property
    def stopped(self) -> str | None:
        """The stop string that ended it, if one did."""
        return self._output.stopped

    def feed(self, output: SequenceOutput) -> TextDelta:
        """After the sequence ended, whatever the engine still sends for it comes out empty."""
        if self.finish_reason is not None:
            return TextDelta("", (), (), None, None)
        ended_by_token = output.finish_reason is FinishReason.STOP and len(output.token_ids) > 0
        written = output.token_ids[:-1] if ended_by_token else output.token_ids
        start = self._output.num_tokens
        text = self._output.push(written)
        if output.finish_reason is not None:
            text += self._output.flush()
        offsets = self._output.offsets[start:]
        stop = self._output.stopped
        taken = len(offsets)
        if ended_by_token and stop is None:
            taken += 1
            offsets = [*offsets, self._output.length]
        self.num_tokens += taken
        self.finish_reason = FinishReason.STOP if stop is not None else output.finish_reason
        logprobs = None if output.logprobs is None else output.logprobs[:taken]
        return TextDelta(
            text, output.token_ids[:taken], tuple(offsets), logprobs, self.finish_reason, stop, output.error
        )
