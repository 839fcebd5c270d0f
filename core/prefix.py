"""Which blocks already hold which tokens: a radix tree whose edges are blocks."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass, field

from .blocks import BlockPool

Tokens = tuple[int, ...]


def root_key(**parts: str) -> bytes:
    """The identity of a whole tree: every part tagged with its name and delimited by its length.

    No two different sets of parts give one key: ``salt="x"`` is not ``adapter="x"``, nor is "ab", "c" "a", "bc".
    """
    key = b""
    for name, value in sorted(parts.items()):
        data = value.encode("utf-8", "surrogatepass")
        key += b"%s:%d:%s;" % (name.encode(), len(data), data)
    return key


@dataclass(slots=True, eq=False)
class Node:
    """A block's contents, given all that came before it.

    ``tokens`` is a whole block, or fewer for the last block of a sequence that has ended; such a node has no children
    and its block is only ever copied from.
    """

    parent: Node | None
    tokens: Tokens
    block: int
    key: bytes = b""  # of a root
    reachable: bool = True
    children: dict[Tokens, Node] = field(default_factory=dict)
    order: list[Tokens] = field(default_factory=list)  # the children's tokens, sorted


@dataclass(frozen=True, slots=True)
class Match:
    """What is already computed of some tokens. Every block named is pinned: it holds one reference for the caller."""

    node: Node | None  # of the last whole block; a root when there is none; None with the cache off
    blocks: tuple[int, ...] = ()  # whole blocks, to be shared
    source: int | None = None  # the block that continues the match, to be copied
    num_copied: int = 0  # tokens of ``source`` that match


class PrefixCache:
    """Finds and publishes blocks by identity: (root by model and salt; the parent; the block's tokens).

    A node's key in its parent is its tokens themselves, so a hit compares tokens and never trusts a hash. A node that
    loses its block takes its whole subtree with it: no descendant can be found any more, and the blocks of those
    unreferenced are free at once. Every node is made and removed once, so the cost of that is amortised O(1).
    """

    def __init__(self, pool: BlockPool, block_size: int, model: str = "", enabled: bool = True) -> None:
        self.pool = pool
        self.block_size = block_size
        self.model = model
        self.enabled = enabled
        self.roots: dict[bytes, Node] = {}
        self.by_block: dict[int, Node] = {}
        pool.on_evict = self.forget

    def root(self, salt: str) -> Node:
        """The tree of one cache salt, made on first use."""
        key = root_key(model=self.model, salt=salt)
        node = self.roots.get(key)
        if node is None:
            node = self.roots[key] = Node(None, (), -1, key)
        return node

    def match(self, tokens: Sequence[int], salt: str, limit: int) -> Match:
        """The longest known prefix of ``tokens[:limit]``, the partly matching next block included. Pins what it names.

        Callers pass ``limit = len(tokens) - 1``: at least one token must be computed to have logits.
        """
        if not self.enabled:
            return Match(None)
        root = node = self.root(salt)
        blocks: list[int] = []
        start, size = 0, self.block_size
        while start + size <= limit:
            child = node.children.get(tuple(tokens[start : start + size]))
            if child is None:
                break
            self.pool.share(child.block)
            blocks.append(child.block)
            node, start = child, start + size
        source, num_copied = self._partial(node, tuple(tokens[start : min(limit, start + size)]))
        if source is not None:
            self.pool.share(source)
        if node is root:
            self._drop_if_empty(root)
        return Match(node, tuple(blocks), source, num_copied)

    def publish(self, node: Node, tokens: Tokens, block: int) -> Node:
        """Make ``block`` findable as the child of ``node`` that holds ``tokens``; only after its step was submitted.

        Returns the node that stands for these contents: an older one when another block already holds them.
        """
        assert node.reachable and len(node.tokens) in (0, self.block_size), "the parent is not a whole, known block"
        node = self._current(node)
        known = node.children.get(tokens)
        if known is not None:
            return known
        self._drop_shorter(node, tokens)
        if node.parent is None:
            self.roots[node.key] = node
        child = Node(node, tokens, block)
        node.children[tokens] = child
        insort(node.order, tokens)
        self.pool.mark_cached(block)
        self.by_block[block] = child
        return child

    def publish_tail(self, node: Node, tokens: Tokens, block: int) -> None:
        """The same for the last, partly filled block of a sequence that leaves; nothing if a longer one is known."""
        node = self._current(node)
        source, matched = self._partial(node, tokens)
        if source is None or matched < len(tokens):
            self.publish(node, tokens, block)

    def forget(self, block: int) -> None:
        """Remove a block and all that hangs on it; nothing if it is not known."""
        node = self.by_block.get(block)
        if node is None:
            return
        parent = node.parent
        assert parent is not None
        del parent.children[node.tokens]
        del parent.order[bisect_left(parent.order, node.tokens)]
        gone = [node]
        while gone:
            node = gone.pop()
            gone.extend(node.children.values())
            node.children.clear()
            node.order.clear()
            node.reachable = False
            del self.by_block[node.block]
            self.pool.unmark_cached(node.block)
        self._drop_if_empty(parent)

    def _current(self, node: Node) -> Node:
        """``node``, or the root that took its place: an empty tree is dropped, and may begin anew, at any time."""
        return self.roots.setdefault(node.key, node) if node.parent is None else node

    def _partial(self, node: Node, tokens: Tokens) -> tuple[int | None, int]:
        """The child sharing the longest beginning with ``tokens``: in sorted order, one of the two neighbours."""
        at = bisect_left(node.order, tokens)
        best, length = None, 0
        for candidate in node.order[max(0, at - 1) : at + 1]:
            common = _common(candidate, tokens)
            if common > length:
                best, length = candidate, common
        return (None, 0) if best is None else (node.children[best].block, length)

    def _drop_shorter(self, node: Node, tokens: Tokens) -> None:
        """A partly filled block that ``tokens`` begin with has become useless."""
        at = bisect_left(node.order, tokens)
        if at and tokens[: len(node.order[at - 1])] == node.order[at - 1]:
            self.forget(node.children[node.order[at - 1]].block)

    def _drop_if_empty(self, node: Node) -> None:
        """Salts are the clients' to choose: an empty tree must not stay."""
        if node.parent is None and not node.children and self.roots.get(node.key) is node:
            del self.roots[node.key]


def _common(a: Tokens, b: Tokens) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
