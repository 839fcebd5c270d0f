"""The running sequences' counters as arrays: a decode step is planned and built without a loop over sequences."""

from __future__ import annotations

import heapq

import numpy as np
from numpy.typing import NDArray

from .sequence import Sequence
from .step import PLACEHOLDER

Index = NDArray[np.intp]


class Rows:
    """R fixed rows, one per running sequence, and its block table.

        0 <= published * block_size <= computed <= tokens,   known <= tokens

    ``tokens`` counts those known and those sampled by a step still in flight; ``computed`` those whose K/V a submitted
    step writes. A row is *reading its prompt* while computed < entry (the tokens known when it entered: after a
    preemption its outputs are among them) and *decoding* from then on, always exactly one token behind.
    A row that follows a grammar *waits* while tokens of it are in flight and until what may follow them is known.
    A row may be given away at once: steps run in order, so an older step in flight is done with it before.
    """

    def __init__(self, num_rows: int, max_blocks: int, block_size: int) -> None:
        self.block_size = block_size
        self.seqs: list[Sequence | None] = [None] * num_rows
        self.active = np.zeros(num_rows, np.bool_)
        self.masked = np.zeros(num_rows, np.bool_)  # follows a grammar
        self.waits = np.zeros(num_rows, np.bool_)  # and has no mask for its next token yet
        self.num_masked = 0
        self.known = np.zeros(num_rows, np.int32)
        self.tokens = np.zeros(num_rows, np.int32)
        self.computed = np.zeros(num_rows, np.int32)
        self.entry = np.zeros(num_rows, np.int32)
        self.limit = np.zeros(num_rows, np.int32)
        self.published = np.zeros(num_rows, np.int32)  # leading blocks the prefix cache was told of
        self.num_blocks = np.zeros(num_rows, np.int32)
        self.next_token = np.full(num_rows, PLACEHOLDER, np.int32)  # the token at position ``computed``
        self.tables = np.full((num_rows, max_blocks), -1, np.int32)
        self._free = list(range(num_rows))

    @property
    def num_free(self) -> int:
        return len(self._free)

    @property
    def num_running(self) -> int:
        return len(self.seqs) - len(self._free)

    def running(self) -> list[Sequence]:
        return [seq for seq in self.seqs if seq is not None]

    def decoding(self) -> Index:
        """Rows with one token to compute, in row order; those that wait for a mask are left out."""
        ready = self.active & (self.computed >= self.entry) & (self.tokens < self.limit)
        if self.num_masked:
            ready &= ~self.waits
        return np.flatnonzero(ready)

    def reading(self) -> Index:
        """Rows with prompt left to compute."""
        return np.flatnonzero(self.active & (self.computed < self.entry))

    def progress(self, seq: Sequence) -> tuple[int, int]:
        """(tokens made since it entered its row, those in flight included; the most that it may still make)."""
        tokens = int(self.tokens[seq.row])
        return tokens - int(self.entry[seq.row]), int(self.limit[seq.row]) - tokens

    def enter(self, seq: Sequence, computed: int, published: int) -> None:
        """Give ``seq`` a row; its blocks cover all its tokens, the first ``computed`` of which hold their K/V."""
        row = heapq.heappop(self._free)
        count = len(seq.tokens)
        seq.row, seq.settled = row, False
        seq.entry = np.array(seq.tokens, np.int32)
        self.seqs[row] = seq
        self.active[row] = True
        self.masked[row], self.waits[row] = seq.constraint is not None, False
        self.num_masked += seq.constraint is not None
        self.known[row] = self.tokens[row] = self.entry[row] = count
        self.computed[row], self.published[row], self.limit[row] = computed, published, seq.limit
        self.num_blocks[row] = len(seq.blocks)
        self.tables[row, : len(seq.blocks)] = seq.blocks
        self.next_token[row] = PLACEHOLDER

    def leave(self, seq: Sequence) -> None:
        """Take ``seq`` off its row; it remembers how many of its tokens are still in flight."""
        row = seq.row
        seq.num_pending = int(self.tokens[row] - self.known[row])
        self.tables[row, : self.num_blocks[row]] = -1
        self.active[row] = self.masked[row] = self.waits[row] = False
        self.num_masked -= seq.constraint is not None
        self.seqs[row] = None
        seq.row, seq.entry = -1, None
        heapq.heappush(self._free, row)

    def add_block(self, seq: Sequence, block: int) -> None:
        self.tables[seq.row, len(seq.blocks)] = block
        seq.blocks.append(block)
        self.num_blocks[seq.row] += 1

    def advance(self, rows: Index, counts: NDArray[np.int32], samples: NDArray[np.bool_]) -> None:
        """A submitted step computes ``counts`` tokens of each row and draws one where ``samples``."""
        self.computed[rows] += counts
        self.tokens[rows] += samples
        self.next_token[rows] = PLACEHOLDER

    def learn(self, rows: Index, tokens: NDArray[np.int32]) -> None:
        """One drawn token per row has become known."""
        self.known[rows] += 1
        latest = self.known[rows] == self.tokens[rows]
        self.next_token[rows[latest]] = tokens[latest]
