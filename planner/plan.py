"""The plan: what a model and so many conversations take, how that compares with the memory, and what would change it.

All arithmetic is that of ``core/memory.py``, which the engine's pool, its start-up line and its admission ask too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..core.memory import kv_bytes, kv_bytes_per_token, kv_element_bytes
from ..models.ggml_types import BY_NAME
from ..server.sizes import decimal_text
from .devices import held_bytes
from .shape import ModelShape, Part

#: Usual quantisations: the types of GGML that each mixes, and their parts of the weights (as 8B models' files have it).
QUANTS = {
    "Q8_0": {"Q8_0": 1.0},
    "Q6_K": {"Q6_K": 1.0},
    "Q5_K_M": {"Q5_K": 0.81, "Q6_K": 0.19},
    "Q4_K_M": {"Q4_K": 0.83, "Q6_K": 0.17},
    "Q3_K_M": {"Q3_K": 0.56, "Q4_K": 0.44},
}
#: Other types of K and V than int8 that make room, by device: (type, who has it).
_OTHERS_KV = {"any": (("q4_0", " (llama.cpp)"),)}
#: Of most models; where a model's own is not known.
USUAL_HEAD_DIM = 128
CONTEXTS = (1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072)
CONCURRENCIES = (1, 2, 4, 8, 16, 20, 32, 64)


@dataclass(frozen=True, slots=True)
class Lever:
    """One change, alone, and what it leads to."""

    change: str
    total_bytes: int
    fits: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """Sizes are bytes, lengths tokens."""

    model: ModelShape  # what one device holds of ``whole``
    whole: ModelShape
    device: str  # as in ``devices.FORMS``
    devices: int  # that share the model; sizes are those of one
    concurrency: int
    context: int
    kv_cache_dtype: str
    weight_bytes: int
    buffer_bytes: int
    memory_bytes: int | None  # the budget; None: none was given

    @property
    def element_bytes(self) -> float:
        return self._element(self.kv_cache_dtype)

    @property
    def kv_bytes_per_token(self) -> int:
        return kv_bytes_per_token(self.model.layers, self.element_bytes)

    @property
    def kv_bytes(self) -> int:
        """Of all conversations, each at its full context, none sharing anything."""
        return self.kv_of(self.concurrency, self.context)

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.buffer_bytes + self.kv_bytes

    @property
    def over_bytes(self) -> int | None:
        """Above the budget; negative: left free."""
        return None if self.memory_bytes is None else self.total_bytes - self.memory_bytes

    @property
    def room(self) -> int | None:
        """What weights and buffers leave for K and V; at least 0."""
        if self.memory_bytes is None:
            return None
        return max(0, self.memory_bytes - self.weight_bytes - self.buffer_bytes)

    def _element(self, dtype: str) -> float:
        return kv_element_bytes(dtype, self.model.head_dim or USUAL_HEAD_DIM)

    def kv_of(self, concurrency: int, context: int, dtype: str | None = None) -> int:
        element = self.element_bytes if dtype is None else self._element(dtype)
        return concurrency * kv_bytes(self.model.layers, context, element)

    def conversations(self, context: int) -> int | None:
        """How many of ``context`` tokens fit; None without a budget or without a cache to count."""
        one = self.kv_of(1, context)
        return None if self.room is None or not one else self.room // one

    def longest(self) -> int | None:
        """The longest context that the model has and at which all conversations fit; None without a budget."""
        if self.room is None or not self.kv_bytes_per_token:
            return None
        low, high = 0, 1 << 24
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.kv_of(self.concurrency, middle) <= self.room else (low, middle - 1)
        return min(low, self.model.max_position or low)

    def levers(self) -> list[Lever]:
        """Changes that make room, each taken alone."""
        if self.memory_bytes is None:
            return []
        rest, found = self.weight_bytes + self.buffer_bytes, []
        fitting, longest = self.conversations(self.context) or 0, self.longest() or 0
        if 0 < fitting < self.concurrency:
            text = f"{fitting} conversations instead of {self.concurrency}"
            found.append(self._lever(text, rest + self.kv_of(fitting, self.context)))
        if 0 < longest < self.context:
            text = f"{longest} tokens of context instead of {self.context}"
            found.append(self._lever(text, rest + self.kv_of(self.concurrency, longest)))
        for dtype, whose in (("int8", ""), *_OTHERS_KV.get(self.device, ())):
            if self._element(dtype) < self.element_bytes:
                total = rest + self.kv_of(self.concurrency, self.context, dtype)
                found.append(self._lever(f"KV cache in {dtype}{whose}", total))
        return [*found, *self._smaller_weights()]

    def _smaller_weights(self) -> list[Lever]:
        count = self.model.weights.parameters
        sizes = {} if count is None else {name: _mixed(mix, count, self.device) for name, mix in QUANTS.items()}
        smaller = [(name, size) for name, size in sizes.items() if size < 0.95 * self.weight_bytes]
        rest = self.buffer_bytes + self.kv_bytes
        levers = [self._lever(f"weights in {name} (about {decimal_text(size)})", rest + size) for name, size in smaller]
        first = next((i for i, lever in enumerate(levers) if lever.fits), len(levers) - 1)
        return levers[: first + 1]

    def _lever(self, change: str, total: int) -> Lever:
        assert self.memory_bytes is not None
        return Lever(change, total, total <= self.memory_bytes)

    def exchange(self) -> tuple[Sequence[int], list[tuple[int, list[int]]]]:
        """(contexts, rows of (conversations, total bytes at each context))."""
        contexts = self._contexts()
        rest = self.weight_bytes + self.buffer_bytes
        rows = [
            (count, [rest + self.kv_of(count, context) for context in contexts])
            for count in sorted({*CONCURRENCIES, self.concurrency})
        ]
        return contexts, rows

    def _contexts(self) -> list[int]:
        """The usual ones that the model has, and the one planned for."""
        most = self.model.max_position or CONTEXTS[-1]
        return sorted({*(c for c in CONTEXTS if c <= most), self.context})

    def as_dict(self) -> dict[str, object]:
        """What ``--json`` prints, less the speeds."""
        weights = self.whole.weights
        return {
            "model": self.whole.name,
            "quantization": self.whole.quantization,
            "device": self.device,
            "tensor_parallel": self.devices,
            "parameters": weights.parameters,
            "active_parameters": weights.active_parameters,
            "weights_from": weights.source,
            "concurrency": self.concurrency,
            "context": self.context,
            "kv_cache_dtype": self.kv_cache_dtype,
            "kv_bytes_per_token": self.kv_bytes_per_token,
            "kv_bytes": self.kv_bytes,
            "weight_bytes": self.weight_bytes,
            "active_weight_bytes": self.model.weights.active_bytes,
            "buffer_bytes": self.buffer_bytes,
            "total_bytes": self.total_bytes,
            "memory_bytes": self.memory_bytes,
            "over_bytes": self.over_bytes,
            "fits": None if self.over_bytes is None else self.over_bytes <= 0,
            "pool_tokens": self._pool_tokens(),
            "conversations": {str(c): self.conversations(c) for c in self._contexts()} if self.room is not None else {},
            "longest_context": self.longest(),
            "levers": [
                {"change": lever.change, "total_bytes": lever.total_bytes, "fits": lever.fits}
                for lever in self.levers()
            ],
            "notes": list(self.model.notes),
        }

    def _pool_tokens(self) -> int | None:
        return None if self.room is None or not self.kv_bytes_per_token else self.room // self.kv_bytes_per_token


def _mixed(mix: Mapping[str, float], parameters: int, device: str) -> int:
    """Bytes that ``device`` takes for so many weights in a file of ``mix``."""
    found = 0.0
    for kind, share in mix.items():
        elements, form = round(parameters * share), BY_NAME[kind]
        found += held_bytes(Part(kind, elements, elements // form.block * form.size), device)
    return round(found)
