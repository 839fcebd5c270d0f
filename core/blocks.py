"""Fixed-size KV blocks: exact reference counts and an LRU free list, every operation O(1)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence


class BlockPool:
    """Which blocks are in use, by how many, and which goes next.

    A block is *live* (referenced), *cached* (unreferenced, but the prefix cache still knows what it holds) or *free*
    (unreferenced and unknown). Cached and free blocks form one intrusive doubly linked list through a sentinel:

        take here -> [free, free, ... | cached, least recently used ... most recently used] <- cached blocks return here

    so nothing cached is lost while a free block exists. ``on_evict`` is called with a cached block before it is handed
    out for new contents; it must end with ``unmark_cached`` for that block.
    """

    def __init__(self, num_blocks: int, on_evict: Callable[[int], None] | None = None) -> None:
        self.num_blocks = num_blocks
        self.on_evict = on_evict
        self.refs = [0] * num_blocks
        self.cached = [False] * num_blocks
        self.quarantined: set[int] = set()
        self.num_unreferenced = num_blocks  # in the list: free and cached
        self.num_cached = 0  # in the list and cached
        self._end = num_blocks  # the sentinel's index
        self._next: list[int] = [*range(1, num_blocks + 1), 0]
        self._prev: list[int] = [num_blocks, *range(num_blocks)]

    @property
    def num_usable(self) -> int:
        """Blocks that can ever be handed out."""
        return self.num_blocks - len(self.quarantined)

    @property
    def num_free(self) -> int:
        return self.num_unreferenced - self.num_cached

    @property
    def num_live(self) -> int:
        return self.num_usable - self.num_unreferenced

    def take(self) -> int | None:
        """A block of unknown contents with one reference, or None when every block is live."""
        if self.num_unreferenced == 0:
            return None
        block = self._next[self._end]
        if self.cached[block]:
            if self.on_evict is not None:
                self.on_evict(block)
            assert not self.cached[block], f"block {block} was evicted but is still cached"
        self._unlink(block)
        self.refs[block] = 1
        return block

    def share(self, block: int) -> None:
        """One more reference; a cached block comes back to life with its contents."""
        if self.refs[block] == 0:
            assert self.cached[block], f"block {block} is free: nobody knows what it holds"
            self._unlink(block)
        self.refs[block] += 1

    def release(self, block: int) -> None:
        """One reference less; at none the block joins the list, cached ones at the tail."""
        assert self.refs[block] > 0, f"block {block} was released more often than taken"
        self.refs[block] -= 1
        if self.refs[block] == 0 and block not in self.quarantined:
            self._link(block)

    def release_all(self, blocks: Sequence[int]) -> None:
        """Release a sequence's blocks last first: the head of a prefix, the part most shared, is evicted last."""
        for block in reversed(blocks):
            self.release(block)

    def mark_cached(self, block: int) -> None:
        """The prefix cache now knows this live block's contents."""
        assert self.refs[block] > 0 and not self.cached[block], f"block {block} cannot become cached"
        self.cached[block] = True

    def unmark_cached(self, block: int) -> None:
        """Its contents are forgotten; unreferenced, it moves to the front of the list."""
        assert self.cached[block], f"block {block} is not cached"
        if self.refs[block] > 0 or block in self.quarantined:
            self.cached[block] = False
            return
        self._unlink(block)
        self.cached[block] = False
        self._link(block)

    def quarantine(self, block: int) -> None:
        """Never hand this block out again. A live one leaves when its references are gone."""
        if block in self.quarantined:
            return
        if self.refs[block] == 0:
            self._unlink(block)
        self.quarantined.add(block)

    def listed(self) -> Iterator[int]:
        """The unreferenced blocks in the order they would be taken. For checks: O(n)."""
        block = self._next[self._end]
        while block != self._end:
            assert self._prev[self._next[block]] == block, f"the list's links disagree at block {block}"
            yield block
            block = self._next[block]

    def _unlink(self, block: int) -> None:
        before, after = self._prev[block], self._next[block]
        self._next[before], self._prev[after] = after, before
        self.num_unreferenced -= 1
        self.num_cached -= self.cached[block]

    def _link(self, block: int) -> None:
        if self.cached[block]:
            before, after = self._prev[self._end], self._end
        else:
            before, after = self._end, self._next[self._end]
        self._prev[block], self._next[block] = before, after
        self._next[before] = self._prev[after] = block
        self.num_unreferenced += 1
        self.num_cached += self.cached[block]
