"""The one gate for KV memory: sequences get, share, publish and give back their blocks here and nowhere else."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from . import scores
from .blocks import BlockPool
from .prefix import Match, PrefixCache
from .rows import Rows
from .sequence import Sequence


class Admitted(NamedTuple):
    """A sequence now has a row. ``copy`` (from, to) must be done before its first step; its source holds a pin."""

    computed: int
    copy: tuple[int, int] | None


class KVManager:
    """Blocks, the prefix cache and the rows' block tables, kept in step.

        block table of a sequence:  [ shared, full | own, full, published | own, full | partly filled | still empty ]
                                                                          ^ published * size         ^ its last token

    All blocks that a sequence's known tokens need are taken when it enters; after that it grows by one at a time.
    """

    def __init__(self, num_blocks: int, rows: Rows, block_size: int, model: str, enable_caching: bool) -> None:
        self.pool = BlockPool(num_blocks)
        self.cache = PrefixCache(self.pool, block_size, model, enable_caching)
        self.rows = rows
        self.block_size = block_size

    def admit(self, seq: Sequence, headroom: int) -> Admitted | None:
        """Find what is already computed of ``seq``, take the blocks for the rest and give it a row.

        None, with nothing changed, if that would leave fewer than ``headroom`` blocks.
        """
        match = self._match(seq)
        need = -(-len(seq.tokens) // self.block_size) - len(match.blocks)
        if match.source is not None and self.pool.num_unreferenced < need + headroom:
            self.pool.release(match.source)  # its pin may be what is missing
            match = Match(match.node, match.blocks)
        if self.pool.num_unreferenced < need + headroom:
            self.pool.release_all(match.blocks)
            return None
        seq.blocks = [*match.blocks, *(self._take() for _ in range(need))]
        seq.node = match.node
        computed = len(match.blocks) * self.block_size + match.num_copied
        published = 0 if match.node is None else len(match.blocks)
        self.rows.enter(seq, computed, published)
        copy = None if match.source is None else (match.source, seq.blocks[len(match.blocks)])
        return Admitted(computed, copy)

    def grow(self, seq: Sequence) -> bool:
        """One more block for a running sequence; False when there is none."""
        block = self.pool.take()
        if block is None:
            return False
        self.rows.add_block(seq, block)
        return True

    def publish_ready(self) -> None:
        """Tell the prefix cache of every block that has become full, after the step that fills it was submitted."""
        if not self.cache.enabled:
            return
        rows = self.rows
        full = np.minimum(rows.computed, rows.known) // self.block_size
        for row in np.flatnonzero(rows.active & (full > rows.published)).tolist():
            seq = rows.seqs[row]
            assert seq is not None
            self._publish(seq, int(full[row]))

    def release(self, seq: Sequence, *, poisoned: bool = False) -> None:
        """Take ``seq`` off its row and give back its blocks, findable for others unless ``poisoned``."""
        if poisoned:
            for block in seq.blocks:
                self.cache.forget(block)
        elif self.cache.enabled:
            self._publish_all(seq)
        self.rows.leave(seq)
        self.pool.release_all(seq.blocks)
        seq.blocks, seq.node = [], None

    def forget(self, seq: Sequence) -> None:
        """Make nothing findable any more of a poisoned sequence that was preempted before it was known to be."""
        match = self.cache.match(seq.tokens, seq.group.request.cache_salt, len(seq.tokens))
        known = match.blocks if match.source is None else (*match.blocks, match.source)
        self.pool.release_all(known)
        for block in known:
            self.cache.forget(block)

    def restore_cost(self, seq: Sequence) -> int:
        """Tokens to compute again if ``seq`` lost its blocks now; others' references keep what is shared."""
        if self.rows.tokens[seq.row] >= self.rows.limit[seq.row]:
            return 0  # nothing is left to compute: only its last results are under way
        refs = self.pool.refs
        shared = next((i for i, block in enumerate(seq.blocks) if refs[block] < 2), len(seq.blocks))
        return max(0, int(self.rows.computed[seq.row]) - shared * self.block_size)

    def _match(self, seq: Sequence) -> Match:
        """From the leader of its request while that runs, else from the cache; never the last token, and nothing where
        something is wanted of every token."""
        leader, limit = seq.leader, len(seq.tokens) - 1
        if seq.group.request.params.pooling == "mean" or scores.wanted(seq):
            limit = 0
        may_fork = leader is not seq and leader.row >= 0 and leader.settled and not seq.num_outputs
        if not may_fork or self.rows.computed[leader.row] < limit:
            return self.cache.match(seq.tokens, seq.group.request.cache_salt, limit)
        whole, rest = divmod(limit, self.block_size)
        blocks = tuple(leader.blocks[:whole])
        source = leader.blocks[whole] if rest else None
        for block in blocks if source is None else (*blocks, source):
            self.pool.share(block)
        return Match(None, blocks, source, rest)

    def _take(self) -> int:
        block = self.pool.take()
        assert block is not None, "blocks were counted but are not there"
        return block

    def _publish(self, seq: Sequence, full: int) -> None:
        done, node = int(self.rows.published[seq.row]), seq.node
        if node is None or not node.reachable:  # a fork, or another's block that stood for ours has gone: begin anew
            done, node = 0, self.cache.root(seq.group.request.cache_salt)
        size = self.block_size
        for i in range(done, full):
            node = self.cache.publish(node, tuple(seq.tokens[i * size : (i + 1) * size]), seq.blocks[i])
        seq.node = node
        self.rows.published[seq.row] = full

    def _publish_all(self, seq: Sequence) -> None:
        """Everything computed and known, the partly filled block included: ``seq`` writes no more."""
        valid = int(min(self.rows.computed[seq.row], self.rows.known[seq.row]))
        full, rest = divmod(valid, self.block_size)
        self._publish(seq, full)
        if rest:
            assert seq.node is not None
            self.cache.publish_tail(seq.node, tuple(seq.tokens[full * self.block_size : valid]), seq.blocks[full])
