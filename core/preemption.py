"""Taking blocks or a place from who runs: for a running sequence that needs a block, or for one that waits."""

from __future__ import annotations

from collections.abc import Callable

from .kv import KVManager
from .plan import StepPlan
from .sequence import Sequence
from .stats import Counters
from .waiting import WaitingQueue
from .yielding import LOOK_AGAIN, PATIENCE, who_is_pushed_out, who_yields


class Preemption:
    """Who loses what is decided in ``yielding.py``; here it is done. The sequence goes back to the queue and finds in
    the prefix cache what is left there of its K/V."""

    def __init__(self, kv: KVManager, queue: WaitingQueue, counters: Counters, clock: Callable[[], float]) -> None:
        self.kv, self.queue, self.counters, self.clock = kv, queue, counters, clock
        self.out_of_room: list[Sequence] = []  # to be ended: nothing in flight, and no room for more
        self._look_at = 0.0  # when somebody who makes way is looked for again

    def make_room(self, plan: StepPlan) -> None:
        """A block for each decoding row that needs one; drops from the plan the rows that had to give way."""
        rows = self.kv.rows
        need = plan.decodes[rows.computed[plan.decodes] >= rows.num_blocks[plan.decodes] * rows.block_size]
        for row in need.tolist():
            seq = rows.seqs[row]
            while seq is not None and seq.row == row and rows.tokens[row] < rows.limit[row]:
                if self.kv.grow(seq):
                    break
                self._push_out(seq, plan)
        if len(need):
            plan.decodes = rows.decoding()

    def make_way(self, plan: StepPlan) -> None:
        """Take a place from who has to yield one to the queue's head. It takes it in the next step."""
        rows, now = self.kv.rows, self.clock()
        head = None if plan.preempted or now < self._look_at else self.queue.head()
        if head is None or now - max(head.group.arrived, head.gave_way) < PATIENCE:
            return
        if rows.num_free and head.blocked is None:
            return
        ending = (rows.tokens >= rows.limit) & rows.active
        victim = None if ending.any() else who_yields(head, self.kv)
        if victim is None:
            self._look_at = now + LOOK_AGAIN
            return
        self._preempt(victim, plan)
        self.queue.push_front(victim)
        plan.decodes = rows.decoding()

    def _push_out(self, seq: Sequence, plan: StepPlan) -> None:
        """Free some block for ``seq``."""
        running = self.kv.rows.running()
        if len(running) == 1:
            self._cap(seq)
            return
        victim = who_is_pushed_out(seq, running, self.kv.restore_cost)
        self._preempt(victim, plan)
        victim.num_preemptions += 1
        self.queue.push_preempted(victim)

    def _preempt(self, victim: Sequence, plan: StepPlan) -> None:
        self.kv.release(victim)
        victim.account.running -= 1
        victim.blocked = None
        victim.gave_way = self.clock()
        self.counters.preemptions += 1
        plan.preempted += 1

    def _cap(self, seq: Sequence) -> None:
        """Alone and out of blocks: it ends with what it has, at once or when its tokens in flight arrive."""
        rows = self.kv.rows
        seq.limit = int(rows.tokens[seq.row])
        rows.limit[seq.row] = seq.limit
        if len(seq.tokens) == seq.limit:
            self.out_of_room.append(seq)
