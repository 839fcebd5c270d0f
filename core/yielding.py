"""Who gives up a place, or blocks: both are shared out by weight, as tokens are, once somebody has waited for them.

Fair shares of tokens (``fairness.py``) decide who is taken up next, and nobody is while long answers hold every place.
So whoever has waited ``PATIENCE`` and holds less than their share of the places gets one of a user's who holds more.
Where users are more than places, who holds none gets the place of an answer that has had its turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .account import OUTPUT_WEIGHT, PROMPT_WEIGHT
from .kv import KVManager
from .sequence import Sequence

#: Seconds that one waits before somebody has to make way: places that are about to become free do so by then.
PATIENCE = 1.0
#: Seconds until somebody is looked for again where nobody had to make way: it takes a look at all that run.
LOOK_AGAIN = 0.1
#: Tokens that an answer makes at least in one turn; one with no more than these left goes on to its end.
QUANTUM = 256


def who_yields(head: Sequence, kv: KVManager) -> Sequence | None:
    """The running sequence that makes way for ``head``, the queue's first; None: nobody need.

    For one that has never run that is one of a lower class, if there is any, else of a user who owes ``head``'s a
    place: of the user who holds the most for their weight the cheapest to restore, of equals the latest. Where
    ``head``'s user holds a place already, only one that has paid for itself (``_has_paid``). For one whose user holds
    no place at all it may be one that has had its turn: that of the user who was served most.
    """
    running = kv.rows.running()
    return (None if head.num_admissions else _over_share(head, running, kv)) or _after_turn(head, running, kv)


def who_is_pushed_out(seq: Sequence, running: Iterable[Sequence], restore_cost: Callable[[Sequence], int]) -> Sequence:
    """The running sequence, ``seq`` itself perhaps, that loses its blocks because ``seq`` needs one: the lowest class's
    cheapest to restore, of equals the latest; but nobody pushes out whom their user owes a place."""
    owes = seq.account.owes
    return min(running, key=lambda s: (-s.priority, owes(s.account), restore_cost(s), -s.order))


def _over_share(head: Sequence, running: list[Sequence], kv: KVManager) -> Sequence | None:
    return max(
        (seq for seq in running if seq.priority > head.priority or _owes(seq, head, kv)),
        key=lambda seq: (seq.priority, seq.account.running / seq.account.weight, -kv.restore_cost(seq), seq.order),
        default=None,
    )


def _owes(seq: Sequence, head: Sequence, kv: KVManager) -> bool:
    if seq.priority != head.priority or not seq.account.owes(head.account):
        return False
    return not head.account.running or _has_paid(seq, kv)


def _after_turn(head: Sequence, running: list[Sequence], kv: KVManager) -> Sequence | None:
    if head.account.running:
        return None
    counter = head.account.counter
    served = [seq for seq in running if seq.priority == head.priority and seq.account.counter > counter]
    over = (seq for seq in served if _has_had_its_turn(seq, kv))
    return max(over, key=lambda seq: (seq.account.counter, seq.order), default=None)


def _has_had_its_turn(seq: Sequence, kv: KVManager) -> bool:
    made, left = kv.rows.progress(seq)
    return made >= QUANTUM and left > QUANTUM and _has_paid(seq, kv)


def _has_paid(seq: Sequence, kv: KVManager) -> bool:
    """Since it entered its row it made, as service, as much as reading it again may cost where the cache does not keep
    it. So what is read again is bounded by what is made; and turns double with the context, and are few."""
    made, _ = kv.rows.progress(seq)
    return OUTPUT_WEIGHT * made >= PROMPT_WEIGHT * kv.restore_cost(seq)
