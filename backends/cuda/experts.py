"""Mixtures of experts in plain torch: the reference of ``Ops.moe``."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
import torch.nn.functional as F

Activation = Callable[[torch.Tensor], torch.Tensor]


class Experts(Protocol):
    """The experts of a layer, however they are stored."""

    def __call__(
        self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, activate: Activation
    ) -> torch.Tensor:
        """``x`` [T, D] through the experts ``chosen`` int64 [T, k], weighed by ``shares`` float32 [T, k]: [T, D].
        ``activate``: [N, 2 F] to [N, F]."""
        ...


def route(logits: torch.Tensor, top_k: int, normalise: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Shares float32 [T, k] and experts int64 [T, k] of ``logits`` [T, E], the largest first; see ``Ops.moe``."""
    wide = logits.float()
    chosen = wide.sort(dim=-1, descending=True, stable=True).indices[:, :top_k]
    shares = wide.softmax(-1).gather(1, chosen)
    return shares / shares.sum(-1, keepdim=True) if normalise else shares, chosen


def combine(products: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
    """``products`` [T, k, D] times ``shares`` [T, k], added in float32 in order and rounded: [T, D]."""
    total = products[:, 0].float() * shares[:, :1]
    for rank in range(1, shares.shape[1]):
        total += products[:, rank].float() * shares[:, rank : rank + 1]
    return total.to(products.dtype)


@dataclass(frozen=True, slots=True)
class DenseExperts:
    """``gate_up`` [E, 2 F, D], an expert's gate first, and ``down`` [E, D, F].

    One expert after the other, and only those that have tokens: which these are the host must know, and on a GPU waits
    for. The road with kernels does not.
    """

    gate_up: torch.Tensor
    down: torch.Tensor

    def __call__(
        self, x: torch.Tensor, shares: torch.Tensor, chosen: torch.Tensor, activate: Activation
    ) -> torch.Tensor:
        products = x.new_empty((*chosen.shape, x.shape[1]))
        for expert in sorted(set(chosen.flatten().tolist())):
            token, rank = (chosen == expert).nonzero(as_tuple=True)
            inner = activate(F.linear(x[token], self.gate_up[expert]))
            products[token, rank] = F.linear(inner, self.down[expert])
        return combine(products, shares)
