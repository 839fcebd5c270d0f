"""Fixtures every test may use."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tiny_models import TinyModel

# A shell without job control starts what runs in its background deaf to Ctrl-C; every process begun there inherits it.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def demo_model() -> Path:
    """The demo model's GGUF file; fetched once and kept in the user's cache folder, never skipped."""
    from bireme.models.demo import demo_model as fetch

    return fetch()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TinyModel]:
    """``tiny(variant)``: a tiny random model with its two kinds of file, built once."""
    from tiny_models import make_tiny

    folder = tmp_path_factory.mktemp("tiny")
    made: dict[str, TinyModel] = {}

    def make(name: str) -> TinyModel:
        if name not in made:
            made[name] = make_tiny(name, folder)
        return made[name]

    return make
