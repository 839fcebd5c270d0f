"""Mixtures of experts (arXiv:1701.06538) as Mixtral and Qwen3-MoE have them: a router, and the experts it picks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ..backends.base import Ops
from .config import MoeConfig

if TYPE_CHECKING:
    from .decoder import WeightLoader

ROUTER = "mlp.gate"
_EXPERT = "mlp.experts.{}."


@dataclass(frozen=True, slots=True)
class MoeMlp:
    """The shares' weighted sum of what the picked experts, each a ``GatedMlp`` of its own, make of a token."""

    router: Any
    experts: Any
    top_k: int
    normalise: bool

    def __call__(self, ops: Ops, x: Any) -> Any:
        return ops.moe(x, self.router, self.experts, self.top_k, self.normalise)


def load_moe(config: MoeConfig, prefix: str, loader: WeightLoader) -> MoeMlp:
    """The experts of the layer whose tensors' names begin with ``prefix``."""
    names = [prefix + _EXPERT.format(expert) for expert in range(config.num_experts)]
    return MoeMlp(
        router=loader.router(prefix + ROUTER),
        experts=loader.experts(names),
        top_k=config.top_k,
        normalise=config.normalise,
    )
