"""A checker that walks every block, list, table, tree and queue: raises in tests, quarantines in production."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from .prefix import Node
from .scheduler import Scheduler

log = logging.getLogger(__name__)


class Problem(NamedTuple):
    text: str
    block: int | None = None  # the one to take out of use, where one can be named


class InvariantError(AssertionError):
    """The engine's state contradicts itself."""


def find_problems(scheduler: Scheduler) -> list[Problem]:
    """Every fault found between two steps. O(state): for tests and for diagnosis."""
    return [
        *_references(scheduler),
        *_free_list(scheduler),
        *_rows(scheduler),
        *_own_blocks(scheduler),
        *_tree(scheduler),
        *_queue(scheduler),
    ]


def quarantine(scheduler: Scheduler, problems: list[Problem], *, raise_instead: bool) -> None:
    """Raise ``InvariantError`` naming every fault, or log them and take their blocks out of use."""
    if raise_instead:
        raise InvariantError("; ".join(problem.text for problem in problems))
    for text, block in problems:
        log.error("block state: %s%s", text, "" if block is None else f" (block {block} is taken out of use)")
        if block is not None:
            scheduler.kv.cache.forget(block)
            scheduler.kv.pool.quarantine(block)


def _references(scheduler: Scheduler) -> Iterator[Problem]:
    """A block has as many references as tables name it."""
    held = Counter(block for seq in scheduler.rows.running() for block in seq.blocks)
    for block, refs in enumerate(scheduler.kv.pool.refs):
        if refs != held[block]:
            yield Problem(f"block {block} has {refs} references, {held[block]} tables name it", block)


def _free_list(scheduler: Scheduler) -> Iterator[Problem]:
    """The list holds each unreferenced block once, free ones before cached ones, and the counts agree."""
    pool = scheduler.kv.pool
    listed = list(pool.listed())
    want = {block for block, refs in enumerate(pool.refs) if refs == 0 and block not in pool.quarantined}
    for block in want ^ set(listed):
        yield Problem(f"block {block} is {'missing from' if block in want else 'wrongly in'} the free list", block)
    if len(listed) != len(set(listed)) or len(listed) != pool.num_unreferenced:
        yield Problem(f"the free list holds {len(listed)} entries, {pool.num_unreferenced} are counted")
    cached = [pool.cached[block] for block in listed]
    if cached != sorted(cached):
        yield Problem("a cached block stands before a free one")
    if sum(cached) != pool.num_cached:
        yield Problem(f"{sum(cached)} cached blocks are listed, {pool.num_cached} counted")
    if pool.num_live + pool.num_cached + pool.num_free != pool.num_usable:
        yield Problem("live, cached and free blocks do not add up")


def _rows(scheduler: Scheduler) -> Iterator[Problem]:
    """Counters in order, tables equal to the sequences' own lists, free rows empty."""
    rows, size = scheduler.rows, scheduler.block_size
    if rows.num_free + int(rows.active.sum()) != len(rows.seqs):
        yield Problem("free and active rows do not add up")
    for row, seq in enumerate(rows.seqs):
        table = rows.tables[row].tolist()
        if seq is None:
            if rows.active[row] or any(block != -1 for block in table):
                yield Problem(f"row {row} is free but not empty")
            continue
        computed, tokens, known = int(rows.computed[row]), int(rows.tokens[row]), int(rows.known[row])
        if seq.row != row or not rows.active[row] or seq.finish_reason is not None:
            yield Problem(f"row {row} holds a sequence that is not there")
        if table[: len(seq.blocks)] != seq.blocks or any(block != -1 for block in table[len(seq.blocks) :]):
            yield Problem(f"row {row}: the table is not the sequence's list of blocks")
        if known != len(seq.tokens) or not known <= tokens <= seq.limit or not 0 <= computed <= tokens:
            yield Problem(f"row {row}: computed {computed}, known {known}, tokens {tokens}, limit {seq.limit}")
        if computed > len(seq.blocks) * size or int(rows.published[row]) * size > computed:
            yield Problem(f"row {row}: {computed} tokens computed, {len(seq.blocks)} blocks of {size}")
        if computed >= rows.entry[row] and computed != tokens - 1:
            yield Problem(f"row {row} decodes but is {tokens - computed} tokens behind")


def _own_blocks(scheduler: Scheduler) -> Iterator[Problem]:
    """Where a sequence will write, nobody else reads and the cache knows nothing."""
    rows, pool, size = scheduler.rows, scheduler.kv.pool, scheduler.block_size
    for seq in rows.running():
        for block in seq.blocks[int(rows.computed[seq.row]) // size :]:
            if pool.refs[block] != 1 or pool.cached[block]:
                yield Problem(f"block {block} will be written but is shared or cached", block)


def _tree(scheduler: Scheduler) -> Iterator[Problem]:
    """The nodes reachable from the roots are those the index knows, and theirs are the cached blocks."""
    cache, pool = scheduler.kv.cache, scheduler.kv.pool
    reached: dict[int, Node] = {}
    pending = list(cache.roots.values())
    for root in pending:
        if not root.children:
            yield Problem("an empty tree was kept")
    while pending:
        node = pending.pop()
        if sorted(node.children) != node.order:
            yield Problem(f"the children of block {node.block} are not in order")
        for tokens, child in node.children.items():
            if child.parent is not node or child.tokens != tokens or not child.reachable or child.block in reached:
                yield Problem(f"block {child.block} hangs wrongly in the tree", child.block)
            if len(tokens) > cache.block_size or (child.children and len(tokens) < cache.block_size):
                yield Problem(f"block {child.block} has children but is not full", child.block)
            reached[child.block] = child
            pending.append(child)
    if reached != cache.by_block:
        yield Problem("the tree and its index differ")
    for block, cached in enumerate(pool.cached):
        if cached != (block in reached):
            yield Problem(f"block {block} is {'' if cached else 'not '}marked as cached", block)


def _queue(scheduler: Scheduler) -> Iterator[Problem]:
    """Who waits holds nothing, and the users' counts agree."""
    waiting = list(scheduler.queue)
    if len(waiting) != len(scheduler.queue):
        yield Problem(f"{len(waiting)} sequences wait, {len(scheduler.queue)} are counted")
    for seq in waiting:
        if seq.row >= 0 or seq.blocks or seq.finish_reason is not None:
            yield Problem(f"sequence {seq.order} waits but holds something or has ended")
    unstarted = {seq.group for seq in waiting if seq.group.cached_tokens is None}
    if len(unstarted) != scheduler.num_unstarted:
        yield Problem(f"{len(unstarted)} requests have not started, {scheduler.num_unstarted} are counted")
    new = Counter(group.account.user for group in unstarted)
    counts = Counter(seq.account.user for seq in waiting)
    running = Counter(seq.account.user for seq in scheduler.rows.running())
    preempted = Counter(seq.account.user for seq in scheduler.queue.preempted())
    for account in scheduler.fairness.accounts.values():
        if account.in_line != counts[account.user] - preempted[account.user]:
            yield Problem(f"user {account.user!r} is counted {account.in_line} in line")
        if (account.waiting, account.running) != (counts[account.user], running[account.user]):
            yield Problem(f"user {account.user!r} is counted {account.waiting} waiting, {account.running} running")
        if account.unstarted != new[account.user]:
            yield Problem(f"user {account.user!r} is counted {account.unstarted} not started")
