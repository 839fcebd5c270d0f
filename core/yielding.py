"""Who gives up a place to a newcomer: places are shared out by weight, as tokens are, once somebody has waited for one.

Fair shares of tokens (``fairness.py``) decide who is taken up next, and nobody is while long answers hold every place.
So whoever has waited ``PATIENCE`` and holds less than their share of the places gets one of a user's who holds more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from .sequence import Sequence

#: Seconds that a newcomer waits before somebody has to make way: places that are about to become free do so by then.
PATIENCE = 1.0
#: Seconds until somebody is looked for again where nobody had to make way: it takes a look at all that run.
LOOK_AGAIN = 0.1


def who_yields(head: Sequence, running: Iterable[Sequence], restore_cost: Callable[[Sequence], int]) -> Sequence | None:
    """The running sequence that makes way for ``head``, the queue's first; None: nobody need.

    That is one of a lower class, if there is any. In the same class it is one of the user who holds the most places
    for their weight, and only where that is more than ``head``'s user holds with one place more: so two users never
    take a place from each other in turn. And only of one who was served more: of equals the earlier comes first again.
    Of a user's sequences the cheapest to restore goes, of equals the latest.
    """
    share = (head.account.running + 1) / head.account.weight
    candidates = [seq for seq in running if seq.priority > head.priority or _over(seq, head, share)]
    return max(
        candidates,
        key=lambda seq: (seq.priority, seq.account.running / seq.account.weight, -restore_cost(seq), seq.order),
        default=None,
    )


def _over(seq: Sequence, head: Sequence, share: float) -> bool:
    account = seq.account
    more = account.running / account.weight > share and account.counter > head.account.counter
    return seq.priority == head.priority and more
