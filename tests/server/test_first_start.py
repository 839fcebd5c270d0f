"""The first start on a machine compiles kernels, and says so."""

from __future__ import annotations

import logging

import pytest

from bireme.server.loading import announce_compiling


def test_compiling_is_announced_once(caplog: pytest.LogCaptureFixture) -> None:
    numba = pytest.importorskip("numba", reason="numba comes with bireme[cpu]")
    announce_compiling()
    caplog.set_level(logging.INFO, "bireme.engine")
    assert "compiling" not in caplog.text
    doubled = numba.njit(lambda x: x * 2)
    assert doubled(3) == 6 and doubled(1.5) == 3.0
    assert caplog.text.count("compiling kernels for this CPU, once") == 1
