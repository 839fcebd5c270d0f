"""The benchmarks' own arithmetic: divergences, prompts, tables."""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import pytest

from bireme.bench import step_times
from bireme.bench.ask import Sample
from bireme.bench.level import Level, Load
from bireme.bench.peers_text import Measured, markdown
from bireme.bench.quality import Compared, log_softmax, windows_of
from bireme.bench.summary import summarise
from bireme.bench.text import PromptMaker, load_tokenizer, real_text


def test_divergence_of_known_distributions() -> None:
    exact = np.log(np.array([[0.5, 0.25, 0.25], [0.7, 0.2, 0.1]], np.float32))
    other = np.log(np.array([[0.25, 0.5, 0.25], [0.7, 0.2, 0.1]], np.float32))
    compared = Compared("x")
    compared.add(log_softmax(exact + 3), log_softmax(other - 5), [9, 2])
    found = compared.result()
    first = 0.5 * np.log(0.5 / 0.25) + 0.25 * np.log(0.25 / 0.5)
    assert found.tokens == 2
    assert found.mean == pytest.approx(first / 2, abs=1e-6)
    assert found.p99 == pytest.approx(first, abs=1e-6)
    assert found.same_top == 0.5
    assert found.perplexity == pytest.approx(4, rel=1e-5)


def test_windows_leave_a_short_rest_out() -> None:
    assert list(windows_of(list(range(10)), 4)) == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_prompts_have_their_length_and_never_begin_alike(demo_model: Path) -> None:
    tokenizer = load_tokenizer(demo_model)
    maker = PromptMaker(tokenizer)
    prompts = [maker.distinct(50) for _ in range(200)]
    assert {len(prompt) for prompt in prompts} == {50}
    assert len({prompt[0] for prompt in prompts}) == 200
    shared = maker.shared(60, 10, 5)
    assert len({prompt[:60] for prompt in shared}) == 1
    assert len({prompt[60] for prompt in shared}) == 5
    assert shared[0][0] not in {prompt[0] for prompt in prompts}


def test_real_text_is_long_enough_or_says_so() -> None:
    assert len(real_text(100_000)) == 100_000
    with pytest.raises(ValueError, match="asked for"):
        real_text(10**9)


def _level(seconds: float, ttft: float, good: int = 4) -> Level:
    """Four requests at once, of 16 tokens each."""
    samples = []
    for number in range(4):
        times = [ttft + (seconds - ttft) * i / 15 for i in range(16)]
        failure = None if number < good else "HTTP 503"
        samples.append(Sample(0, 0, ttft, seconds, seconds, 16, 16, 200, 20, True, failure, times=times))
    return summarise(samples, Load("closed", 4, None))


def test_table_has_ratios_both_ways_and_shows_failures() -> None:
    rows = [
        Measured("distinct", 4, 0, "bireme", _level(2.0, 0.5)),
        Measured("distinct", 4, 0, "llama.cpp", _level(6.0, 2.0, good=3)),
    ]
    machine = {"cpu": "c", "logical_cores": 2, "memory_gib": 4, "system": "s", "python": "3", "packages": {}}
    machine |= {"commit": "x", "command": "y", "date": "z", "load_average": 0}
    text = markdown(machine, rows, {"distinct": "A title"}, {"bireme": 2**20}, "bireme")
    assert "**A title** (closed loop; rounds: 1" in text and "bireme 1 MiB" in text
    assert "| 4 | bireme | 32.0 |  | 500 ms | 500 ms |  | 100 ms | 0 | 10% |" in text
    assert "| 4 | llama.cpp | 8.0 | 4.00 | 2.00 s | 2.00 s | 4.00, 4.00 | 267 ms | 1 | 10% |" in text


def test_a_step_by_operation_adds_up_to_the_step() -> None:
    """A device of known times: what no operation accounts for is the rest; looking makes steps of its own."""
    spent: dict[str, float] = {}
    looks: list[bool] = []

    class Ticket:
        def wait(self) -> None:
            spent.update(attention=0.25, norms=0.5)

    class Device:
        info = argparse.Namespace(block_size=16)

        def submit(self, batch: object) -> Ticket:
            return Ticket()

    asked = argparse.Namespace(sequences=[2], context=40, chunks=[20], steps=3)
    plain, looked = (step_times.profile(Device(), spent, asked, look) for look in (None, looks.append))
    assert list(plain) == ["2 decoding", "a prompt chunk of 20"] and "seen" not in plain["2 decoding"]
    assert plain["2 decoding"]["attention"] == 250 and looks == [False, True, False] * 2
    assert {"step", "seen", "norms"} <= looked["2 decoding"].keys()
    text = step_times.table({"one": {"step": 10.0, "seen": 20.0, "attention": 5.0, "norms": 10.0}})
    assert "| attention | 5.00 (25%) |" in text and "Python | 5.00 (25%) |" in text
    assert "| all of it, one by one | 20.00 |" in text and "| a whole step | 10.00 |" in text


def test_a_layer_of_experts_is_timed_beside_a_plain_one(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="the CPU backend needs torch")
    from bireme.bench import cpu_experts
    from bireme.models.config import MoeConfig

    monkeypatch.setattr(cpu_experts, "MOE", MoeConfig(num_experts=4, top_k=2, intermediate_size=256))
    monkeypatch.setattr(cpu_experts, "SECONDS", 0.0)
    one, many = cpu_experts.measure((1, 64))
    assert (one.rows, many.rows) == (1, 64) and min(one.experts, one.plain, many.experts, many.plain) > 0
    assert one.touched == pytest.approx(1) and many.touched == pytest.approx(2, rel=1e-6)
