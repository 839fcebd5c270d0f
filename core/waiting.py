"""Who goes next: priorities first, then the users' counters (``fairness.py``), then arrival."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush, heapreplace

from .fairness import Fairness
from .sequence import Sequence

#: Of so many admissions from a user's line, one at least is of those who are late, if there are any.
LATE_EVERY = 8
#: Of so many admissions in a class, one at least is of those that had begun, if there are any.
BEGUN_EVERY = 32


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

    ``begun`` are those at the heads of their users' lines that had begun, the longest waiting first: new users, each
    with the least counter, may come without end, but only ``BEGUN_EVERY`` - 1 in a row go before the first of them.
    """

    preempted: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    begun: OrderedDict[Sequence, None] = field(default_factory=OrderedDict)
    passed: int = 0  # times in a row that the first of ``begun`` was passed
    users: dict[str, _Line] = field(default_factory=dict)
    heap: list[_Entry] = field(default_factory=list)

    def place(self, line: _Line, head: Sequence) -> None:
        """``head`` is the new first of its user's line."""
        line.entry = (head.account.counter, head.order, head.account.user)
        heappush(self.heap, line.entry)

    def head(self, is_late: Callable[[Sequence], bool] | None) -> Sequence | None:
        if self.passed >= BEGUN_EVERY - 1:
            return next(iter(self.begun))
        least = self._least(is_late)
        if not self.preempted:
            return least
        first = min(self.preempted, key=_places_held)
        return least if least is not None and first.account.owes(least.account) else first

    def remove(self, seq: Sequence) -> bool:
        """Returns whether it was one of the preempted."""
        if self.begun and seq is not next(iter(self.begun)):
            self.passed += 1
        else:
            self.passed = 0
        self.begun.pop(seq, None)
        if seq in self.preempted:
            del self.preempted[seq]
            return True
        line = self.users[seq.account.user]
        line.remove(seq)
        if not line:
            del self.users[seq.account.user]
        return False

    def _least(self, is_late: Callable[[Sequence], bool] | None) -> Sequence | None:
        """The head of the line of the user with the least counter."""
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


def _places_held(seq: Sequence) -> float:
    return seq.account.running / seq.account.weight


class WaitingQueue:
    """Everything that waits. Classes by priority (lower first); within one the preempted, then the head of the user
    with the least counter; each user's own line has an order of its own.

    Of the preempted those go first whose user holds the fewest places for their weight, of equals the oldest. They let
    a newcomer past whose user they owe a place (``Account.owes``): one user's long answers, which push each other out
    of the cache, keep nobody else waiting. Whose user holds nothing lets nobody past, so nobody waits for ever.
    """

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
        """At the head of its user's line: it made way, or is a sibling of a request that already runs."""
        self._join(seq, new=False)
        self._class(seq).begun[seq] = None
        line = self._line(seq)
        line.timely[seq] = None
        line.timely.move_to_end(seq, last=False)
        self._class(seq).place(line, seq)

    def push_preempted(self, seq: Sequence) -> None:
        """Before all others of its class but the preempted that arrived earlier, and whom they let past."""
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
        preempted = cls.remove(seq)
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
