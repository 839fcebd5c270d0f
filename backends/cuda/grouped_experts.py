"""Mixtures of experts on a GPU: one launch for the products of all experts, whatever tokens go to which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from .experts import Activation
from .kernels import experts as kernels
from .kernels.experts import Matrices


@dataclass(frozen=True, slots=True)
class GroupedExperts:
    """The ``Experts`` of one layer.

    ``gate_up``: one stack of which an expert's gate and up are the rows, or, where they are stored in different ways, a
    stack of gates and one of ups. Nothing here waits for the device, and no shape depends on what tokens are sent to.
    """

    gate_up: Sequence[Matrices]
    down: Matrices

    def __call__(
        self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, activate: Activation
    ) -> torch.Tensor:
        if not len(x):
            return torch.empty_like(x)
        picks, start = kernels.arrange(chosen, self.down.count), 0
        both = x.new_empty((picks.count, sum(part.rows for part in self.gate_up)))
        for part in self.gate_up:
            stop = start + part.rows
            kernels.multiply(x, part, picks, both[:, start:stop])
            start = stop
        products = x.new_empty((picks.count, self.down.rows))
        kernels.multiply(activate(both), self.down, picks, products)
        return kernels.combine(products, shares)
