"""Samplers of a group: every rank draws from the same logits, and all go on with what rank 0 drew."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..sampler import Sampled, Sampler
from .ranks import Ranks

MakeSampler = Callable[[int, int, torch.device], Sampler]


class SharedSampler(Sampler):
    """``Sampler``, then rank 0's tokens."""

    ranks: Ranks

    def sample(self, *args: Any) -> Sampled:
        drawn = super().sample(*args)
        self.ranks.share(drawn.tokens)
        return drawn


def shared(sampler: MakeSampler, ranks: Ranks) -> MakeSampler:
    """What makes a ``sampler`` whose tokens are the same on every rank."""
    kind = SharedSampler if sampler is Sampler else _by_kernels()

    def make(rows: int, vocab_size: int, device: torch.device) -> Sampler:
        made = kind(rows, vocab_size, device)
        made.ranks = ranks
        return made

    return make


def _by_kernels() -> Any:
    from ..triton_sampler import Launch, TritonSampler  # Triton isn't everywhere

    class SharedTritonSampler(TritonSampler):
        """``TritonSampler``, then rank 0's tokens; both can be part of a captured graph."""

        ranks: Ranks

        def draw(
            self,
            logits: torch.Tensor,
            rows: torch.Tensor,
            positions: torch.Tensor,
            last_tokens: torch.Tensor,
            launch: Launch,
            masks: tuple[torch.Tensor, torch.Tensor] | None = None,
        ) -> tuple[torch.Tensor, torch.Tensor]:
            tokens, nan = super().draw(logits, rows, positions, last_tokens, launch, masks)
            self.ranks.share(tokens)
            last_tokens.index_copy_(0, rows, tokens.to(last_tokens.dtype))
            return tokens, nan

    return SharedTritonSampler
