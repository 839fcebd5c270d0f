"""The two doors between the parts: ``Backend`` (core to device) and ``Ops`` (models to device)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from ..core.step import StepBatch, StepResult


@dataclass(frozen=True, slots=True)
class BackendInfo:
    """What the core must know of a loaded backend. Fixed once the backend is made."""

    device: str  # "cpu", "cuda", "mlx", "sim"
    model_name: str
    quantization: str  # e.g. "Q4_1 (int8 activations)", for people
    vocab_size: int  # rows of the output matrix
    max_model_len: int  # the model's own context limit
    end_ids: frozenset[int]  # every id that ends a turn, from all the checkpoint's files
    num_blocks: int  # KV blocks in the pool
    block_size: int
    weight_bytes: int
    kv_bytes_per_token: int
    max_in_flight: int  # steps worth having submitted at once: 1 or 2
    kv_cache_dtype: str = "none"  # what keys and values are kept as: "float32", "bfloat16", "int8"
    ranks: int = 1  # devices that share the model; the bytes above are those of one


class Ticket(Protocol):
    """A submitted step."""

    def wait(self) -> StepResult:
        """Block until the step is done. Tickets are waited for in the order of submission."""
        ...

    def done(self) -> bool:
        """Whether ``wait`` would return at once."""
        ...


class Backend(Protocol):
    """Runs steps in order on one device. Used from one thread, from construction to ``close``."""

    @property
    def info(self) -> BackendInfo: ...

    def submit(self, batch: StepBatch) -> Ticket:
        """Queue a step. Its ``copies`` are done first, then ``new_rows`` take effect, then the tokens run."""
        ...

    def close(self) -> None:
        """Free everything the device holds. Safe to call twice."""
        ...


class Ops(Protocol):
    """The operations an architecture is written in; arrays and weight handles are the backend's own and opaque.

    T tokens lie packed in ``[T, ...]``, whatever sequences they belong to; ``step`` carries where each belongs. Norms,
    softmax and rotary embedding accumulate in float32; outputs have the input's dtype.
    """

    def embedding(self, weight: Any, token_ids: Any, scale: float = 1.0) -> Any:
        """Rows of ``weight`` [V, D] for ``token_ids`` [T], times ``scale`` rounded to their dtype: [T, D]."""
        ...

    def linear(self, x: Any, weight: Any) -> Any:
        """``x`` [T, K] times ``weight`` [N, K] transposed, plus the handle's bias if it has one: [T, N]."""
        ...

    def rms_norm(self, x: Any, weight: Any, eps: float) -> Any:
        """``x / sqrt(mean(x^2) + eps) * weight`` over the last axis."""
        ...

    def add_rms_norm(self, x: Any, residual: Any, weight: Any, eps: float, own: Any | None = None) -> tuple[Any, Any]:
        """``r = x + residual``; returns ``(rms_norm(r), r)``. With ``own``, a norm's weight, ``x`` is normed by it
        before it is added; what comes of that may be larger than float16 holds, as ``r`` may (Gemma)."""
        ...

    def rope_and_store(self, qkv: Any, layer: Any, step: Any) -> Any:
        """Split ``qkv`` [T, (H + 2 KV) * hd]; norm q and k per head where ``layer`` has the weights (Qwen3); rotate
        both by their positions, as the layer's ``rope`` says (half-split layout); store k and v at the step's slots.
        Returns q [T, H, hd]."""
        ...

    def attention(self, q: Any, layer: Any, step: Any) -> Any:
        """Causal attention of ``q`` [T, H, hd] over each sequence's own cached K/V, with ``layer``'s window and scale:
        [T, H * hd]."""
        ...

    def swiglu(self, gate_up: Any) -> Any:
        """``silu(gate) * up`` of ``gate_up`` [T, 2 F] (gate first): [T, F]."""
        ...

    def geglu(self, gate_up: Any) -> Any:
        """``gelu(gate) * up`` of ``gate_up`` [T, 2 F] (gate first), GELU by tanh (arXiv:1606.08415): [T, F]."""
        ...

    def take_rows(self, x: Any, index: Any) -> Any:
        """``x[index]``: the rows whose logits are wanted."""
        ...

    def moe(self, x: Any, router: Any, experts: Any, top_k: int, normalise: bool) -> Any:
        """Each token through the ``top_k`` experts that its router picks: ``x`` [T, D] to [T, D].

        A token's logits are its products with the router's rows [E, D]. Its experts are those of the ``top_k`` largest,
        of equal ones that with the lower index first. Their shares are the softmax over all E logits in float32, which
        with ``normalise`` are divided by their own sum. Each expert makes ``down(swiglu(gate_up(x)))`` in x's dtype;
        these are multiplied with the shares and added in float32, the largest share first, and rounded once. What a
        token becomes never depends on the experts of other tokens, but where ``linear`` itself does on their number.
        A NaN among a token's logits makes the whole of its result NaN, and nobody else's.
        """
        ...
