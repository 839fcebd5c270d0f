"""Ways to serve, from the plainest to Bireme's own: so that what each idea gains can be seen."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..core.config import EngineConfig


@dataclass(frozen=True, slots=True)
class Policy:
    """``config`` is the engine's; ``static``: a batch is filled only when the one before has ended altogether;
    ``fair``: users are told apart."""

    name: str
    config: EngineConfig
    static: bool = False
    fair: bool = True


def policies(config: EngineConfig, pool_tokens: int, max_len: int, users: int = 1) -> list[Policy]:
    """Each lets one idea go, or several; those that ``config`` and the number of ``users`` leave nothing to let go of
    are left out.

    "contiguous" gives every sequence room for ``max_len`` tokens from its start, so few fit, and shares nothing.
    """
    plain = replace(config, enable_prefix_caching=False)
    fitting = max(1, min(config.max_num_seqs, pool_tokens // max_len))
    whole = max(config.max_num_batched_tokens, max_len)
    found = [
        Policy("bireme", config),
        Policy("no objective", replace(config, slo=None)),
        Policy("no fair shares", config, fair=users < 2),
        Policy("no prefix cache", plain),
        Policy("no chunking", replace(config, max_stall_ms=1e9, max_num_batched_tokens=whole)),
        Policy("contiguous", replace(plain, max_num_seqs=fitting)),
        Policy("static batches", plain, static=True),
        Policy("one at a time", replace(plain, max_num_seqs=1)),
    ]
    return [policy for i, policy in enumerate(found) if i == 0 or replace(policy, name="bireme") != found[0]]
