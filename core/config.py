"""The engine's settings: every default of the engine stands here and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from .slo import Slo

#: What keys and values may be kept as.
KV_CACHE_DTYPES = ("auto", "float32", "float16", "int8", "fp8")
#: Sequences per request, and alternatives per token with their log-probabilities.
MAX_N = 128
MAX_LOGPROBS = 20
#: What happens to requests that can't have their first token in time.
SloPolicy = Literal["queue", "refuse"]


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """Limits and policies of one engine. Sizes are tokens or bytes, times are milliseconds or seconds as named."""

    block_size: int = 16  # tokens per KV block
    max_num_seqs: int = 64  # sequences that run at once, i.e. rows in the backend
    max_num_batched_tokens: int = 2048  # tokens in one step, over all sequences
    max_model_len: int | None = None  # tokens of context per sequence; None: the model's own limit
    kv_cache_memory: int | None = None  # bytes for the KV pool; None: the backend's choice for this machine
    gpu_memory_fraction: float = 0.9  # of a GPU's free memory, what weights, work and KV pool together may take
    kv_cache_dtype: str = "auto"  # "auto": the device's choice; int8, fp8: a byte, and scales per token and head
    max_stall_ms: float = 200.0  # a prefill chunk may delay running streams by no more than this
    max_queue: int = 512  # waiting requests; one more is refused
    max_queue_per_user: int | None = None  # waiting requests of one user; None: as many as max_queue
    slo: Slo | None = None  # what admission and chunks keep to
    slo_policy: SloPolicy = "queue"  # or "refuse": requests that can't have their first token in time
    enable_prefix_caching: bool = True
    grammar_timeout_s: float = 5.0  # for compiling one schema or grammar
    grammar_cache: int = 64  # compiled grammars kept
    watchdog_s: float = 60.0  # waiting requests and no step for so long: the engine is stalled

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_seqs", "max_num_batched_tokens", "max_model_len", "max_queue"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        if self.max_num_batched_tokens < self.max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens is {self.max_num_batched_tokens}, less than max_num_seqs "
                f"({self.max_num_seqs}): every running sequence needs one token per step"
            )
        if self.kv_cache_dtype not in KV_CACHE_DTYPES:
            known = ", ".join(KV_CACHE_DTYPES)
            raise ValueError(f"kv_cache_dtype is {self.kv_cache_dtype!r}; it must be one of {known}")
        if not 0 < self.gpu_memory_fraction <= 1:
            raise ValueError(f"gpu_memory_fraction is {self.gpu_memory_fraction}; it must be above 0 and at most 1")
        if self.max_queue_per_user is not None and self.max_queue_per_user < 1:
            raise ValueError(f"max_queue_per_user is {self.max_queue_per_user}; it must be at least 1")
        if self.slo_policy not in get_args(SloPolicy):
            raise ValueError(f"slo_policy is {self.slo_policy!r}; it must be one of {', '.join(get_args(SloPolicy))}")
        for name in ("max_stall_ms", "watchdog_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be above 0")
