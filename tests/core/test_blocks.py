"""The pool against a plain model of it: a dictionary of references and two ordered lists."""

from __future__ import annotations

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from bireme.core.blocks import BlockPool


class PoolMachine(RuleBasedStateMachine):
    @initialize(size=st.integers(1, 8))
    def start(self, size: int) -> None:
        self.evicted: list[int] = []
        self.pool = BlockPool(size, self.evict)
        self.free = list(range(size))
        self.cached: list[int] = []  # unreferenced, least recently used first
        self.known: set[int] = set()
        self.refs = dict.fromkeys(range(size), 0)

    def evict(self, block: int) -> None:
        self.evicted.append(block)
        self.pool.unmark_cached(block)

    @rule()
    def take(self) -> None:
        want = self.free[0] if self.free else self.cached[0] if self.cached else None
        assert self.pool.take() == want
        if want is None:
            return
        if not self.free:
            assert self.evicted.pop() == want
            self.known.remove(want)
        (self.free or self.cached).remove(want)
        self.refs[want] = 1

    @precondition(lambda self: any(self.refs.values()))
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs]))
        self.pool.release(block)
        self.refs[block] -= 1
        if not self.refs[block]:
            if block in self.known:
                self.cached.append(block)
            else:
                self.free.insert(0, block)

    @precondition(lambda self: any(self.refs.values()) or self.cached)
    @rule(data=st.data())
    def share(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs] + self.cached))
        self.pool.share(block)
        self.refs[block] += 1
        if block in self.cached:
            self.cached.remove(block)

    @precondition(lambda self: any(refs and b not in self.known for b, refs in self.refs.items()))
    @rule(data=st.data())
    def mark(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from([b for b, refs in self.refs.items() if refs and b not in self.known]))
        self.pool.mark_cached(block)
        self.known.add(block)

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def unmark(self, data: st.DataObject) -> None:
        block = data.draw(st.sampled_from(sorted(self.known)))
        self.pool.unmark_cached(block)
        self.known.remove(block)
        if block in self.cached:
            self.cached.remove(block)
            self.free.insert(0, block)

    @invariant()
    def equal(self) -> None:
        if not hasattr(self, "pool"):
            return
        assert list(self.pool.listed()) == self.free + self.cached
        assert self.pool.refs == list(self.refs.values())
        assert (self.pool.num_free, self.pool.num_cached) == (len(self.free), len(self.cached))
        assert self.pool.num_live == sum(1 for refs in self.refs.values() if refs)


TestPool = PoolMachine.TestCase
TestPool.settings = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True, database=None)


def test_a_sequence_frees_its_last_block_first() -> None:
    pool = BlockPool(4)
    blocks = [pool.take() for _ in range(4)]
    taken = [block for block in blocks if block is not None]
    for block in taken:
        pool.mark_cached(block)
    pool.release_all(taken)
    assert list(pool.listed()) == taken[::-1]


def test_misuse_is_caught() -> None:
    pool = BlockPool(2)
    with pytest.raises(AssertionError, match="more often than taken"):
        pool.release(0)
    with pytest.raises(AssertionError, match="nobody knows what it holds"):
        pool.share(0)


@pytest.mark.parametrize("live", [True, False])
def test_a_quarantined_block_is_never_handed_out(live: bool) -> None:
    pool = BlockPool(3)
    if live:
        assert pool.take() == 0
    pool.quarantine(0)
    pool.quarantine(0)
    if live:
        pool.release(0)
    assert [pool.take(), pool.take(), pool.take()] == [1, 2, None]
    assert pool.num_usable == pool.num_live == 2
