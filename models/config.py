"""What a decoder looks like: one record, whichever file it came from."""

from __future__ import annotations

from dataclasses import dataclass, field

# More than any decoder has; a corrupt count must not become a long loop.
MAX_LAYERS = 1024
MAX_MATRICES = 1 << 18  # in all layers and experts together


@dataclass(frozen=True, slots=True)
class RopeConfig:
    """Rotary embedding (arXiv:2104.09864), half-split layout, and its scaling."""

    theta: float = 10000.0
    kind: str = "default"  # default, linear, llama3, yarn
    factor: float = 1.0
    original_max_position: int | None = None
    low_freq_factor: float = 1.0  # llama3
    high_freq_factor: float = 4.0  # llama3
    beta_fast: float = 32.0  # yarn (arXiv:2309.00071)
    beta_slow: float = 1.0  # yarn
    attention_factor: float | None = None  # yarn's magnitude; None: 0.1 ln(factor) + 1
    divisors: tuple[float, ...] | None = None  # GGUF rope_freqs.weight: what each plain frequency is divided by
    rotary_dim: int | None = None  # dims rotated; None: head_dim


@dataclass(frozen=True, slots=True)
class MoeConfig:
    """Experts in the place of a layer's feed-forward part: each token goes to the ``top_k`` that its router picks."""

    num_experts: int
    top_k: int
    intermediate_size: int  # of one expert
    normalise: bool = True  # the shares of a token's experts are divided by their sum
    dense_layers: frozenset[int] = frozenset()  # layers that have a plain feed-forward part


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """A decoder's shape. ``head_dim`` is explicit, never derived by a reader of this record."""

    architecture: str  # "llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe", "gemma3"
    vocab_size: int  # rows of the embedding
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_position: int  # the context the model was made for, scaling included
    rms_norm_eps: float
    rope: RopeConfig = field(default_factory=RopeConfig)
    tie_embeddings: bool = False
    attention_bias: bool = False  # q, k, v projections carry a bias (Qwen2)
    qk_norm: bool = False  # q and k are normed per head (Qwen3, Gemma 3)
    windows: tuple[int | None, ...] = ()  # per layer: tokens a query sees (itself included), None: all; (): all full
    moe: MoeConfig | None = None  # None: every layer has a plain feed-forward part
    local_rope: RopeConfig | None = None  # of the layers with a window; None: as the others'
    attention_scale: float | None = None  # of the scores; None: 1 / sqrt(head_dim)
    embedding_scale: float = 1.0
    activation: str = "silu"  # of the feed-forward's gate: "silu" or "gelu_tanh"
    post_norms: bool = False  # what attention and feed-forward put out is normed before it is added (Gemma)
    wide_norms: bool = False  # norms' weights are sums that 16 bits would round, and are kept in float32 (Gemma)

    def window(self, layer: int) -> int | None:
        return self.windows[layer] if self.windows else None

    def experts(self, layer: int) -> MoeConfig | None:
        """What experts a layer has; None: it has a plain feed-forward part."""
        return self.moe if self.moe is not None and layer not in self.moe.dense_layers else None

    @property
    def ropes(self) -> tuple[RopeConfig, ...]:
        """Every rotary embedding in use; ``rope_index`` says which is a layer's."""
        return (self.rope,) if self.local_rope is None else (self.rope, self.local_rope)

    def rope_index(self, layer: int) -> int:
        return int(self.local_rope is not None and self.window(layer) is not None)
