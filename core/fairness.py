"""Who goes next: priorities first, then per-user virtual token counters (VTC, arXiv:2401.00588), then arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from .account import Account
from .sequence import Sequence

#: Accounts of absent users kept; beyond this the longest unused go (their counter would mostly be lifted anyway).
MAX_IDLE_ACCOUNTS = 10_000


class Fairness:
    """The accounts. Two users who both always have something waiting are served alike, up to a constant.

    A user who comes back after having had nothing waiting is lifted to the least counter of those who wait (or to that
    of the last user who left the queue): credit cannot be saved up by staying away. What was preempted counts as
    running here: it was let in long ago, so its user's counter says nothing of where the others are.
    """

    def __init__(self) -> None:
        self.accounts: OrderedDict[str, Account] = OrderedDict()
        self.weights: dict[str, float] = {}
        self._waiting: dict[str, Account] = {}
        self._last_left: Account | None = None
        self._prune_at = MAX_IDLE_ACCOUNTS

    def set_weight(self, user: str, weight: float) -> None:
        """``weight`` times the share of a user with weight 1, from now on."""
        if not weight > 0:
            raise ValueError(f"the weight of user {user!r} is {weight}; it must be above 0")
        self.weights[user] = weight
        self.account(user).weight = weight

    def account(self, user: str) -> Account:
        account = self.accounts.get(user)
        if account is None:
            self._prune()
            account = self.accounts[user] = Account(user, self.weights.get(user, 1.0))
        self.accounts.move_to_end(user)
        return account

    def arrived(self, account: Account, new: bool = True, preempted: bool = False) -> None:
        """One of the account's sequences joined the queue; ``new`` unless it was preempted or forked."""
        account.waiting += 1
        if preempted:
            return
        if account.in_line == 0:
            if new:
                account.counter = max(account.counter, self.floor)
            self._waiting[account.user] = account
        account.in_line += 1

    def left(self, account: Account, preempted: bool = False) -> None:
        """One of the account's sequences left the queue."""
        account.waiting -= 1
        if preempted:
            return
        account.in_line -= 1
        if account.in_line == 0:
            del self._waiting[account.user]
            self._last_left = account

    @property
    def floor(self) -> float:
        """What a newcomer's counter is lifted to."""
        if self._waiting:
            return min(account.counter for account in self._waiting.values())
        return self._last_left.counter if self._last_left is not None else 0.0

    def _prune(self) -> None:
        if len(self.accounts) < self._prune_at:
            return
        some = MAX_IDLE_ACCOUNTS // 10
        idle = [account.user for account in self.accounts.values() if not account.waiting and not account.running]
        for user in idle[:some]:
            del self.accounts[user]
        self._prune_at = max(MAX_IDLE_ACCOUNTS, len(self.accounts) + some)  # with all of them busy: not every time


#: Of so many admissions from a user's line, one at least is of those who are late, if there are any.
LATE_EVERY = 8


#: A user's place among those of one class: the counter, the head's order of arrival, the user.
_Entry = tuple[float, int, str]


@dataclass(slots=True, eq=False)
class _Line:
    """One user's sequences of one priority, first come, first served.

    With an objective those that can't have their first token in time any more stand apart: others, which still can, go
    before them, but never more than ``LATE_EVERY`` - 1 in a row. So they wait longer, and not for ever.
    """

    timely: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    late: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    overtaken: int = 0  # times in a row that one of the late was passed
    entry: _Entry | None = None  # its one entry that counts in its class's heap

    def __bool__(self) -> bool:
        return bool(self.timely or self.late)

    def __iter__(self) -> Iterator[Sequence]:
        yield from self.timely
        yield from self.late

    def head(self, is_late: Callable[[Sequence], bool] | None) -> Sequence:
        while is_late is not None and self.timely and is_late(first := next(iter(self.timely))):
            del self.timely[first]
            self.late[first] = None
        if self.late and (not self.timely or self.overtaken >= LATE_EVERY - 1):
            return next(iter(self.late))
        return next(iter(self.timely))

    def remove(self, seq: Sequence) -> None:
        if seq in self.late:
            del self.late[seq]
            self.overtaken = 0
        else:
            del self.timely[seq]
            self.overtaken += bool(self.late)


@dataclass(slots=True, eq=False)
class _Class:
    """The waiting sequences of one priority.

    The user with the least counter is found by a heap that is put right where it is looked at: counters only rise, so
    an entry that has become wrong stands too near the top, never too far from it.
    """

    preempted: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    users: dict[str, _Line] = field(default_factory=dict)
    heap: list[_Entry] = field(default_factory=list)

    def place(self, line: _Line, head: Sequence) -> None:
        """``head`` is the new first of its user's line."""
        line.entry = (head.account.counter, head.order, head.account.user)
        heappush(self.heap, line.entry)

    def head(self, is_late: Callable[[Sequence], bool] | None) -> Sequence | None:
        if self.preempted:
            return next(iter(self.preempted))
        heap = self.heap
        while heap:
            entry = heap[0]
            line = self.users.get(entry[2])
            if line is None or line.entry is not entry:
                heappop(heap)
                continue
            seq = line.head(is_late)
            now = (seq.account.counter, seq.order, entry[2])
            if now == entry:
                return seq
            line.entry = now
            heapreplace(heap, now)
        return None


class WaitingQueue:
    """Everything that waits. Classes by priority (lower first); within one the preempted, oldest first, then the head
    of the user with the least counter; each user's own line has an order of its own."""

    def __init__(self, fairness: Fairness, is_late: Callable[[Sequence], bool] | None = None) -> None:
        """``is_late``: whether a sequence can't have its first token in time any more; None: nobody is ever late."""
        self.fairness = fairness
        self._is_late = is_late
        self._classes: dict[int, _Class] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[Sequence]:
        for cls in self._classes.values():
            yield from cls.preempted
            for queue in cls.users.values():
                yield from queue

    def preempted(self) -> list[Sequence]:
        """Those that had begun and gave way."""
        return [seq for cls in self._classes.values() for seq in cls.preempted]

    def late(self) -> set[Sequence]:
        """Those that others were let past, because they can't be in time any more."""
        return {seq for cls in self._classes.values() for line in cls.users.values() for seq in line.late}

    def push(self, seq: Sequence) -> None:
        """At the end of its user's line."""
        self._join(seq, new=True)
        line = self._line(seq)
        line.timely[seq] = None
        if line.entry is None:
            self._class(seq).place(line, seq)

    def push_front(self, seq: Sequence) -> None:
        """At the head of its user's line: a sibling of a request that already runs."""
        self._join(seq, new=False)
        line = self._line(seq)
        line.timely[seq] = None
        line.timely.move_to_end(seq, last=False)
        self._class(seq).place(line, seq)

    def push_preempted(self, seq: Sequence) -> None:
        """Before all others of its class but those preempted before it that arrived earlier."""
        self._join(seq, new=False, preempted=True)
        preempted = self._class(seq).preempted
        preempted[seq] = None
        for other in [other for other in preempted if other.order > seq.order]:
            preempted.move_to_end(other)

    def head(self) -> Sequence | None:
        """Who goes next."""
        if not self._classes:
            return None
        return self._classes[min(self._classes)].head(self._is_late)

    def remove(self, seq: Sequence) -> None:
        """``seq`` is admitted, or ended while it waited."""
        cls = self._classes[seq.priority]
        preempted = seq in cls.preempted
        if preempted:
            del cls.preempted[seq]
        else:
            line = cls.users[seq.account.user]
            line.remove(seq)
            if not line:
                del cls.users[seq.account.user]
        if not cls.preempted and not cls.users:
            del self._classes[seq.priority]
        self._length -= 1
        self.fairness.left(seq.account, preempted)

    def _join(self, seq: Sequence, new: bool, preempted: bool = False) -> None:
        self._length += 1
        self.fairness.arrived(seq.account, new, preempted)

    def _class(self, seq: Sequence) -> _Class:
        return self._classes.setdefault(seq.priority, _Class())

    def _line(self, seq: Sequence) -> _Line:
        return self._class(seq).users.setdefault(seq.account.user, _Line())
