"""The same mixed load through the continuous batching of ``transformers``, on the same GPU, in the same run."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator
from typing import Any

import torch

from ..models.config import ModelConfig
from .gpu_engine import MIXED_MODEL, requests
from .gpu_models import MODELS
from .gpu_setting import Row, Setting

#: Seconds that the peer may take, its start included; then what it has finished by then is its figure.
PATIENCE = 85.0


def peer(setting: Setting) -> Iterator[Row]:
    """Tokens per second until the last request has ended, or until patience has."""
    from transformers import ContinuousBatchingConfig, GenerationConfig

    deadline = time.perf_counter() + PATIENCE
    os.environ["HF_HUB_OFFLINE"] = "1"  # it would look there for kernels
    asked, model = requests(setting), _model(setting)
    settings: dict[str, Any] = {} if not setting.tiny else {"num_blocks": 16, "max_batch_tokens": 64, "page_size": 32}
    config = ContinuousBatchingConfig(
        allow_block_sharing=False, max_requests_per_batch=min(256, len(asked)), **settings
    )
    make: Any = GenerationConfig
    generation = make(do_sample=False, eos_token_id=-1, max_new_tokens=max(out for _, out in asked))
    logging.getLogger("ContinuousBatchingLogger").setLevel(logging.ERROR)
    with torch.no_grad(), model.continuous_batching_context_manager(generation, True, 5, config) as manager:
        _serve(manager, [((1, 2, 3), 4)], deadline)
        start = time.perf_counter()
        tokens, ended = _serve(manager, asked, deadline)
        seconds = time.perf_counter() - start
    note = f"{tokens:,} tokens in {seconds:.2f} s, attention {model.config._attn_implementation}"
    if ended < len(asked):
        note += f"; stopped with {ended} of {len(asked)} requests ended, and only those counted"
    yield Row("peer", f"transformers, {MIXED_MODEL}, {len(asked)} requests", tokens / seconds, "tok/s", note=note)


def _serve(manager: Any, asked: list[tuple[tuple[int, ...], int]], deadline: float) -> tuple[int, int]:
    """Serve all of ``asked``; the tokens of the requests that have ended, and how many these are."""
    for prompt, out in asked:
        manager.add_request(list(prompt), max_new_tokens=out, eos_token_id=-1)
    tokens = ended = 0
    while ended < len(asked) and time.perf_counter() < deadline:
        result = manager.get_result(timeout=1)
        if result is None:
            if not manager.is_running():
                raise RuntimeError("transformers' generation thread has ended")
            continue
        if result.error:
            raise RuntimeError(f"transformers: {result.error}")
        if result.is_finished():
            tokens += len(result.generated_tokens)
            ended += 1
    return tokens, ended


def _model(setting: Setting) -> Any:
    """Theirs, of the same shape, with random weights made on the device."""
    from transformers import AutoModelForCausalLM

    config = _config(MODELS[setting.model(MIXED_MODEL)])
    before = torch.get_default_dtype()
    torch.set_default_dtype(setting.dtype)
    try:
        with setting.device:
            make: Any = AutoModelForCausalLM.from_config
            return make(config, attn_implementation="sdpa").eval()
    finally:
        torch.set_default_dtype(before)


def _config(shape: ModelConfig) -> Any:
    from transformers import LlamaConfig, Qwen3Config

    kind = Qwen3Config if shape.architecture == "qwen3" else LlamaConfig
    return kind(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_position,
        rms_norm_eps=shape.rms_norm_eps,
        tie_word_embeddings=shape.tie_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope.theta},
    )
