"""The thread pool, and machine code on disk."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from numba import njit

from bireme.backends.cpu import jit
from bireme.backends.cpu.parallel import parallel_for
from bireme.backends.cpu.threads import pool


@njit
def _count(start: int, end: int, seen: np.ndarray, amount: int) -> None:
    for item in range(start, end):
        seen[item] += amount


@njit(nogil=True)
def count(seen: np.ndarray, grain: int, amount: int) -> None:
    parallel_for(_count, seen.shape[0], grain, (seen, amount))


@njit
def _nest(start: int, end: int, seen: np.ndarray) -> None:
    for row in range(start, end):
        parallel_for(_count, seen.shape[1], 1, (seen[row], 1))


@njit(nogil=True)
def nest(seen: np.ndarray) -> None:
    parallel_for(_nest, seen.shape[0], 1, (seen,))


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = pool().threads
    pool().resize(request.param)
    yield request.param
    pool().resize(before)


def test_every_item_is_done_once(threads: int) -> None:
    assert pool().threads == threads
    for items in (0, 1, 5, 64, 1000):
        for grain in (1, 7, 2000):
            seen = np.zeros(items, np.int64)
            for turn in range(1, 30):
                count(seen, grain, turn)
            assert np.all(seen == 29 * 30 // 2)


def test_sleeping_helpers_wake(threads: int) -> None:
    seen = np.zeros(256, np.int64)
    for turn in range(10):
        time.sleep(0.01 if turn % 2 else 0.0)
        count(seen, 4, 1)
    assert np.all(seen == 10)


def test_calls_from_several_threads_and_from_tasks(threads: int) -> None:
    arrays = [np.zeros(500, np.int64) for _ in range(4)]

    def many(seen: np.ndarray) -> None:
        for _ in range(200):
            count(seen, 8, 1)

    callers = [threading.Thread(target=many, args=(seen,)) for seen in arrays]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert all(np.all(seen == 200) for seen in arrays)
    nested = np.zeros((20, 30), np.int64)
    nest(nested)
    assert np.all(nested == 1)


def test_a_pool_needs_a_thread() -> None:
    with pytest.raises(ValueError, match="threads=0"):
        pool().resize(0)


ANSWER = "define i64 @answer() { ret i64 42 }"


def answer() -> int:
    import ctypes

    module = jit.compile_ir(ANSWER)
    return int(ctypes.CFUNCTYPE(ctypes.c_int64)(module.address("answer"))())


def test_code_is_kept_and_damage_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BIREME_CACHE", str(tmp_path))
    assert answer() == 42
    (kept,) = (tmp_path / "jit").glob("*.o")
    whole = kept.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(jit, "_compile", None)  # would raise if called
        assert answer() == 42
    for damaged in (whole[:-1], whole[:40] + b"\xcc" + whole[41:], b""):
        kept.write_bytes(damaged)
        assert answer() == 42
        assert kept.read_bytes() == whole


def test_a_cache_that_cannot_be_written_is_done_without(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("not a folder")
    monkeypatch.setenv("BIREME_CACHE", str(blocked))
    assert answer() == 42
