"""What the server tells the person who started it: a summary at start, a line of statistics while busy."""

from __future__ import annotations

import asyncio
import logging
import time

from ..backends.base import BackendInfo
from ..core.config import EngineConfig
from ..core.stats import EngineStats
from .client import EngineClient
from .sizes import size_text
from .state import ServerState

logger = logging.getLogger("bireme.server")

#: The length of conversation that capacity is told in.
CONVERSATION = 4096


def summary(state: ServerState, url: str) -> str:
    """The lines shown once the engine is ready; every number is the engine's own."""
    info, config, frontend = state.client.info, state.client.config, state.frontend
    assert info is not None and config is not None and frontend is not None
    tokens = info.num_blocks * info.block_size
    each = "" if info.ranks == 1 else " on each"
    rows = [
        ("model", f"{frontend.name} (served as {', '.join(state.names.served)})"),
        ("quantisation", info.quantization),
        ("device", info.device if info.ranks == 1 else f"{info.ranks} x {info.device}, tensor parallel"),
        ("weights", size_text(info.weight_bytes) + each),
        (
            "KV cache",
            f"{tokens:,} tokens in blocks of {info.block_size} "
            f"({size_text(tokens * info.kv_bytes_per_token)}{each}, {info.kv_cache_dtype})",
        ),
        ("capacity", capacity_text(info, state.max_model_len)),
        ("context", f"{state.max_model_len:,} tokens"),
        ("engine", settings_text(config)),
        ("defaults", defaults_text(state)),
        ("parsers", f"tools {state.parsers.tool_name}, reasoning {state.parsers.reasoning_name}"),
        ("listening", url),
    ]
    return "\n".join(f"  {name:<13}{value}" for name, value in rows)


def capacity_text(info: BackendInfo, max_model_len: int) -> str:
    """Conversations of 4,096 tokens, or of the whole context if that is less, that fit at once if none share."""
    length = min(CONVERSATION, max_model_len)
    count = info.num_blocks // -(-length // info.block_size)
    return f"{count:,} conversation{'' if count == 1 else 's'} at {length:,} tokens"


def settings_text(config: EngineConfig) -> str:
    names = ("max_num_seqs", "max_num_batched_tokens", "max_stall_ms", "max_queue", "enable_prefix_caching")
    return ", ".join(f"{name}={getattr(config, name)}" for name in names)


def defaults_text(state: ServerState) -> str:
    if not state.settings.generation_defaults:
        return "the model's generation defaults are off"
    return ", ".join(f"{key}={value}" for key, value in state.defaults.items()) or "none given by the model"


def statistics(now: EngineStats, before: EngineStats, seconds: float) -> str:
    """One line over the last ``seconds``."""
    came = (now.prompt_tokens - before.prompt_tokens) / seconds
    went = (now.tokens_generated - before.tokens_generated) / seconds
    return (
        f"running {now.running}, waiting {now.waiting}, in {came:.1f} tok/s, out {went:.1f} tok/s, "
        f"KV {now.kv_usage:.1%}, prefix hits {now.cache_hit_rate:.1%}"
    )


async def report_statistics(client: EngineClient, interval: float) -> None:
    """Log a line every ``interval`` seconds in which the engine did something."""
    before, then = client.stats, time.monotonic()
    while True:
        await asyncio.sleep(interval)
        now, at = client.stats, time.monotonic()
        if now is not None and before is not None and now.steps > before.steps:
            logger.info("%s", statistics(now, before, at - then))
        before, then = now, at
