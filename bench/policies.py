"""Ways to serve, from the plainest to Bireme's own: so that what each idea gains can be seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Policy:
    """``config`` is the engine's; ``static``: a batch is filled only when the one before has ended altogether."""

    name: str
    config: EngineConfig
    static: bool = False


def policies(config: EngineConfig, pool_tokens: int, max_len: int) -> list[Policy]:
    """Each lets one idea go, or several.

    "contiguous" gives every sequence room for ``max_len`` tokens from its start, so few fit, and shares nothing.
    """
    plain = replace(config, enable_prefix_caching=False)
    fitting = max(1, min(config.max_num_seqs, pool_tokens // max_len))
    whole = max(config.max_num_batched_tokens, max_len)
    return [
        Policy("bireme", config),
        Policy("no prefix cache", plain),
        Policy("no chunking", replace(config, max_stall_ms=1e9, max_num_batched_tokens=whole)),
        Policy("contiguous", replace(plain, max_num_seqs=fitting)),
        Policy("static batches", plain, static=True),
        Policy("one at a time", replace(plain, max_num_seqs=1)),
    ]
