"""Who holds what: heads, columns of the feed-forward and rows of the vocabulary, dealt out to ranks.

The projections into a layer's two halves (q, k, v; gate, up) are split by rows, those out of them (o, down) by columns,
so that each half needs one sum over the ranks (Megatron-LM, arXiv:1909.08053). A rank's query heads come with the key
and value heads that they read; with more ranks than those, several ranks hold the same one. Embedding and head are
split by rows. Each expert is split as a feed-forward part is; one sum serves all of a token's. Norms and routers are
whole everywhere; a bias behind a sum is rank 0's.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from ....models.config import ModelConfig
from ....models.names import EMBEDDING, HEAD, expert_of
from ....models.source import StoredTensor
from ....models.weight import Checkpoint
from .slices import grain

Span = tuple[int, int]  # from, up to
ROWS, COLUMNS, FIRST = "rows", "columns", "first"
#: Columns that a rank's part of the feed-forward is a multiple of where it can be: whole tiles for the kernels.
_TILE = 64


@dataclass(frozen=True, slots=True)
class Cut:
    """A rank's part of a tensor: some of its rows or columns; FIRST: all of it for rank 0, nothing for others."""

    axis: str
    span: Span = (0, 0)


@dataclass(frozen=True, slots=True)
class Shares:
    """How ``config``'s tensors are dealt out to ``size`` ranks; ``unit`` columns of the feed-forward stay together, and
    ``expert_unit`` of an expert's."""

    config: ModelConfig
    size: int
    unit: int = 1
    expert_unit: int = 1

    @classmethod
    def of(cls, checkpoint: Checkpoint, size: int) -> Shares:
        """Raises ValueError, with the numbers and the sizes that work, where a model can't be split so."""
        units = (_unit(checkpoint, experts=False), _unit(checkpoint, experts=True))
        return cls.of_config(checkpoint.config, size, units, checkpoint.name)

    @classmethod
    def of_config(cls, config: ModelConfig, size: int, units: tuple[int, int], name: str) -> Shares:
        """As ``of``, of a shape alone; ``units``: columns of the feed-forward and of an expert's that no cut parts."""
        problem = _problem(config, units, size)
        if problem is not None:
            known = [n for n in range(1, config.num_heads + 1) if _problem(config, units, n) is None]
            raise ValueError(f"tensor_parallel is {size}, and {name} {problem}; it can be {', '.join(map(str, known))}")
        whole = (_widened(width, unit, size) for width, unit in zip(_widths(config), units, strict=True))
        return cls(config, size, *whole)

    def heads(self, rank: int) -> Span:
        each = self.config.num_heads // self.size
        return rank * each, (rank + 1) * each

    def kv_heads(self, rank: int) -> Span:
        count = self.config.num_kv_heads
        start = rank * count // self.size
        return start, start + max(count // self.size, 1)

    def inner(self, rank: int) -> Span:
        """Columns of the feed-forward: as even as whole units allow."""
        return self._columns(self.config.intermediate_size, self.unit, rank)

    def expert_inner(self, rank: int) -> Span:
        """Columns of an expert's feed-forward."""
        return self._columns(_widths(self.config)[1], self.expert_unit, rank)

    def _columns(self, width: int, unit: int, rank: int) -> Span:
        units = width // unit
        start, stop = (unit * -(-units * place // self.size) for place in (rank, rank + 1))
        return start, stop

    @property
    def vocab_rows(self) -> int:
        """Rows of the vocabulary for each rank; the last ones may have fewer."""
        return -(-self.config.vocab_size // self.size)

    def vocabulary(self, rank: int) -> Span:
        size = self.config.vocab_size
        return min(rank * self.vocab_rows, size), min((rank + 1) * self.vocab_rows, size)

    def config_of(self, rank: int) -> ModelConfig:
        """The decoder that a rank computes; its hidden size and vocabulary are the whole model's."""
        heads, kv_heads, inner = (
            stop - start for start, stop in (self.heads(rank), self.kv_heads(rank), self.inner(rank))
        )
        moe = self.config.moe
        if moe is not None:
            start, stop = self.expert_inner(rank)
            moe = dataclasses.replace(moe, intermediate_size=stop - start)
        return dataclasses.replace(
            self.config, num_heads=heads, num_kv_heads=kv_heads, intermediate_size=inner, moe=moe
        )

    def cut(self, name: str, rank: int) -> Cut | None:
        """The part of the tensor ``name`` that a rank holds; None: all of it."""
        if name in (EMBEDDING, HEAD):
            return Cut(ROWS, self.vocabulary(rank))
        module, _, part = name.rpartition(".")
        module, dim = module.rpartition(".")[2], self.config.head_dim
        if module in ("q_proj", "k_proj", "v_proj"):
            start, stop = self.heads(rank) if module == "q_proj" else self.kv_heads(rank)
            return Cut(ROWS, (start * dim, stop * dim))
        inner = self.inner if expert_of(name) is None else self.expert_inner
        if module in ("gate_proj", "up_proj"):
            return Cut(ROWS, inner(rank))
        if module not in ("o_proj", "down_proj"):
            return None
        if part == "bias":
            return Cut(FIRST)
        start, stop = self.heads(rank)
        return Cut(COLUMNS, (start * dim, stop * dim) if module == "o_proj" else inner(rank))


def grain_of(stored: StoredTensor) -> int:
    """See ``slices.grain``."""
    return grain(stored.kind, stored.shape[1], stored.group_size, stored.ordered)


def _widths(config: ModelConfig) -> tuple[int, int]:
    """Columns of a feed-forward part, and of an expert's."""
    return config.intermediate_size, config.intermediate_size if config.moe is None else config.moe.intermediate_size


def _unit(checkpoint: Checkpoint, experts: bool) -> int:
    """Columns of the feed-forward that no cut may part, so that all layers' matrices stay quantised."""
    names = (name for name in checkpoint.names() if name.endswith("down_proj.weight"))
    found = {grain_of(checkpoint.stored(name)) for name in names if (expert_of(name) is not None) == experts}
    return math.lcm(*(unit for unit in found if unit))


def _widened(width: int, unit: int, size: int) -> int:
    """``unit``, or the multiple of it that is whole tiles too, where ranks can be dealt those."""
    wide = math.lcm(unit, _TILE)
    return wide if width % wide == 0 and width // wide >= size else unit


def _problem(config: ModelConfig, units: tuple[int, int], size: int) -> str | None:
    """Why ``size`` ranks can't share the model."""
    heads, kv_heads = config.num_heads, config.num_kv_heads
    if heads % size:
        return f"has {heads} attention heads, which {size} devices can't share evenly"
    if kv_heads % size and size % kv_heads:
        return f"has {kv_heads} key-value heads, which {size} devices can neither share evenly nor repeat evenly"
    for inner, unit, what in zip(_widths(config), units, ("its feed-forward", "each expert"), strict=True):
        if inner // unit < size:
            return f"has {inner // unit} blocks of {unit} columns in {what} ({inner}), too few for {size} devices"
    return None
