"""The KV pool is written in place, read by selection, and given back."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from steps import ids

from bireme.backends.mlx import cpu, ops, step
from bireme.backends.mlx.kv import KVPool
from bireme.backends.mlx.library import mx
from bireme.backends.mlx.metal.attention import MOST_QUERIES, Geometry
from bireme.backends.mlx.rehearsal import extra_bytes
from bireme.backends.mlx.step import MlxStep, PagedGroup
from bireme.backends.trial_steps import trial_step
from bireme.models.config import ModelConfig

POOL = 96 << 20  # bytes; far more than a step of a tiny model needs
ONE_ARRAY = POOL // 6  # three layers, K and V


@pytest.mark.parametrize("in_flight", [1, 2])
def test_writing_a_few_tokens_copies_no_pool(tiny, on_mlx, in_flight):
    """Also with the next step always built before the last is read."""
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL, max_in_flight=in_flight)
    pools = driver.backend._kv.arrays
    assert min(pool.nbytes for pool in pools) == max(pool.nbytes for pool in pools) > ONE_ARRAY * 0.99
    tracks = [driver.add(ids(20 + n), row=n) for n in range(4)]
    driver.step([(track, track.pending) for track in tracks])

    assert extra_bytes(lambda: driver.decode(tracks, 12, in_flight)) < ONE_ARRAY / 4
    chunk = driver.add(ids(300), row=5)
    assert extra_bytes(lambda: driver.step([(chunk, 300), (tracks[0], 1)])) < ONE_ARRAY


def test_copying_blocks_copies_no_pool(tiny, on_mlx):
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL)
    track = driver.add(ids(40))
    driver.step([(track, 40)])
    assert extra_bytes(lambda: driver.step([(track, 1)], copies=[(track.blocks[0], 900), (901, 902)])) < ONE_ARRAY / 4


def test_the_guard_would_see_a_copy(tiny, on_mlx):
    """A view that lives on is all it takes; then the write copies the pool, and the measure above shows it."""
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL)
    track = driver.add(ids(20))
    driver.step([(track, 20)])
    view = driver.backend._kv.keys[0][3:5]
    mx.eval(view)
    held = [driver.backend._kv.keys[1].reshape(-1)]
    mx.eval(held)
    assert extra_bytes(lambda: driver.step([(track, 1)])) > ONE_ARRAY / 2


def test_both_ways_to_gather_agree():
    config = ModelConfig("llama", 10, 8, 8, 1, 4, 2, 8, 64, 1e-5)
    pool = KVPool(config, 6, 4, mx.float32)
    rng = np.random.default_rng(0)
    stored = rng.standard_normal((6, 4, 2, 8)).astype(np.float32)
    pool.keys[0], pool.values[0] = mx.array(stored), mx.array(-stored)
    slots = rng.integers(0, 24, (3, 7)).astype(np.int32)
    wanted = stored.reshape(24, 2, 8)[slots].swapaxes(1, 2)
    for by_head in (False, True):
        pool.by_head = by_head
        keys, values = pool.gather(0, pool.read(mx.array(slots)))
        np.testing.assert_array_equal(np.array(keys), wanted)
        np.testing.assert_array_equal(np.array(values), -wanted)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_garbage_that_nobody_owns_is_never_seen(tiny, on_mlx, name):
    """NaN fills the pool; sequences of many lengths share groups, and half-filled blocks are NaN behind their end."""
    driver = on_mlx(tiny(name).folder)
    prompts = [ids(n) for n in (1, 15, 16, 17, 40, 90)]
    wanted = driver.generate([driver.add(p, row=n) for n, p in enumerate(prompts)], 20)
    dirty = on_mlx(tiny(name).folder)
    for pool in dirty.backend._kv.arrays:
        pool[:] = float("nan")
    tracks = [dirty.add(p, row=n) for n, p in enumerate(prompts)]
    assert dirty.generate(tracks, 20, chunk=11) == wanted
    assert not any(any(track.nan) for track in tracks)


@pytest.mark.parametrize("way", ["plain", "cpu"])
def test_a_long_prompt_has_a_bounded_workspace(tiny, on_mlx, monkeypatch, way):
    """500 queries over 500 keys in 4 heads are a million scores; in tiles of 16 they come in pieces of 32,000."""
    if way == "plain":
        monkeypatch.setattr(ops, "on_metal", lambda: True)
        monkeypatch.setattr(mx, "compile", lambda function, shapeless: function)
    prompt = ids(500)
    whole = on_mlx(tiny("llama").folder)
    wanted = whole.generate([whole.add(prompt)], 4)
    monkeypatch.setattr(step, "TILE", 500)
    monkeypatch.setattr(cpu, "MOST", 500)
    monkeypatch.setattr(cpu, "TILE_SCORES", 1 << 30)
    free = on_mlx(tiny("llama").folder)
    at_once = extra_bytes(lambda: free.step([(free.add(prompt), 500)]))
    monkeypatch.setattr(step, "GROUP_ELEMENTS", 1000)
    monkeypatch.setattr(ops, "QUEUED_ELEMENTS", 1000)
    monkeypatch.setattr(cpu, "TILE_SCORES", 1000)
    driver = on_mlx(tiny("llama").folder, max_in_flight=2)
    track = driver.add(prompt)
    tiled = extra_bytes(lambda: driver.step([(track, 500)]))
    assert tiled < at_once / 2
    assert driver.generate([track], 4) == wanted


@pytest.mark.parametrize("window", [None, 100])
def test_chunks_beside_paged_decodes_are_bounded_too(tiny, on_mlx, monkeypatch, window):
    """On Metal: few queries go to the kernel that reads the pool, and what is left is gathered within the bound."""
    monkeypatch.setattr(step, "GROUP_ELEMENTS", 1 << 16)
    backend = on_mlx(tiny("llama").folder).backend
    kv = backend._kv
    kv.paged = Geometry(4, 2, 16, 16, "float32")
    spans = [(1, 400), (MOST_QUERIES, 90), (MOST_QUERIES + 1, 200), (300, 500), (1, 1)]
    groups = MlxStep.build(
        trial_step(spans, 16), mx.zeros((8,), mx.int32), kv, backend._rope, lambda: None
    ).attention_groups(window, 4)
    paged, *gathered = groups.parts
    assert isinstance(paged, PagedGroup) and paged.paged.spans.tokens == 1 + MOST_QUERIES + 1
    tokens = [each.tokens.stop - each.tokens.start for each in gathered]
    assert sum(tokens) == MOST_QUERIES + 1 + 300 and max(tokens) < 300
    for each, count in zip(gathered, tokens, strict=True):
        keys = each.keys.slots.size
        assert keys <= (500 if window is None else window + count)
        assert count * 4 * keys <= step.GROUP_ELEMENTS, "scores"
        assert keys * 2 * 2 * 16 <= step.GROUP_ELEMENTS, "keys and values"


def test_a_windows_tiles_do_not_shrink_with_the_context(tiny, on_mlx, monkeypatch):
    """What a window hides is not gathered, and takes nothing from the bound either."""
    monkeypatch.setattr(step, "GROUP_ELEMENTS", 4 * (24 + step.TILE) * step.TILE)
    backend = on_mlx(tiny("llama").folder).backend
    built = MlxStep.build(
        trial_step([(512, 8192)], 16), mx.zeros((8,), mx.int32), backend._kv, backend._rope, lambda: None
    )
    tokens = {
        window: [each.tokens.stop - each.tokens.start for each in built.attention_groups(window, 4).parts]
        for window in (24, None)
    }
    assert tokens[24] == [step.TILE] * 2
    assert set(tokens[None]) == {step.LEAST_TILE}


def test_close_gives_all_memory_back(tiny, on_mlx):
    gc.collect()
    mx.clear_cache()
    before = mx.get_active_memory()
    driver = on_mlx(tiny("llama").folder, kv_cache_memory=POOL)
    track = driver.add(ids(9))
    driver.generate([track], 3)
    sent = driver.submit([(track, 1)])  # one is still under way
    assert mx.get_active_memory() - before > POOL * 0.99
    driver.backend.close()
    del sent
    gc.collect()
    assert mx.get_active_memory() - before < 1 << 20
    assert mx.get_cache_memory() == 0
