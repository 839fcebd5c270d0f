"""Fixtures every test may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file; fetched once and kept in the user's cache folder, never skipped."""
    from bireme.models.demo import demo_model as fetch

    return fetch()
