"""The tree against a plain list of everything published."""

from __future__ import annotations

import os

import hypothesis.strategies as st
from hypothesis import given, settings

from bireme.core.blocks import BlockPool
from bireme.core.prefix import Node, PrefixCache, root_key

SIZE = 3
Tokens = tuple[int, ...]


class Model:
    """A pool and a cache; sequences are computed and published whole, and end at once."""

    def __init__(self, blocks: int) -> None:
        self.pool = BlockPool(blocks)
        self.cache = PrefixCache(self.pool, SIZE)

    def store(self, tokens: Tokens) -> int:
        """Match, take blocks for the rest, publish, release. Returns how many tokens were found."""
        match = self.cache.match(tokens, "", len(tokens) - 1)
        found = len(match.blocks) * SIZE + match.num_copied
        need = -(-len(tokens) // SIZE) - len(match.blocks)
        if match.source is not None:
            self.pool.release(match.source)
        blocks = list(match.blocks)
        for _ in range(need):
            block = self.pool.take()
            assert block is not None
            blocks.append(block)
        node = self.cache.root("")
        for i in range(len(tokens) // SIZE):
            node = self.cache.publish(node, tokens[i * SIZE : (i + 1) * SIZE], blocks[i])
        tail = tokens[len(tokens) // SIZE * SIZE :]
        if tail:
            self.cache.publish_tail(node, tail, blocks[-1])
        self.pool.release_all(blocks)
        return found

    def paths(self) -> list[Tokens]:
        """Every prefix that can be found, by walking parents from the index."""
        return [_path(node) for node in self.cache.by_block.values()]


def _path(node: Node) -> Tokens:
    return () if node.parent is None else _path(node.parent) + node.tokens


SEQUENCES = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=14).map(tuple), min_size=1, max_size=25)


@settings(max_examples=200, deadline=None, derandomize=True, database=None)
@given(SEQUENCES, st.integers(5, 30))
def test_every_hit_is_the_longest_there_is(sequences: list[Tokens], blocks: int) -> None:
    model = Model(blocks)
    for tokens in sequences:
        known = model.paths()
        assert len(known) == len(set(known)), "two blocks stand for the same tokens"
        want = max((len(os.path.commonprefix([path, tokens])) for path in known), default=0)
        assert model.store(tokens) == min(want, len(tokens) - 1)
        assert not any(model.pool.refs), "a pin was left behind"


@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(SEQUENCES, st.data())
def test_forgetting_a_block_takes_what_hangs_on_it(sequences: list[Tokens], data: st.DataObject) -> None:
    model = Model(200)
    for tokens in sequences:
        model.store(tokens)
    while model.cache.by_block:
        block = data.draw(st.sampled_from(sorted(model.cache.by_block)))
        gone = _path(model.cache.by_block[block])
        left = [path for path in model.paths() if path[: len(gone)] != gone]
        model.cache.forget(block)
        assert sorted(model.paths()) == sorted(left)
        assert sum(model.pool.cached) == len(left)
    assert not model.cache.roots


def test_key_parts_never_run_together() -> None:
    keys = [
        root_key(model="m", salt="x"),
        root_key(model="m", adapter="x"),
        root_key(model="m", salt="ab", adapter="c"),
        root_key(model="m", salt="a", adapter="bc"),
        root_key(model="m", salt="x;salt:1:y"),
        root_key(model="m"),
        root_key(model="m", salt=""),
    ]
    assert len(set(keys)) == len(keys)


def test_a_salt_that_was_only_asked_for_leaves_nothing() -> None:
    cache = PrefixCache(BlockPool(4), SIZE)
    for salt in range(100):
        assert cache.match((1, 2, 3, 4), str(salt), 3).blocks == ()
    assert not cache.roots


def test_a_dropped_root_that_came_back_is_the_one_in_use() -> None:
    model = Model(8)
    stale = model.cache.root("")
    model.cache.match((1, 2), "", 1)  # drops the empty tree
    model.store((1, 2, 3, 4))
    block = model.pool.take()
    assert block is not None
    model.cache.publish(stale, (2, 2, 2), block)
    model.pool.release(block)
    assert sorted(model.paths()) == [(1, 2, 3), (1, 2, 3, 4), (2, 2, 2)]
    assert model.store((2, 2, 2, 1)) == 3


def test_switched_off_it_knows_nothing() -> None:
    cache = PrefixCache(BlockPool(4), SIZE, enabled=False)
    match = cache.match((1, 2, 3, 4), "", 3)
    assert match.node is None and not match.blocks and match.source is None
