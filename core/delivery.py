"""A step's tokens delivered to their sequences: what they end, and the outputs that tell of it."""

from __future__ import annotations

import numpy as np

from . import pooling, scores
from .account import OUTPUT_WEIGHT
from .constraint import Outcome
from .door import Door
from .masks import MaskThreads
from .plan import BuiltStep
from .request import FinishReason, SequenceOutput, TokenLogprob
from .results import keep_read, logprobs_by_place
from .scheduler import Scheduler
from .sequence import Group, Sequence
from .step import StepResult

_NAN = "the model gave NaN logits for this sequence"
_NO_ROOM = "the prompt is {} tokens long, but what is left of the KV cache holds {}: some of its blocks were faulty"


class Delivery:
    """The requests under way, and the outputs that nobody has been handed yet."""

    def __init__(self, scheduler: Scheduler, door: Door) -> None:
        self._scheduler = scheduler
        self.groups: dict[str, Group] = {}  # by request id
        self.masks = MaskThreads()
        self._door = door
        self._outputs: list[SequenceOutput] = []

    @property
    def pending(self) -> bool:
        """Whether a request is under way or an output is left to hand out."""
        return bool(self.groups or self._outputs)

    def hand_out(self) -> list[SequenceOutput]:
        """What has become known since the last call."""
        outputs, self._outputs = self._outputs, []
        return outputs

    def deal(self, built: BuiltStep, result: StepResult) -> None:
        """Deal out the tokens of a step that is done."""
        rows = self._scheduler.rows
        there = np.fromiter((seq.row >= 0 for seq in built.sampled), np.bool_, len(built.sampled))
        if there.all():
            rows.learn(built.sampled_rows, result.tokens)
        else:
            rows.learn(built.sampled_rows[there], result.tokens[there])
        if built.reads:
            keep_read(built.reads, result)
        bad = set(np.flatnonzero(result.nan).tolist())
        logprobs = logprobs_by_place(built.sampled, result)
        taken, outputs = 0, self._outputs
        for i, (seq, token) in enumerate(zip(built.sampled, result.tokens.tolist(), strict=True)):
            if seq.finish_reason is not None:
                continue  # found ended one step late
            if seq.row < 0:
                seq.num_pending -= 1
            if i in bad:
                self.end(seq, FinishReason.ERROR, _NAN)
                continue
            taken += 1
            tokens, account = seq.tokens, seq.account
            tokens.append(token)
            account.counter += OUTPUT_WEIGHT / account.weight
            if token in seq.stop_ids or len(tokens) >= seq.limit or seq.constraint is not None or not seq.reported:
                self._take(seq, token, logprobs.get(i))
            else:  # what nearly every token of nearly every step is
                own = (logprobs[i],) if i in logprobs else None
                outputs.append(SequenceOutput(seq.request_id, seq.index, (token,), own))
        self._scheduler.counters.tokens_generated += taken

    def take_masks(self, patience: float, *, idle: bool = False) -> None:
        """Go on with the sequences whose grammars have said what may follow; end those they ended."""
        for seq, outcome in self.masks.take(patience, idle=idle):
            if seq.finish_reason is not None:
                continue
            if outcome is Outcome.GOES_ON:
                self._scheduler.rows.waits[seq.row : seq.row + 1] = False  # no row: an empty slice
            elif outcome is Outcome.COMPLETE:
                self.end(seq, FinishReason.STOP)
            else:
                assert seq.constraint is not None
                self.end(seq, FinishReason.ERROR, seq.constraint.error)

    def end_out_of_room(self) -> None:
        """End the sequences that the scheduler found no room for."""
        for seq in self._scheduler.out_of_room:
            if seq.num_outputs:
                self.end(seq, FinishReason.LENGTH)
            else:
                room = self._scheduler.kv.pool.num_usable * self._scheduler.block_size
                self.end(seq, FinishReason.ERROR, _NO_ROOM.format(len(seq.tokens), room))
        self._scheduler.out_of_room.clear()

    def end(self, seq: Sequence, reason: FinishReason, error: str | None = None) -> None:
        """End ``seq`` between two tokens: it gives back all it holds, and its last output says so."""
        self._finish(seq, reason, poisoned=error is _NAN)
        self._report(seq, (), error=error)

    def fail_all(self, error: str) -> None:
        """End every sequence where it is; nothing of the scheduler's is touched any more."""
        for group in self.groups.values():
            for seq in group.seqs:
                if seq.finish_reason is None:
                    seq.finish_reason = FinishReason.ERROR
                    self._scheduler.counters.finished[FinishReason.ERROR] += 1
                    self._report(seq, (), error=error)
        self.groups.clear()

    def close(self) -> None:
        """Forget everything."""
        self.groups.clear()
        self._outputs.clear()
        self.masks.close()

    def _take(self, seq: Sequence, token: int, logprob: TokenLogprob | None) -> None:
        """A token, known already, after which something may happen: it may be the last. An end token wins over the
        limit it comes at, and so does a grammar to which nothing can be added: its sequence ends with STOP after a
        token that is text."""
        if token in seq.stop_ids and seq.num_outputs >= seq.group.request.params.min_tokens:
            self._finish(seq, FinishReason.STOP)
        elif len(seq.tokens) >= seq.limit:
            if seq.constraint is not None and seq.constraint.completes(token):
                self._report(seq, (token,), logprob)
                self.end(seq, FinishReason.STOP)
                return
            self._finish(seq, FinishReason.LENGTH)
        elif seq.constraint is not None:
            self.masks.follow(seq, seq.constraint, token)
        self._report(seq, (token,), logprob)

    def _finish(self, seq: Sequence, reason: FinishReason, *, poisoned: bool = False) -> None:
        """``seq`` ends and gives back all it holds."""
        self._scheduler.remove(seq, poisoned=poisoned)
        seq.finish_reason = reason
        self._scheduler.counters.finished[reason] += 1
        group = seq.group
        group.num_unfinished -= 1
        if seq is seq.leader and group.held and reason is not FinishReason.ABORT:
            self._scheduler.release_siblings(seq)
        if not group.num_unfinished:
            del self.groups[group.request.request_id]
            self._door.ended()

    def _report(
        self, seq: Sequence, tokens: tuple[int, ...], logprob: TokenLogprob | None = None, error: str | None = None
    ) -> None:
        cached = scored = None
        if not seq.reported:
            scored = scores.take(seq) if tokens else None
            cached, seq.reported = seq.group.cached_tokens, True
        logprobs = None if logprob is None else (logprob,)
        self._outputs.append(
            SequenceOutput(
                seq.request_id,
                seq.index,
                tokens,
                logprobs,
                seq.finish_reason,
                cached,
                error,
                scored,
                pooling.embedding(seq),
            )
        )
