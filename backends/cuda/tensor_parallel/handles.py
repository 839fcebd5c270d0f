"""Weight handles of a rank: those of its own loader, with the sums and gatherings that make them the whole model's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ....models.decoder import EMBEDDING, HEAD
from ..experts import Activation, Experts
from ..weights import Embedding, Linear, Loader
from .ranks import Ranks
from .shares import Shares


@dataclass(frozen=True, slots=True)
class SummedLinear:
    """A matrix whose columns are split: each rank multiplies its part of ``x``, and the products are added up."""

    part: Linear
    ranks: Ranks

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.ranks.sum(self.part(x))


@dataclass(frozen=True, slots=True)
class SummedExperts:
    """Experts whose inner columns are split: each rank weighs and adds what its parts make of ``x``."""

    part: Experts
    ranks: Ranks

    def __call__(
        self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, activate: Activation
    ) -> torch.Tensor:
        return self.ranks.sum(self.part(x, shares, chosen, activate))


@dataclass(frozen=True, slots=True)
class GatheredLinear:
    """A matrix whose ``rows`` are split, ``each`` to a rank: [T, K] to the whole [T, rows], on every rank."""

    part: Linear
    ranks: Ranks
    rows: int
    each: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        mine = self.part(x)
        parts = self.ranks.gather(F.pad(mine, (0, self.each - mine.shape[1])))
        return parts.transpose(0, 1).reshape(len(mine), -1)[:, : self.rows].contiguous()


@dataclass(frozen=True, slots=True)
class SplitEmbedding:
    """A table whose rows are split: a rank looks up the ids ``start`` to ``stop``, and one has each."""

    part: Embedding
    ranks: Ranks
    start: int
    stop: int

    def __call__(self, token_ids: torch.Tensor) -> torch.Tensor:
        mine = (token_ids >= self.start) & (token_ids < self.stop)
        rows = self.part((token_ids - self.start).clamp(0, self.stop - self.start - 1))
        return self.ranks.sum(torch.where(mine[:, None], rows, 0))


class ParallelLoader:
    """A ``Loader`` of a rank's share, which ``inner`` loads."""

    def __init__(self, inner: Loader, ranks: Ranks, shares: Shares) -> None:
        self._inner, self._ranks, self._shares = inner, ranks, shares
        self.dtype, self.device = inner.dtype, inner.device

    @property
    def nbytes(self) -> int:
        return self._inner.nbytes

    def linear(self, *names: str) -> Linear:
        part: Linear = self._inner.linear(*names)
        if names[0].endswith(("o_proj", "down_proj")):
            return SummedLinear(part, self._ranks)
        if names[0] in (EMBEDDING, HEAD):
            return GatheredLinear(part, self._ranks, self._shares.config.vocab_size, self._shares.vocab_rows)
        return part

    def embedding(self, name: str) -> Embedding:
        return SplitEmbedding(self._inner.embedding(name), self._ranks, *self._shares.vocabulary(self._ranks.rank))

    def norm(self, name: str) -> torch.Tensor:
        found: torch.Tensor = self._inner.norm(name)
        return found

    def router(self, name: str) -> Linear:
        found: Linear = self._inner.router(name)
        return found

    def experts(self, names: Sequence[str]) -> SummedExperts:
        return SummedExperts(self._inner.experts(names), self._ranks)
