"""mlx-lm is the oracle: same folder, same greedy tokens, log-probabilities that are close, alone and in company."""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from steps import Driver, LogitTap
from tiny_models import VARIANTS

from bireme.backends.mlx.library import mx
from bireme.backends.mlx.runner import MlxBackend
from bireme.bench.mlx_folder import float32_folder
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import FinishReason, Request, SamplingParams
from bireme.models.checkpoint import open_checkpoint
from bireme.models.tokenizer import Tokenizer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from mlx_lm.generate import generate_step
    from mlx_lm.utils import load_model

#: Bounds on the difference of natural-log probabilities, both sides in float32: of the tiny models, where 3e-5 holds,
#: and of the demo model, whose 30 layers and logits of 30 make 3e-4 of it.
TINY_CLOSE, DEMO_CLOSE = 1e-4, 1e-3
TEXTS = (
    "The capital of France is",
    "def fibonacci(n):\n    if n < 2:",
    "Once upon a time, in a village by the sea, there lived an old woman who kept three lighthouses. " * 3,
    "1, 2, 3, 4, 5, 6,",
    "Dear Sir or Madam,\n\nI am writing to you about the order that",
)


@dataclass(frozen=True)
class Answer:
    """What greedy generation gives: tokens [n] and the log-probabilities they were taken from, [n, V]."""

    tokens: list[int]
    logprobs: np.ndarray
    close: float  # how far another's may be from them


def by_mlx_lm(model: Any, prompt: Sequence[int], count: int, close: float) -> Answer:
    """mlx-lm's own generation loop with its own cache."""
    made = list(generate_step(mx.array(list(prompt)), model, max_tokens=count))
    return Answer([token for token, _ in made], np.array(mx.stack([logprobs for _, logprobs in made])), close)


def for_mlx_lm(folder: Path) -> dict[str, Any]:
    """What transformers 5 writes into ``config.json`` in its own way, under the names that mlx-lm looks for."""
    settings = json.loads((folder / "config.json").read_text())
    rope = settings["rope_parameters"]
    local = rope.get("sliding_attention", {})
    rope = rope.get("full_attention", rope)
    return {
        "rope_theta": rope["rope_theta"],
        "rope_scaling": rope if rope["rope_type"] != "default" else None,
        "rope_local_base_freq": local.get("rope_theta"),
        "sliding_window_pattern": 2,  # of the layers in ``tiny_models.GEMMA3``
        "num_experts": settings.get("num_local_experts"),
    }


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))


def check_alone(driver: Driver, prompt: Sequence[int], wanted: Answer) -> None:
    """Tokens and every logit of a sequence that has the backend to itself, its prompt read in chunks of 7."""
    tap = LogitTap(driver)
    track = driver.add(prompt)
    assert driver.generate([track], len(wanted.tokens), chunk=7) == [wanted.tokens]
    driver.backend._sampler = tap._sampler
    driver.release(track)
    np.testing.assert_allclose(log_softmax(np.concatenate(tap.logits)), wanted.logprobs, atol=wanted.close)


def check_in_company(engine: Engine, prompts: list[list[int]], answers: list[Answer], seed: int) -> None:
    """All prompts join one engine at random steps and a third of them are aborted at random lengths.

    Those that stay get mlx-lm's tokens and log-probabilities, those that go its first ones.
    """
    rng = np.random.default_rng(seed)
    names = [f"s{seed}r{n}" for n in rng.permutation(len(prompts))]
    wanted = {f"s{seed}r{n}": answer for n, answer in enumerate(answers)}
    ids = {f"s{seed}r{n}": tuple(prompt) for n, prompt in enumerate(prompts)}
    leaving = {name: int(rng.integers(1, len(wanted[name].tokens) - 1)) for name in names[:: len(names) // 2 or 1][:2]}
    made: dict[str, list[int]] = {name: [] for name in names}
    ended: dict[str, FinishReason] = {}
    waiting = list(names)
    while waiting or engine.has_work():
        if waiting and rng.random() < 0.6:
            name = waiting.pop(0)
            params = SamplingParams(temperature=0, max_tokens=len(wanted[name].tokens), ignore_eos=True, logprobs=3)
            engine.add(Request(name, ids[name], params))
        for name, length in leaving.items():
            if name not in ended and len(made[name]) >= length:
                engine.abort(name)
                ended[name] = FinishReason.ABORT
        for output in engine.step():
            name = output.request_id
            for token, found in zip(output.token_ids, output.logprobs or (), strict=True):
                reference, close = wanted[name].logprobs[len(made[name])], wanted[name].close
                assert abs(found.logprob - reference[token]) < close
                np.testing.assert_allclose(found.top_logprobs, reference[list(found.top_ids)], atol=close)
                made[name].append(token)
            if output.finish_reason is not None:
                ended.setdefault(name, output.finish_reason)
    for name in names:
        tokens = wanted[name].tokens
        assert made[name] == tokens[: len(made[name])] and (name in leaving or len(made[name]) == len(tokens))
        assert ended[name] == (FinishReason.ABORT if name in leaving else FinishReason.LENGTH)


def load(folder: Path, **config: Any) -> tuple[MlxBackend, EngineConfig]:
    settings = EngineConfig(**{"max_num_seqs": 4, "max_num_batched_tokens": 24, "kv_cache_memory": 16 << 20, **config})
    return MlxBackend(open_checkpoint(folder), settings), settings


@pytest.mark.parametrize("name", VARIANTS)
def test_tiny_models_generate_as_in_mlx_lm(tiny: Any, name: str) -> None:
    """Every architecture, alone and in three random schedules."""
    folder = tiny(name).folder
    model, _ = load_model(folder, model_config=for_mlx_lm(folder))
    rng = np.random.default_rng(8)
    lengths = (1, 3, 8, 14) if name == "mistral" else (1, 5, 17, 40, 90, 130)  # mlx-lm gives Mistral no window of 24
    prompts = [[int(i) for i in rng.integers(0, 320, length)] for length in lengths]
    answers = [by_mlx_lm(model, prompt, 10, TINY_CLOSE) for prompt in prompts]
    backend, settings = load(folder)
    driver = Driver(backend)
    for prompt, answer in zip(prompts, answers, strict=True):
        check_alone(driver, prompt, answer)
    engine = Engine(backend, settings, check_every_step=True)
    for seed in range(3):
        check_in_company(engine, prompts, answers, seed)
    engine.close()


def test_the_demo_model_generates_as_in_mlx_lm(demo_model: Path, tmp_path: Path) -> None:
    """As a float32 folder that both read, in company; and from the GGUF file that it was made of, alone."""
    folder = float32_folder(demo_model, tmp_path, never_ends=True)
    checkpoint = open_checkpoint(demo_model)
    tokenizer = Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    prompts = [tokenizer.encode(text) for text in TEXTS]
    model, _ = load_model(folder)
    answers = [by_mlx_lm(model, prompt, 8, DEMO_CLOSE) for prompt in prompts]
    del model
    backend, settings = load(folder)
    engine = Engine(backend, settings, check_every_step=True)
    check_in_company(engine, prompts, answers, seed=1)
    engine.close()
    backend, _ = load(demo_model)
    check_alone(Driver(backend), prompts[1], answers[1])
    backend.close()
