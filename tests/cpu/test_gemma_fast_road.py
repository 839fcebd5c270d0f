"""Gemma 3 on the CPU's fast road: near the exact one, and every token the same bits however its prompt came in."""

from __future__ import annotations

import numpy as np
import pytest
from steps import Driver, LogitTap, ids

from bireme.backends.options import BackendOptions
from bireme.backends.select import load_backend
from bireme.core.config import EngineConfig
from bireme.models.checkpoint import open_checkpoint

PROMPT = ids(90)  # windows are of 24 tokens, blocks of 16


@pytest.fixture
def drive(tiny):
    made = []

    def load(precision: str = "fast", **config) -> Driver:
        settings = EngineConfig(max_num_seqs=4, kv_cache_memory=4 << 20, **config)
        options = BackendOptions(cpu_precision=precision, threads=1 if precision == "exact" else 2)
        made.append(load_backend("cpu", open_checkpoint(tiny("gemma3").gguf), settings, options))
        return Driver(made[-1])

    yield load
    for backend in made:
        backend.close()


def test_it_stays_close_to_the_exact_road(drive):
    seen = []
    for precision in ("exact", "fast"):
        driver = drive(precision)
        tap = LogitTap(driver)
        for length in (1, 17, 90):
            driver.step([(driver.add(PROMPT[:length]), length)])
        seen.append(np.concatenate(tap.logits))
    assert 0 < np.abs(seen[1] - seen[0]).max() < 0.03 * np.abs(seen[0]).max()


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8"])
def test_a_token_has_the_same_bits_however_its_prompt_is_cut(drive, kv_cache_dtype):
    tap = LogitTap(drive(kv_cache_dtype=kv_cache_dtype))
    whole = tap.of([PROMPT], 4)
    for chunk in (1, 7, 16, 33):
        np.testing.assert_array_equal(tap.of([PROMPT], 4, chunk), whole)


def test_a_token_has_the_same_bits_in_any_company(drive):
    tap = LogitTap(drive())
    parts = [PROMPT[:40], PROMPT[5:17], PROMPT[20:23], PROMPT]
    alone = [tap.of([part], 6)[0] for part in parts]
    np.testing.assert_array_equal(tap.of(parts, 6), alone)
