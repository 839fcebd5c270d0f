"""The one budget function: what the weights, the work buffers and the KV blocks take, and how many conversations fit.

Backends size their pools with it, the start-up line prints it and admission relies on it, so they cannot disagree.
All sizes are bytes, all lengths tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..models.config import ModelConfig

#: The length the start-up line counts conversations at.
CONVERSATION_TOKENS = 4096
#: A quantised head of keys or values keeps one float32 scale per token.
SCALE_BYTES = 4


#: Bytes of one K or V element by the name ``--kv-cache-dtype`` gives it; block formats carry their scales.
KV_ELEMENT_BYTES = {
    **dict.fromkeys(("float32", "f32"), 4.0),
    **dict.fromkeys(("float16", "f16", "bfloat16", "bf16"), 2.0),
    "q8_0": 34 / 32,
    "q5_1": 24 / 32,
    "q5_0": 22 / 32,
    "q4_1": 20 / 32,
    "q4_0": 18 / 32,
}
#: Codes of a byte with one scale per token and head: what the engine's own quantised caches are.
SCALED_KV = ("int8", "fp8")
#: All that a plan can be made for.
KV_TYPES = (*KV_ELEMENT_BYTES, *SCALED_KV)


def kv_element_bytes(kv_cache_dtype: str, head_dim: int, computed: float = 2.0) -> float:
    """Bytes that an element of K or V takes, its share of a scale included.

    ``kv_cache_dtype``: ``EngineConfig.kv_cache_dtype``, or another of ``KV_TYPES``. ``computed``: bytes of an element
    as the backend keeps it for "auto".
    """
    if kv_cache_dtype == "auto":
        return computed
    return 1 + SCALE_BYTES / head_dim if kv_cache_dtype in SCALED_KV else KV_ELEMENT_BYTES[kv_cache_dtype]


@dataclass(frozen=True, slots=True)
class LayerCache:
    """What one layer keeps of a sequence."""

    elements: int  # per token held: K and V of all its kv heads; with MLA the one latent that stands for both
    window: int | None = None  # tokens held at most; None: all
    state_bytes: int = 0  # per sequence, whatever its length: the state of a recurrent layer
    sees: int | None = None  # tokens attended to at most, where more than a window are held; None: all that are held


def cache_layers(config: ModelConfig) -> tuple[LayerCache, ...]:
    """The layers of a decoder whose every layer attends."""
    elements = 2 * config.num_kv_heads * config.head_dim
    return tuple(LayerCache(elements, config.window(layer)) for layer in range(config.num_layers))


def kv_bytes_per_token(model: ModelConfig | Sequence[LayerCache], bytes_per_element: float = 2.0) -> int:
    """K and V of one token over all layers. ``bytes_per_element``: see ``kv_element_bytes``."""
    return round(sum(layer.elements for layer in _layers(model)) * bytes_per_element)


def kv_bytes(model: ModelConfig | Sequence[LayerCache], context: int, bytes_per_element: float = 2.0) -> int:
    """What ``context`` tokens of one sequence need at least: a layer with a window holds no more than its window."""
    layers = _layers(model)
    held = sum(layer.elements * min(context, layer.window or context) for layer in layers)
    return round(held * bytes_per_element) + sum(layer.state_bytes for layer in layers)


def _layers(model: ModelConfig | Sequence[LayerCache]) -> Sequence[LayerCache]:
    return cache_layers(model) if isinstance(model, ModelConfig) else model


def buffer_bytes(
    config: ModelConfig,
    num_tokens: int,
    num_seqs: int,
    bytes_per_element: float = 4.0,
    bytes_per_logit: float = 8.0,
) -> int:
    """Work memory of one step: the widest moment of a layer for ``num_tokens``, and the logits of ``num_seqs``.

    Four hidden-sized arrays (input, residual, normed, output) live beside the larger of the attention's q, k, v and
    output and the feed-forward's gate, up and product. A token's experts hold that for each of them, with the rows they
    are given and their results. Logits are float32 and count twice where nothing else is said: the sampler works on a
    copy.
    """
    qkv = (2 * config.num_heads + 2 * config.num_kv_heads) * config.head_dim
    widest = max(qkv, 3 * config.intermediate_size)
    if config.moe is not None:
        widest = max(widest, config.moe.top_k * (2 * config.hidden_size + 3 * config.moe.intermediate_size))
    activations = num_tokens * (4 * config.hidden_size + widest) * bytes_per_element
    return round(activations + bytes_per_logit * num_seqs * config.vocab_size)


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Where the memory goes."""

    weight_bytes: int
    buffer_bytes: int
    kv_bytes: int  # of the whole pool: num_blocks * block_size * kv_bytes_per_token
    kv_bytes_per_token: int
    block_size: int
    num_blocks: int

    @property
    def tokens(self) -> int:
        """Tokens the pool holds."""
        return self.num_blocks * self.block_size

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + self.buffer_bytes + self.kv_bytes

    @property
    def conversations(self) -> int:
        """How many sequences of 4,096 tokens fit side by side, none sharing anything."""
        return self.num_blocks // -(-CONVERSATION_TOKENS // self.block_size)


def plan_memory(
    *,
    weight_bytes: int,
    buffer_bytes: int,
    kv_bytes_per_token: int,
    block_size: int,
    available_bytes: int,
    kv_cache_memory: int | None = None,
    max_tokens: int | None = None,
) -> MemoryPlan:
    """Split ``available_bytes`` (all this engine may take, weights included).

    ``kv_cache_memory`` fixes the pool's bytes; without it the pool takes what weights and buffers leave, but no more
    than ``max_tokens`` tokens (the most that max_num_seqs sequences of max_model_len could ever use).

    Raises:
        ValueError: not one block fits; the message carries the numbers.
    """
    left = available_bytes - weight_bytes - buffer_bytes
    block_bytes = block_size * kv_bytes_per_token
    num_blocks = max(0, left if kv_cache_memory is None else kv_cache_memory) // block_bytes
    if kv_cache_memory is None and max_tokens is not None:
        num_blocks = min(num_blocks, -(-max_tokens // block_size))
    if num_blocks < 1:
        have = f"{left} bytes are left of {available_bytes}" if kv_cache_memory is None else f"{kv_cache_memory} bytes"
        raise ValueError(
            f"no room for the KV cache: {have}, one block of {block_size} tokens takes {block_bytes} (weights "
            f"{weight_bytes}, buffers {buffer_bytes}); use a smaller model, fewer bits or a larger kv_cache_memory"
        )
    return MemoryPlan(weight_bytes, buffer_bytes, num_blocks * block_bytes, kv_bytes_per_token, block_size, num_blocks)
