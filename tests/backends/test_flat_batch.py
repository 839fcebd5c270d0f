"""One flat batch of tokens: how it is cut, and who else is in it, changes nothing."""

from __future__ import annotations

import numpy as np
import pytest
from steps import Driver, LogitTap, ids

ROUNDING = {"atol": 1e-4, "rtol": 0}


@pytest.mark.parametrize("chunk", [1, 7, 16, 64])
@pytest.mark.parametrize("name", ["llama", "mistral", "qwen3", "gemma3"])
def test_chunked_prefill_is_one_shot_prefill(tiny, drive, name, chunk):
    driver = drive(tiny(name).folder)
    tap = LogitTap(driver)
    for length in (1, 2, 15, 16, 17, 33, 70):
        prompt = ids(length)
        whole, cut = driver.add(prompt, row=0), driver.add(prompt, row=1)
        driver.step([(whole, length)])
        while cut.pending and not cut.nan:
            driver.step([(cut, min(chunk, cut.pending))])
        assert whole.made == cut.made
        assert len(tap.logits) == 2, "only the last chunk samples"
        np.testing.assert_allclose(tap.logits[1], tap.logits[0], **ROUNDING)
        tap.logits.clear()


@pytest.mark.parametrize("name", ["llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "gemma3"])
def test_batched_is_alone(tiny, drive, name):
    """C18. Prompts of 3, 12 and 50 tokens, also while others join and leave."""
    driver = drive(tiny(name).folder)
    tap = LogitTap(driver)
    prompts = [ids(n) for n in (3, 12, 50, 29)]
    alone = []
    for prompt in prompts:
        driver.generate([driver.add(prompt)], 12)
        alone.append(np.concatenate(tap.logits))
        tap.logits.clear()
    tracks = [driver.add(prompt, row=row) for row, prompt in enumerate(prompts)]
    seen: list[list[np.ndarray]] = [[] for _ in tracks]
    for step in range(14):
        present = [t for n, t in enumerate(tracks) if 2 * (n == 3) <= step and len(t.made) < (5 if n == 0 else 12)]
        driver.step([(track, track.pending) for track in present])
        for logits, track in zip(tap.logits.pop(), present, strict=True):
            seen[tracks.index(track)].append(logits)
    assert [len(s) for s in seen] == [5, 12, 12, 12]
    for found, wanted in zip(seen, alone, strict=True):
        np.testing.assert_allclose(np.stack(found), wanted[: len(found)], **ROUNDING)


def test_decodes_and_chunks_share_a_step(tiny, drive):
    driver = drive(tiny("llama").folder)
    first, second = ids(20), ids(60)
    alone = driver.generate([driver.add(first)], 10)[0], driver.generate([driver.add(second)], 4)[0]
    a, b = driver.add(first, row=0), driver.add(second, row=1)
    driver.step([(a, 20)])
    for begin in range(0, 60, 10):
        driver.step([(b, 10), (a, 1)] if begin % 20 else [(a, 1), (b, 10)])
    driver.generate([a], 10)
    driver.generate([b], 4)
    assert (a.made, b.made) == alone


def test_window_is_honoured_after_prefix_reuse(tiny, drive):
    """Window 24: a sequence that takes over the first 96 of 200 tokens, and all 200, equals a cold one."""
    driver = drive(tiny("mistral").folder)
    tap = LogitTap(driver)
    shared = ids(200)
    source = driver.add(shared)
    driver.step([(source, 200)])
    for length in (96, 192):
        prompt = shared[:length] + ids(13)
        cold, warm = driver.add(prompt, row=1), driver.add(prompt, row=2)
        warm.blocks, warm.computed = source.blocks[: length // 16], length
        driver.generate([cold, warm], 8)
        assert cold.made == warm.made
    for logits in tap.logits[1:]:
        np.testing.assert_allclose(logits[0], logits[1], **ROUNDING)


def test_blocks_behind_the_window_may_be_gone(tiny, drive):
    driver = drive(tiny("mistral").folder)
    prompt = ids(100)
    whole, holed = driver.add(prompt, row=0), driver.add(prompt, row=1)
    driver.step([(whole, 100), (holed, 100)])
    holed.blocks[:4] = [-1] * 4  # positions 0 to 63; the query at 100 sees 77 and later
    driver.generate([whole, holed], 6)
    assert whole.made == holed.made


def test_copies_happen_before_the_step_writes(tiny, drive):
    """A partly filled block is copied, then both sequences write on in their own."""
    driver = drive(tiny("llama").folder)
    prompt, tail = ids(24), ids(9)
    source = driver.add(prompt, row=0)
    driver.step([(source, 24)])
    twin = driver.add(prompt[:20] + tail, row=1)
    twin.blocks, twin.computed = [source.blocks[0], driver.free.pop(0)], 20
    driver.submit([(source, 1), (twin, twin.pending)], copies=[(source.blocks[1], twin.blocks[1])]).ticket.wait()
    cold = driver.add(prompt[:20] + tail, row=2)
    again = driver.add(prompt, row=3)
    wanted = driver.generate([cold, again], 6)
    source.ids[-2:], twin.ids[-1:] = wanted[1][:2], wanted[0][:1]
    assert driver.generate([twin, source], 6) == wanted


def test_copies_read_all_before_writing_any(tiny, drive):
    driver = drive(tiny("llama").folder)
    kv = driver.backend._ops.kv
    for pool in (*kv.keys, *kv.values):
        pool[:] = 0.0
        pool[5], pool[6] = 5.0, 6.0
    track = driver.add(ids(3))
    track.blocks = [9]
    driver.step([(track, 3)], copies=[(5, 6), (6, 7)])
    assert all(float(pool[6].mean()) == 5 and float(pool[7].mean()) == 6 for pool in (*kv.keys, *kv.values))


def test_placeholders_stand_for_the_rows_last_token(tiny, drive):
    """Submitting every step before looking at any gives the same tokens."""
    driver = drive(tiny("qwen3").folder)
    prompts = [ids(5), ids(31)]
    wanted = driver.generate([driver.add(p, row=n) for n, p in enumerate(prompts)], 10)
    tracks = [driver.add(p, row=7 - n) for n, p in enumerate(prompts)]
    sent = [driver.submit([(track, track.pending) for track in tracks]) for _ in range(10)]
    for step in sent:
        driver.collect(step)
    assert [track.made for track in tracks] == wanted


def poison(driver: Driver, token: int) -> None:
    driver.backend._decoder.embed.table[token] = float("nan")


def test_a_nan_row_harms_nobody(tiny, drive):
    """Neither in its own step nor later, through blocks it left NaN in."""
    driver = drive(tiny("llama").folder)
    good = [ids(30), ids(7)]
    for prompt in good:
        prompt[:] = [i if i != 9 else 10 for i in prompt]
    wanted = driver.generate([driver.add(p, row=n) for n, p in enumerate(good)], 8)
    if any(9 in made for made in wanted):
        pytest.fail("the seed makes token 9; choose another")
    poison(driver, 9)
    bad = driver.add([1, 2, 9, 3] * 4, row=2)
    tracks = [driver.add(p, row=n) for n, p in enumerate(good)]
    driver.step([(tracks[0], 30), (bad, 16), (tracks[1], 7)])
    assert bad.nan == [True] and not any(t.nan[0] for t in tracks)
    assert driver.generate(tracks, 8) == wanted
    later = driver.add(good[1], row=2)
    later.blocks = bad.blocks[:]
    other = driver.add(good[0], row=3)
    assert driver.generate([other, later], 8) == wanted


def test_a_step_that_samples_nothing(tiny, drive):
    driver = drive(tiny("llama").folder)
    track = driver.add(ids(10))
    result = driver.submit([(track, 4)]).ticket.wait()
    assert result.tokens.shape == (0,) and result.nan.shape == (0,) and result.logprobs is None
    assert result.elapsed > 0


def test_calls_from_another_thread_are_refused(tiny, drive):
    from concurrent.futures import ThreadPoolExecutor

    driver = drive(tiny("llama").folder)
    track = driver.add(ids(4))
    with ThreadPoolExecutor(1) as pool, pytest.raises(AssertionError, match="thread"):
        pool.submit(driver.step, [(track, 4)]).result()


def test_close_is_safe_twice(tiny, drive):
    driver = drive(tiny("llama").folder)
    driver.backend.close()
    driver.backend.close()
    with pytest.raises(AssertionError, match="closed"):
        driver.step([(driver.add(ids(2)), 2)])
