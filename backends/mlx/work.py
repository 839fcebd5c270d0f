"""The memory that a step works in, by arithmetic. Needs no MLX, so that a plan for a Mac can be made anywhere."""

from __future__ import annotations

from ...core.config import EngineConfig
from ...core.memory import buffer_bytes, kv_element_bytes
from ...models.config import ModelConfig

#: Share of the working set Metal recommends that is planned for; the rest is other programs' and Metal's own.
WORKING_SET_SHARE = 0.85
#: Elements of gathered keys, values and scores that one group of the attention may hold at a time.
GROUP_ELEMENTS = 1 << 24
#: Queries of a chunk that attend at once: a later tile alone reads the keys that only its queries see.
TILE = 256
#: The fewest queries in a tile, however long the context: with fewer, gathering its keys costs more than attending.
LEAST_TILE = 16
#: Elements that tiles of a prompt's attention may have queued before the device catches up.
QUEUED_ELEMENTS = 1 << 26
#: Bytes per row and token of the vocabulary that the sampler keeps once a sequence with penalties has come.
COUNTS = 5
#: Bytes per row and token of the vocabulary: of logits; that sampling holds at most beside them, where rows draw by
#: top-p and tell log-probabilities, which takes weights and sums of 64 bits, and MLX queues some of it ahead (87
#: measured); that scoring a prompt's tokens holds.
LOGIT, SAMPLED, SCORED = 4, 96, 20
#: Bytes that sampling may hold beside the logits: over a large vocabulary it goes by slices of rows.
SLICE_BYTES = 1 << 28
#: Tokens of a prompt that are scored together, if no fewer.
MOST_SCORED = 64


def sampled_at_once(vocab_size: int) -> int:
    """Rows that are sampled together."""
    return max(1, SLICE_BYTES // (SAMPLED * vocab_size))


def scored_at_once(vocab_size: int, rows: int) -> int:
    """Tokens of a prompt that are scored together, within what sampling ``rows`` would take."""
    return max(1, min(MOST_SCORED, _sampling_bytes(vocab_size, rows) // (SCORED * vocab_size)))


def _sampling_bytes(vocab_size: int, rows: int) -> int:
    return SAMPLED * vocab_size * min(rows, sampled_at_once(vocab_size))


def longest_context(config: ModelConfig, engine: EngineConfig) -> int:
    """Tokens that a sequence can have."""
    return min(engine.max_model_len or config.max_position, config.max_position)


def work_bytes(config: ModelConfig, engine: EngineConfig, itemsize: int) -> int:
    """The most that a step holds beside weights and pool: activations, logits, the sampler's counts, and what the
    attention gathers."""
    element: float = itemsize
    if engine.kv_cache_dtype != "auto":  # gathered codes and scales are there while they are made values
        element += kv_element_bytes(engine.kv_cache_dtype, config.head_dim, itemsize)
    vocab, rows = config.vocab_size, engine.max_num_seqs
    buffers = buffer_bytes(config, engine.max_num_batched_tokens, rows, bytes_per_logit=LOGIT + COUNTS)
    return buffers + _sampling_bytes(vocab, rows) + round(_attention_elements(config, engine) * element)


def _attention_elements(config: ModelConfig, engine: EngineConfig) -> int:
    """Keys, values and scores of one group with those queued before it; a group is GROUP_ELEMENTS, or more where the
    context alone is."""
    context, per_key = longest_context(config, engine), 2 * config.num_kv_heads * config.head_dim
    windows = (config.window(layer) for layer in range(config.num_layers))
    keys = max(min(context, window + TILE if window else context) for window in windows)
    group = max(GROUP_ELEMENTS, keys * (per_key + LEAST_TILE * config.num_heads))
    every_token_its_own = engine.max_num_batched_tokens * context * (per_key + config.num_heads)
    return min(group + QUEUED_ELEMENTS, every_token_its_own)
