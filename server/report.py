"""What the server tells the person who started it: a summary at start, a line of statistics while busy."""

from __future__ import annotations

import asyncio
import logging
import time

from ..backends.base import BackendInfo
from ..core.config import EngineConfig
from ..core.slo import Slo
from ..core.stats import EngineStats
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
        ("context", context_text(state.max_model_len, config.max_model_len)),
        ("engine", settings_text(config)),
        ("defaults", defaults_text(state)),
        ("parsers", f"tools {state.parsers.tool_name}, reasoning {state.parsers.reasoning_name}"),
        ("keys", keys_text(state)),
        ("listening", url),
    ]
    return "\n".join(f"  {name:<13}{value}" for name, value in rows)


def capacity_text(info: BackendInfo, max_model_len: int) -> str:
    """Conversations of 4,096 tokens, or of the whole context if that is less, that fit at once if none share."""
    length = min(CONVERSATION, max_model_len)
    count = info.num_blocks // -(-length // info.block_size)
    return f"{count:,} conversation{'' if count == 1 else 's'} at {length:,} tokens"


def context_text(length: int, asked: int | None) -> str:
    """The context in effect; where more was asked for than the model has, that too."""
    more = f", all that the model has (--max-model-len asks for {asked:,})" if asked and asked > length else ""
    return f"{length:,} tokens{more}"


def settings_text(config: EngineConfig) -> str:
    names = ("max_num_seqs", "max_num_batched_tokens", "max_stall_ms", "max_queue", "enable_prefix_caching")
    objective = () if config.slo is None else (f"slo={config.slo}", f"slo_policy={config.slo_policy}")
    return ", ".join((*(f"{name}={getattr(config, name)}" for name in names), *objective))


def keys_text(state: ServerState) -> str:
    directory, path = state.directory, state.settings.users_path
    if not directory.keyed:
        return "none asked for"
    return f"asked for; {len(directory.names)} users" + ("" if path is None else f" in {path}")


def defaults_text(state: ServerState) -> str:
    if not state.settings.generation_defaults:
        return "the model's generation defaults are off"
    return ", ".join(f"{key}={value}" for key, value in state.defaults.items()) or "none given by the model"


def statistics(now: EngineStats, before: EngineStats, seconds: float, goodput: str = "") -> str:
    """One line over the last ``seconds``; ``goodput`` from ``goodput_text``."""
    came = (now.prompt_tokens - before.prompt_tokens) / seconds
    went = (now.tokens_generated - before.tokens_generated) / seconds
    return (
        f"running {now.running}, waiting {now.waiting}, in {came:.1f} tok/s, out {went:.1f} tok/s, "
        f"KV {now.kv_usage:.1%}, prefix hits {now.cache_hit_rate:.1%}{goodput}"
    )


def goodput_text(slo: Slo | None, now: tuple[int, int], before: tuple[int, int], seconds: float) -> str:
    """Requests that met the objective, of those that ended: ``now`` and ``before`` are sums of both."""
    if slo is None:
        return ""
    good, judged = now[0] - before[0], now[1] - before[1]
    return f", goodput {good / seconds:.2f} req/s ({good} of {judged} within {slo})"


async def report_statistics(state: ServerState, interval: float) -> None:
    """Log a line every ``interval`` seconds in which the engine did something."""
    client, goodput = state.client, state.metrics.goodput
    before, then, met = client.stats, time.monotonic(), goodput.total
    while True:
        await asyncio.sleep(interval)
        now, at, meets = client.stats, time.monotonic(), goodput.total
        if now is not None and before is not None and now.steps > before.steps:
            told = goodput_text(goodput.slo, meets, met, at - then)
            logger.info("%s", statistics(now, before, at - then, told))
        before, then, met = now, at, meets
