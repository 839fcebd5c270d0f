"""A server that answers at once whatever it is asked: short contexts on a simulated device."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import scripted
import servers
from servers import Server


@pytest.fixture(scope="session")
def fuzzed_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """At the end it must be the same engine that answers."""
    options = ("--device", "sim", "--max-model-len", "2048")
    one = servers.start(tmp_path_factory.mktemp("fuzzed"), *options, model=scripted.SCRIPTED)
    try:
        one.wait_serving()
        engine = one.engine()
        yield one
        assert one.engine().pid == engine.pid, one.log
        assert "Traceback" not in one.log, one.log[one.log.index("Traceback") :][:5000]
        one.wait_idle()
        assert one.metrics()["bireme:kv_blocks_live"] == 0
    finally:
        one.kill()
