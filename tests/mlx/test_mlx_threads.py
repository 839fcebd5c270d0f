"""One thread owns every MLX object; steps in flight stay in order."""

from __future__ import annotations

import dataclasses
import importlib
import operator
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from bireme.backends.mlx.library import mx
from bireme.backends.mlx.runner import MlxBackend
from bireme.backends.options import BackendOptions
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.core.request import Request, SamplingParams
from bireme.models.checkpoint import open_checkpoint


class Recorder:
    """Stands for the module ``mlx.core`` and notes which threads ask it for anything."""

    def __init__(self, seen: set[int]) -> None:
        self._seen = seen

    def __getattr__(self, name: str) -> Any:
        self._seen.add(threading.get_ident())
        return getattr(mx, name)


@pytest.fixture
def touched(monkeypatch) -> set[int]:
    """The threads that asked ``mlx.core`` for anything or called a method of an array, operators among them."""
    seen: set[int] = set()
    importlib.import_module("bireme.backends.mlx.runner")  # and with it all that it needs: nothing is imported later
    for name, module in list(sys.modules.items()):
        if name.startswith("bireme.backends.mlx.") and hasattr(module, "mx"):
            monkeypatch.setattr(module, "mx", Recorder(seen))
    for name, method in list(vars(mx.array).items()):
        if callable(method) and name not in ("__init__", "__new__", "__class__"):
            monkeypatch.setattr(mx.array, name, _noting(method, seen))
    return seen


def _noting(method: Callable[..., Any], seen: set[int]) -> Callable[..., Any]:
    def call(*arguments: Any, **named: Any) -> Any:
        seen.add(threading.get_ident())
        return method(*arguments, **named)

    return call


def test_one_thread_touches_mlx_from_load_to_close(tiny, touched):
    """F11. Loading, joins, aborts, two steps in flight and closing: all MLX calls come from the engine's own thread."""
    folder = tiny("llama").folder

    def serve() -> int:
        config = EngineConfig(max_num_seqs=4, kv_cache_memory=4 << 20)
        engine = Engine(MlxBackend(open_checkpoint(folder), config, max_in_flight=2), config)
        params = SamplingParams(temperature=1.0, top_p=0.9, seed=1, max_tokens=8, presence_penalty=0.5, logprobs=2)
        for n in range(6):
            engine.add(Request(f"r{n}", tuple(range(5 + n, 25 + n)), params))
        engine.step()
        engine.abort("r3")
        while engine.has_work():
            engine.step()
        engine.close()
        return threading.get_ident()

    with ThreadPoolExecutor(1) as pool:
        owner = pool.submit(serve).result()
    assert touched == {owner} and owner != threading.get_ident()


@pytest.mark.parametrize("touch", ["item", "__add__", "astype"])
def test_a_touch_by_another_thread_would_be_seen(touched, touch):
    array = mx.array([1.0])
    mx.eval(array)
    arguments = {"item": (), "__add__": (array,), "astype": (mx.float16,)}[touch]
    with ThreadPoolExecutor(1) as pool:
        stranger = pool.submit(threading.get_ident).result()
        pool.submit(lambda: (operator.methodcaller(touch, *arguments)(array), None)[1]).result()
    assert stranger in touched


def test_nothing_of_mlx_leaves_the_backend(tiny, on_mlx):
    """What the engine is handed, and may pass to other threads or let go of there, is NumPy's."""
    driver = on_mlx(tiny("llama").folder)
    params = SamplingParams(temperature=1.0, seed=3, max_tokens=4, logprobs=3)
    track = driver.add([1, 2, 3], params=params)
    result = driver.submit([(track, 3)]).ticket.wait()
    assert result.logprobs is not None
    reached, left = [], [result]
    while left:
        found = left.pop()
        reached.append(found)
        if dataclasses.is_dataclass(found):
            left += [getattr(found, field.name) for field in dataclasses.fields(found)]
    assert len(reached) > 6 and not any(isinstance(found, mx.array) for found in reached)


def test_mlx_itself_refuses_other_threads():
    """Why the rule exists: work of one thread's stream can't be run by another."""
    lazy = mx.array([1.0]) + 1
    with ThreadPoolExecutor(1) as pool, pytest.raises(RuntimeError, match="There is no Stream"):
        pool.submit(mx.eval, lazy).result()
    assert lazy.item() == 2.0


@pytest.mark.parametrize("call", ["submit", "wait", "close"])
def test_another_threads_calls_are_refused(tiny, on_mlx, call):
    driver = on_mlx(tiny("llama").folder)
    sent = driver.submit([(driver.add([1, 2, 3]), 3)])
    calls = {
        "submit": lambda: driver.submit([(driver.add([1, 2], row=1), 2)]),
        "wait": sent.ticket.wait,
        "close": driver.backend.close,
    }
    with ThreadPoolExecutor(1) as pool, pytest.raises(AssertionError, match="thread that made it"):
        pool.submit(calls[call]).result()
    assert sent.ticket.wait().tokens.shape == (1,)


def test_two_steps_in_flight_give_what_one_gives(tiny, on_mlx):
    prompts = [[int(i) for i in np.random.default_rng(n).integers(0, 320, 5 + 9 * n)] for n in range(4)]
    single = on_mlx(tiny("qwen3").folder, max_in_flight=1)
    wanted = single.generate([single.add(p, row=n) for n, p in enumerate(prompts)], 15)
    driver = on_mlx(tiny("qwen3").folder, max_in_flight=2)
    tracks = [driver.add(p, row=n) for n, p in enumerate(prompts)]
    sent = [driver.submit([(track, track.pending) for track in tracks])]
    for _ in range(14):
        sent.append(driver.submit([(track, 1) for track in tracks]))
        assert not sent[1].ticket.done()
        driver.collect(sent.pop(0))
    driver.collect(sent.pop())
    assert [track.made for track in tracks] == wanted


def test_a_waiting_step_starts_once_the_one_before_is_read(tiny, on_mlx, monkeypatch):
    """Never earlier, or the pool would be copied; and not only when it is waited for."""
    driver = on_mlx(tiny("llama").folder, max_in_flight=2)
    started = []
    real = mx.async_eval
    monkeypatch.setattr(mx, "async_eval", lambda arrays: (started.append(1), real(arrays)))
    track = driver.add([1, 2, 3, 4])
    first = driver.submit([(track, 4)])
    second = driver.submit([(track, 1)])
    assert len(started) == 1
    driver.collect(first)
    assert len(started) == 1, "tokens go out first"
    second.ticket.done()
    assert len(started) == 2
    driver.collect(second)
    assert track.ids[-1] >= 0


def test_the_engine_runs_with_two_in_flight(tiny):
    """Joins and aborts at random steps change nothing for those who stay."""
    folder, rng = tiny("llama").folder, np.random.default_rng(5)
    requests = {
        f"r{n}": (tuple(int(i) for i in rng.integers(0, 320, 4 + 11 * n)), SamplingParams(seed=n, max_tokens=14))
        for n in range(7)
    }

    def run(names: list[str], in_flight: int, aborted: dict[int, str]) -> dict[str, list[int]]:
        config = EngineConfig(max_num_seqs=4, kv_cache_memory=4 << 20, max_num_batched_tokens=32)
        backend = MlxBackend(open_checkpoint(folder), config, BackendOptions(), max_in_flight=in_flight)
        engine = Engine(backend, config, check_every_step=True)
        made: dict[str, list[int]] = {name: [] for name in names}
        waiting, steps = list(names), 0
        while waiting or engine.has_work():
            if waiting:
                name = waiting.pop(0)
                engine.add(Request(name, *requests[name]))
            if steps in aborted:
                engine.abort(aborted[steps])
            for output in engine.step():
                made[output.request_id].extend(output.token_ids)
            steps += 1
        engine.close()
        return made

    alone = {name: run([name], 1, {})[name] for name in requests}
    together = run(list(requests), 2, {4: "r1", 9: "r4"})
    for name, tokens in together.items():
        assert tokens == alone[name][: len(tokens)] if name in ("r1", "r4") else tokens == alone[name]
    assert len(together["r4"]) < 14
