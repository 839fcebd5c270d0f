"""What the next step does. There are no phases: each sequence's ``computed`` chases its ``tokens``."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from .chunks import ChunkBudget
from .config import EngineConfig
from .cost import CostModel
from .fairness import Fairness
from .kv import KVManager
from .plan import BuiltStep, Chunk, StepPlan, build, row_init
from .preemption import Preemption
from .rows import Index, Rows
from .sequence import Sequence
from .slo import MARGIN
from .stats import Counters
from .waiting import WaitingQueue

#: With no stream running, a step may take so many times the stall bound: long enough to lose nothing by the cut, short
#: enough that an abort or a newcomer is not kept waiting on a slow machine.
_ALONE = 5


class Scheduler:
    """Plans steps over the running rows and the waiting queue.

    1. Every decoding row rides in every step; who finds no block makes another give way.
    2. Where no place is free for the queue's head, somebody who holds more than their share, or has had a turn, yields
       one (``preemption.py``).
    3. What is left of the step, in tokens and in time, goes to prompts: those running and the head of the queue, in
       the order of priority, the preempted, the user's counter, arrival. A head that does not fit stops admission, so
       nobody overtakes it; with nothing running it always fits.
    """

    def __init__(
        self,
        config: EngineConfig,
        num_blocks: int,
        block_size: int,
        max_len: int,
        model: str,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.config = config
        self.block_size = block_size
        self.rows = Rows(config.max_num_seqs, min(num_blocks, -(-max_len // block_size)), block_size)
        self.kv = KVManager(num_blocks, self.rows, block_size, model, config.enable_prefix_caching)
        self.fairness = Fairness()
        self.queue = WaitingQueue(self.fairness, self._is_late if config.slo and config.slo.ttft else None)
        self.cost = CostModel(config.max_stall_ms / 1000 / min(256, config.max_num_batched_tokens))
        self.counters = Counters()
        self.clock = clock
        self._preemption = Preemption(self.kv, self.queue, self.counters, clock)
        self.out_of_room = self._preemption.out_of_room  # to be ended: nothing in flight, and no room for more
        self.num_unstarted = 0  # requests of which nothing has run yet
        self._step_id = 0
        self._plan = StepPlan(self.rows.decoding())

    def add(self, leader: Sequence) -> None:
        """A new request joins the queue."""
        self.num_unstarted += 1
        slo = self.config.slo
        if slo is not None and slo.ttft is not None:
            decodes = self.rows.decoding()
            context = int(self.rows.computed[decodes].sum(dtype=np.int64))
            needed = self.prompt_seconds(leader.prompt_len, len(decodes), context)
            leader.group.late_after = leader.group.arrived + slo.ttft * MARGIN - needed
        leader.account.unstarted += 1
        self.queue.push(leader)

    def schedule(self) -> BuiltStep | None:
        """Decide and lay out the next step; None when there is nothing to do, or it is better to wait for those in
        flight. ``commit`` must follow its submission."""
        plan = StepPlan(self.rows.decoding())
        if self._gathers(plan.decodes):
            return None
        self._preemption.make_room(plan)
        self._preemption.make_way(plan)
        self._read_prompts(plan)
        if not plan.num_seqs:
            return None
        self._plan = plan
        self._step_id += 1
        return build(plan, self.rows, self._step_id)

    def commit(self, built: BuiltStep) -> None:
        """The step was submitted: count it, let others find its blocks, let siblings follow their leader."""
        plan = self._plan
        self.rows.advance(built.rows, built.counts, built.batch.samples)
        if built.batch.masks is not None:
            self.rows.waits[built.sampled_rows[built.batch.masks.index]] = True
        for seq, start, length in plan.chunks:
            seq.settled = True
            if seq.group.held and seq is seq.leader and start + length >= seq.prompt_len:
                self.release_siblings(seq)
        for block in plan.pins:
            self.kv.pool.release(block)
        self.kv.publish_ready()

    def release_siblings(self, leader: Sequence) -> None:
        """The leader's prompt is computed, or will never be: its siblings may run."""
        for seq in reversed(leader.group.held):
            self.queue.push_front(seq)
        leader.group.held.clear()

    def remove(self, seq: Sequence, *, poisoned: bool = False) -> None:
        """``seq`` has ended, wherever it was; ``poisoned``: what was stored of it is not to be found again."""
        if seq.group.cached_tokens is None and seq.group.num_unfinished == 1:  # the last of them, and nothing ran
            self._started(seq)
        if seq.row >= 0:
            self.kv.release(seq, poisoned=poisoned)
            seq.account.running -= 1
        elif seq in seq.group.held:
            seq.group.held.remove(seq)
        else:
            self.queue.remove(seq)
            if poisoned:
                self.kv.forget(seq)

    def _gathers(self, decodes: Index) -> bool:
        """Whether the step would hold nobody but rows that follow grammars, while others of them are in flight: one
        step for all of them costs less than two that take turns."""
        rows = self.rows
        if not rows.num_masked or not len(decodes) or len(self.queue) or not rows.masked[decodes].all():
            return False
        return bool((rows.masked & (rows.tokens > rows.known)).any()) and not len(rows.reading())

    def _read_prompts(self, plan: StepPlan) -> None:
        budget = self._chunk_budget(plan.decodes)
        reading = [seq for row in self.rows.reading().tolist() if (seq := self.rows.seqs[row]) is not None]
        may_admit = not plan.preempted
        while budget.is_open():
            seq = self._next_reader(reading, may_admit)
            if seq is None:
                return
            if seq.row >= 0:
                reading.remove(seq)
            elif not self._admit(seq, plan):
                may_admit = False
                continue
            self._read(seq, budget, plan)

    def _chunk_budget(self, decodes: Index) -> ChunkBudget:
        tokens = self.config.max_num_batched_tokens - len(decodes)
        pairs = int(self.rows.computed[decodes].sum(dtype=np.int64)) + len(decodes)
        stall = self.stall_seconds * (1 if len(decodes) else _ALONE)
        return ChunkBudget(self.cost, tokens, stall - self.cost.seconds(len(decodes), pairs), self.block_size)

    def _next_reader(self, reading: list[Sequence], may_admit: bool) -> Sequence | None:
        """Of the running prompts and the queue's head, who goes first."""
        candidates = list(reading)
        head = self.queue.head() if may_admit else None
        if head is not None:
            candidates.append(head)
        return min(candidates, key=_reading_order, default=None)

    def _admit(self, seq: Sequence, plan: StepPlan) -> bool:
        """Give the queue's head a row, if there is one, all its tokens and its mask are known and its blocks fit."""
        if not self.rows.num_free or seq.num_pending or seq.waits_for_mask or self._crowded(seq):
            return False
        situation = (self.kv.pool.num_unreferenced, self.rows.num_running)
        if seq.blocked is not None and situation[0] <= seq.blocked[0] and situation[1] >= seq.blocked[1]:
            return False  # nothing has become free since it last did not fit: don't search the cache again
        admitted = self.kv.admit(seq, self._headroom(seq))
        if admitted is None:
            seq.blocked = situation
            if not self.rows.num_running:  # blocks were taken out of use since it was let in: it will never fit
                self.out_of_room.append(seq)
            return False
        self.queue.remove(seq)
        seq.account.running += 1
        seq.num_admissions += 1
        seq.blocked = seq.pooled = None
        seq.scores.clear()
        if admitted.copy is not None:
            plan.copies.append(admitted.copy)
            plan.pins.append(admitted.copy[0])
        plan.new_rows.append(row_init(seq))
        group = seq.group
        if group.cached_tokens is None:
            group.cached_tokens = admitted.computed
            self._started(seq)
        self.counters.prompt_tokens_cached += self._count_prompt(seq, 0, admitted.computed)
        return True

    @property
    def stall_seconds(self) -> float:
        """The most that a step may take while streams run."""
        slo, stall = self.config.slo, self.config.max_stall_ms / 1000
        return stall if slo is None or slo.tpot is None else min(stall, slo.tpot * MARGIN)

    def prompt_seconds(self, tokens: int, decodes: int, context: int) -> float:
        """How long reading ``tokens`` of prompts takes beside so many streams with ``context`` tokens in all."""
        cost = self.cost
        beside = cost.seconds(decodes, context)
        stall = self.stall_seconds * (1 if decodes else _ALONE)
        most = max(1, self.config.max_num_batched_tokens - decodes)
        per_step = min(most, max(self.block_size, cost.chunk(stall - beside, tokens // 2)))
        return -(-tokens // per_step) * beside + cost.per_token * tokens + cost.per_pair * tokens * tokens / 2

    def _is_late(self, seq: Sequence) -> bool:
        """Whether a request can't have its first token in time any more. What has begun and waits again is not late."""
        group = seq.group
        return group.cached_tokens is None and self.clock() > group.late_after

    def _crowded(self, seq: Sequence) -> bool:
        """Whether one stream more would make steps longer than the objective lets them be."""
        slo, rows = self.config.slo, self.rows
        if slo is None or slo.tpot is None or not rows.num_running:
            return False
        context = int(rows.tokens[rows.active].sum(dtype=np.int64)) + len(seq.tokens)
        return self.cost.seconds(rows.num_running + 1 + self.block_size, context) > self.stall_seconds

    def _started(self, seq: Sequence) -> None:
        """Something of the request runs, or never will."""
        self.num_unstarted -= 1
        seq.account.unstarted -= 1

    def _headroom(self, seq: Sequence) -> int:
        """Blocks to leave for those running: one for every four, and one for each per time that ``seq`` was preempted,
        so that it can't go in and out with every block the others fill; never more than they and it may come to need.
        """
        running = self.rows.num_running
        if not running:
            return 0
        rows, size = self.rows, self.block_size
        growth = (rows.limit + (size - 2)) // size - rows.num_blocks  # a sequence's last token needs no K/V
        own = (seq.limit + size - 2) // size - (len(seq.tokens) + size - 1) // size
        need = int(growth[rows.active].clip(min=0).sum()) + max(0, own)
        return min(running * (1 + 4 * seq.num_preemptions) // 4, need)

    def _read(self, seq: Sequence, budget: ChunkBudget, plan: StepPlan) -> None:
        assert seq.entry is not None
        start = int(self.rows.computed[seq.row])
        count = budget.grant(start, len(seq.entry) - start)
        plan.chunks.append(Chunk(seq, start, count))
        new = self._count_prompt(seq, start, start + count)
        self.counters.prompt_tokens_computed += new
        seq.account.charge(new)

    def _count_prompt(self, seq: Sequence, start: int, end: int) -> int:
        """How many of these tokens are of the request's prompt and were not accounted for yet."""
        group = seq.group
        fresh = max(0, min(end, seq.prompt_len) - max(start, group.num_prompt_counted))
        group.num_prompt_counted += fresh
        return fresh


def _reading_order(seq: Sequence) -> tuple[int, bool, float, bool, int]:
    return (seq.priority, not seq.num_preemptions, seq.account.counter, seq.row < 0, seq.order)
