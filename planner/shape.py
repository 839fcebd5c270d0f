"""What a plan needs to know of a model, wherever it came from: files, config.json, or numbers typed in."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from ..core.memory import LayerCache
from ..models.config import ModelConfig


@dataclass(frozen=True, slots=True)
class Part:
    """Tensors that are stored alike."""

    kind: str  # "Q4_K", "BF16", ...; "codes": packed integers; "beside": what belongs to a quantised weight
    elements: int  # weights; those of codes, not the words they lie in
    nbytes: int
    #: "table": an embedding; "tied": one that is the head too; "vector": norms, biases; "router": of experts
    role: str = "matrix"
    expert: bool = False  # routed
    bits: int = 0  # of a code
    half: bool = True  # scales of codes are float16
    ordered: bool = False  # columns of codes may be in an order of their own

    @property
    def looked_up(self) -> bool:
        """Whether a token reads one row of it and no more."""
        return self.role == "table"


@dataclass(frozen=True, slots=True)
class Weights:
    """The tensors. Of a mixture of experts all are held and few are read per token."""

    total_bytes: int
    active_bytes: int  # read for one token; the embedding, of which a token reads one row, left out
    parameters: int | None = None  # None: not known
    active_parameters: int | None = None
    expert_bytes: int = 0  # of all routed experts
    num_experts: int = 0  # routed, per layer
    experts_used: int = 0  # by one token, per layer
    source: str = "typed in"  # where the sizes come from, for people
    parts: tuple[Part, ...] = ()  # (): only the sums are known

    def read_bytes(self, num_tokens: int) -> float:
        """Expected bytes a step of ``num_tokens`` reads, its experts drawn evenly and independently."""
        if not self.num_experts:
            return float(self.active_bytes)
        touched = 1 - (1 - self.experts_used / self.num_experts) ** num_tokens
        always = self.active_bytes - self.expert_bytes * self.experts_used / self.num_experts
        return always + self.expert_bytes * touched


def sum_weights(parts: Iterable[Part], num_experts: int, experts_used: int, source: str) -> Weights:
    """The sums over ``parts``, those stored alike taken together."""
    alike: dict[Part, tuple[int, int]] = {}
    for part in parts:
        key = replace(part, elements=0, nbytes=0)
        elements, nbytes = alike.get(key, (0, 0))
        alike[key] = (elements + part.elements, nbytes + part.nbytes)
    found = tuple(replace(key, elements=elements, nbytes=nbytes) for key, (elements, nbytes) in alike.items())
    total, parameters = sum(part.nbytes for part in found), sum(part.elements for part in found)
    rows = [part for part in found if part.looked_up]
    experts = [part for part in found if part.expert]
    unused = 1 - (experts_used / num_experts if num_experts and experts_used else 1.0)
    expert_bytes = sum(part.nbytes for part in experts)
    idle = sum(part.elements for part in rows) + sum(part.elements for part in experts) * unused
    return Weights(
        total_bytes=total,
        active_bytes=round(total - sum(part.nbytes for part in rows) - expert_bytes * unused),
        parameters=parameters,
        active_parameters=round(parameters - idle),
        expert_bytes=expert_bytes,
        num_experts=num_experts if experts and experts_used else 0,
        experts_used=experts_used,
        source=source,
        parts=found,
    )


@dataclass(frozen=True, slots=True)
class ModelShape:
    """One model. ``config`` sizes the work buffers; it is None where only the cache's shape is known."""

    name: str
    layers: tuple[LayerCache, ...]
    weights: Weights
    config: ModelConfig | None = None
    quantization: str = "not known"
    max_position: int | None = None
    notes: tuple[str, ...] = ()
    head_dim: int | None = None  # K or V elements that share a scale where the cache is quantised; None: not known
    latent: bool = False  # MLA: one latent stands for the K and V of all heads


def window_note(slides: int, layers: int) -> str:
    return (
        f"{slides} of {layers} layers see a window only; Bireme's pool keeps every token in every layer, which a plan "
        "for one of its devices (--device) counts"
    )
