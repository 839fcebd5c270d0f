"""Pooled hidden states and scores of prompts, of every backend, against transformers', through the engine."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from backend_kinds import GRAPHS, MLX, load
from tiny_models import make_tiny

from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import Request, SamplingParams


@pytest.mark.parametrize("kind", ["cpu", GRAPHS, MLX])
def test_pooled_states_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    tiny = make_tiny("qwen3", tmp_path)
    config = EngineConfig(max_num_seqs=4, kv_cache_memory=16 << 20, max_num_batched_tokens=16, block_size=16)
    engine = Engine(load(kind, tiny.folder, config), config)
    rng = np.random.default_rng(3)
    prompts = {
        f"{pooling}-{size}": rng.integers(0, 90, size).tolist() for pooling in ("mean", "last") for size in (1, 37)
    }
    for name, prompt in prompts.items():
        pooling = name.split("-")[0]
        engine.add(Request(name, tuple(prompt), SamplingParams(max_tokens=1, pooling=pooling)))  # type: ignore[arg-type]
    engine.add(Request("chat", tuple(range(9)), SamplingParams(max_tokens=30, temperature=0.0)))
    found = {}
    while engine.has_work():
        for output in engine.step():
            if output.embedding is not None:
                found[output.request_id] = np.frombuffer(output.embedding, "<f4")
    engine.close()
    assert set(found) == set(prompts)
    for name, prompt in prompts.items():
        with torch.no_grad():
            states = tiny.reference.model(torch.tensor([prompt])).last_hidden_state[0].numpy()
        expected = states.mean(0) if name.startswith("mean") else states[-1]
        np.testing.assert_allclose(found[name], expected, atol=2e-3 * np.abs(expected).max(), err_msg=name)


@pytest.mark.parametrize("kind", ["cpu", GRAPHS, MLX])
def test_scores_of_prompts_are_those_of_transformers(kind: str, tmp_path: Path) -> None:
    tiny = make_tiny("llama_tied", tmp_path)
    config = EngineConfig(max_num_seqs=4, kv_cache_memory=16 << 20, max_num_batched_tokens=100, block_size=16)
    engine = Engine(load(kind, tiny.folder, config), config)
    rng = np.random.default_rng(4)
    prompts = {f"{top}": rng.integers(0, 90, size).tolist() for top, size in ((0, 2), (3, 90), (5, 37))}
    for name, prompt in prompts.items():
        engine.add(Request(name, tuple(prompt), SamplingParams(max_tokens=4, prompt_logprobs=int(name))))
    found = {}
    while engine.has_work():
        for output in engine.step():
            if output.prompt_logprobs is not None:
                found[output.request_id] = output.prompt_logprobs
    engine.close()
    assert set(found) == set(prompts)
    for name, prompt in prompts.items():
        expected = torch.from_numpy(tiny.logits(prompt)).log_softmax(-1).numpy()
        assert len(found[name]) == len(prompt) - 1
        for at, one in enumerate(found[name]):
            assert abs(one.logprob - expected[at, prompt[at + 1]]) < 2e-3
            assert len(one.top_ids) == int(name)
            best = np.sort(expected[at])[::-1][: int(name)]
            np.testing.assert_allclose(one.top_logprobs, best, atol=2e-3)
            np.testing.assert_allclose(expected[at, list(one.top_ids)], best, atol=2e-3)
