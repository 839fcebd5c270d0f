"""When a request that comes now would have its first token: from who goes before it, and the fitted cost."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import numpy as np

from .account import PROMPT_WEIGHT, Account
from .request import QueueFullError, Request
from .slo import MARGIN
from .waiting import LATE_EVERY

if TYPE_CHECKING:
    from .scheduler import Scheduler
    from .sequence import Sequence


def unattainable(
    scheduler: Scheduler, request: Request, account: Account, interval: float | None
) -> QueueFullError | None:
    """Why ``request`` is refused now, with the numbers: its first token would come too late, and that is to be refused.
    An idle engine takes everything: no waiting could make it faster. ``interval`` as of ``first_token_seconds``."""
    slo = scheduler.config.slo
    if scheduler.config.slo_policy != "refuse" or slo is None or slo.ttft is None:
        return None
    if not scheduler.queue and not scheduler.rows.num_running:
        return None
    waited = max(0.0, scheduler.clock() - request.arrival_time) if request.arrival_time else 0.0
    expected = waited + first_token_seconds(scheduler, account, request.priority, len(request.prompt_ids), interval)
    if expected <= slo.ttft * MARGIN:
        return None
    after = max(1.0, expected - slo.ttft)
    text = f"the first token would come after about {expected:.1f} s, and the objective is {slo.ttft:g} s (slo)"
    return QueueFullError(f"{text}; try again in {after:.0f} s", after, "slo_unattainable")


def first_token_seconds(
    scheduler: Scheduler, account: Account, priority: int, tokens: int, interval: float | None
) -> float:
    """Seconds from now to the first token of ``tokens`` of prompt. ``interval``: seconds between two requests' ends of
    late, None where there were none; what can't have a row at once waits for so many of them."""
    rows = scheduler.rows
    before = list(_before(scheduler, account, priority, tokens))
    ahead = sum(len(seq.tokens) for seq in before) + int((rows.entry - rows.computed)[rows.reading()].sum())
    decodes = rows.decoding()
    running = rows.num_running
    context = int(rows.computed[decodes].sum(dtype=np.int64))
    streams = min(len(rows.seqs), running + len(before) // 2)  # on the average of the wait, who goes before has begun
    each = context // max(1, len(decodes))
    reading = scheduler.prompt_seconds(ahead + tokens, streams, streams * each)
    room = _room(scheduler, (ahead + tokens) // (len(before) + 1))
    ends = len(before) + 1 - room
    if ends <= 0 or interval is None:
        return reading
    return max(reading, ends * interval + scheduler.prompt_seconds(tokens, running, context))


def _before(scheduler: Scheduler, account: Account, priority: int, tokens: int) -> list[Sequence]:
    """Who of those waiting goes before a newcomer of ``account``: better classes whole; of the same class the
    preempted, the account's own, and of each other user those that the counters let come first."""
    preempted = set(scheduler.queue.preempted())
    own = [seq for seq in scheduler.queue if seq.priority == priority and seq.account is account]
    counter = account.counter if account.in_line else max(account.counter, scheduler.fairness.floor)
    goal = counter + PROMPT_WEIGHT * (tokens + sum(len(seq.tokens) for seq in own)) / account.weight
    served: Counter[str] = Counter()
    found = []
    for seq in scheduler.queue:
        if seq.priority > priority:
            continue
        other = seq.account
        if seq in preempted and seq.priority == priority and other.owes(account):
            continue  # it lets the newcomer past
        if seq.priority == priority and other is not account and seq not in preempted:
            if other.counter + served[other.user] / other.weight >= goal:
                continue
            served[other.user] += len(seq.tokens)
        found.append(seq)
    late = scheduler.queue.late()
    timely = [seq for seq in found if seq not in late]
    behind = [seq for seq in found if seq in late]  # newcomers pass them, but for one in so many
    return timely + behind[: len(timely) // (LATE_EVERY - 1)]


def _room(scheduler: Scheduler, tokens: int) -> int:
    """How many more sequences of about ``tokens`` can have a row and blocks now."""
    blocks = max(1, -(-tokens // scheduler.block_size))
    return min(scheduler.rows.num_free, scheduler.kv.pool.num_unreferenced // blocks)
