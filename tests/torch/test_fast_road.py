"""The fast CPU road on the demo model: close to the exact one, and no row depends on its neighbours."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from steps import Driver, LogitTap

from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint

TEXT = (
    "The river rises in the hills above the town, where three springs meet under an old stone bridge. In summer it is "
    "little more than a stream, and children cross it on foot; in spring, when the snow melts, it fills the valley. "
)


@pytest.fixture(scope="module")
def prompt(demo_model) -> list[int]:
    from bireme.models.tokenizer import Tokenizer

    checkpoint = open_checkpoint(demo_model)
    return Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size).encode(TEXT)


def load(path, precision: str, **config) -> Driver:
    settings = EngineConfig(kv_cache_memory=64 << 20, **config)
    options = BackendOptions(cpu_precision=precision, threads=1 if precision == "exact" else 2)
    return Driver(load_backend("cpu", open_checkpoint(path), settings, options))


@pytest.fixture(scope="module")
def fast(demo_model) -> Driver:
    return load(demo_model, "fast")


@pytest.fixture(scope="module")
def fast_int8(demo_model) -> Driver:
    return load(demo_model, "fast", kv_cache_dtype="int8")


def every_logit(driver: Driver, prompt: list[int]) -> np.ndarray:
    """Next-token logits after each token of ``prompt``, read in two chunks and then one by one."""
    backend = driver.backend
    forward = backend._decoder.forward
    seen = []

    def spy(ops, token_ids, rows, step):
        logits = forward(ops, token_ids, torch.arange(len(token_ids)), step)
        seen.append(logits.clone().numpy())
        return None if rows is None else logits[rows]

    backend._decoder.forward = spy
    track = driver.add(prompt)
    driver.step([(track, 30)])
    driver.step([(track, len(prompt) - 38)])
    for _ in range(8):
        driver.step([(track, 1)])
    backend._decoder.forward = forward
    driver.release(track)
    return np.concatenate(seen)


def log_probabilities(driver: Driver, prompt: list[int]) -> torch.Tensor:
    return torch.from_numpy(every_logit(driver, prompt)).double().log_softmax(-1)


def divergence(of: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return (to.exp() * (to - of)).sum(-1)


@pytest.fixture(scope="module")
def exact(demo_model, prompt) -> torch.Tensor:
    return log_probabilities(load(demo_model, "exact"), prompt)


def test_the_fast_road_stays_close_to_the_exact_one(fast, exact, prompt):
    found = log_probabilities(fast, prompt)
    apart = divergence(found, exact)
    assert float(apart.mean()) < 0.006 and float(apart.max()) < 0.08
    assert float((exact.argmax(-1) == found.argmax(-1)).double().mean()) > 0.92


def test_an_int8_cache_moves_little(fast, fast_int8, prompt):
    apart = divergence(log_probabilities(fast_int8, prompt), log_probabilities(fast, prompt))
    assert 0 < float(apart.mean()) < 0.006 and float(apart.max()) < 0.08


def test_a_float16_cache_moves_next_to_nothing(exact, demo_model, prompt):
    """In exact arithmetic: on the fast road any last bit moves some activation to its next code."""
    apart = divergence(log_probabilities(load(demo_model, "exact", kv_cache_dtype="float16"), prompt), exact)
    assert 0 < float(apart.max()) < 1e-5


def test_what_each_road_keeps(fast, fast_int8, demo_model):
    whole = load(demo_model, "fast", kv_cache_dtype="float32")
    infos = [driver.backend.info for driver in (load(demo_model, "exact"), whole, fast, fast_int8)]
    assert [info.kv_cache_dtype for info in infos] == ["float32", "float32", "float16", "int8"]
    assert [infos[0].kv_bytes_per_token / info.kv_bytes_per_token for info in infos] == [1, 1, 2, 4 / (1 + 4 / 64)]


@pytest.mark.parametrize("kind", ["fast", "fast_int8"])
def test_a_row_is_the_same_bit_for_bit_in_any_batch(request, kind, prompt):
    fast = request.getfixturevalue(kind)
    tap = LogitTap(fast)
    parts = [prompt[:40], prompt[5:17], prompt[20:23], prompt[1:60]]
    alone = [tap.of([part], 6)[0] for part in parts]
    np.testing.assert_array_equal(tap.of(parts, 6), alone)


@pytest.mark.parametrize("kind", ["fast", "fast_int8"])
def test_a_row_is_the_same_bit_for_bit_however_its_prompt_is_cut(request, kind, prompt):
    """So a prompt that the cache holds in part gives what it gives when it is read anew."""
    fast = request.getfixturevalue(kind)
    tap = LogitTap(fast)
    whole = tap.of([prompt], 4)
    for chunk in (1, 7, 16, 33):
        np.testing.assert_array_equal(tap.of([prompt], 4, chunk), whole)


def test_the_head_is_held_once(fast, demo_model):
    """The quantised weights take no more than a fifth over what the file holds."""
    stored = open_checkpoint(demo_model).weight_bytes
    assert stored <= fast.backend.info.weight_bytes < 1.2 * stored
