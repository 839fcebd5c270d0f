"""The engine's loop alone, without its process."""

from __future__ import annotations

import logging

import pytest
import zmq

from bireme.backends.sim import SimBackend, SimOptions
from bireme.core.config import EngineConfig
from bireme.core.engine import Engine
from bireme.grammar.compiler import GrammarCompiler
from bireme.models.tokenizer import Tokenizer
from bireme.server.engine_process import CHECK_EVERY, EngineLoop
from bireme.server.grammar_queue import GrammarQueue


def _never() -> Tokenizer:
    raise AssertionError("no grammar was asked for")


def test_an_idle_engine_takes_blocks_in_a_wrong_state_out_of_use(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 100.0
    monkeypatch.setattr("bireme.server.engine_process.time.monotonic", lambda: now)
    engine = Engine(SimBackend(SimOptions(num_blocks=8)), EngineConfig())
    grammars = GrammarQueue(GrammarCompiler(_never, frozenset(), 1.0, 1))
    with zmq.Context() as context, context.socket(zmq.PAIR) as channel:
        loop = EngineLoop(engine, channel, grammars)
        engine.scheduler.kv.pool.refs[3] += 1  # a reference that nobody holds
        loop._look_after_blocks()
        assert engine.stats().kv_blocks_quarantined == 0, "not at every moment"
        now += CHECK_EVERY
        with caplog.at_level(logging.ERROR):
            loop._look_after_blocks()
    assert engine.stats().kv_blocks_quarantined == 1 and engine.limits.pool_tokens == 7 * 16
    assert "block 3" in caplog.text
    grammars.close()
