"""The text side of the scripted models and of the demo model."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import scripted

from bireme.models.checkpoint import open_checkpoint
from bireme.models.text import TextModel


def load(path: Path) -> TextModel:
    checkpoint = open_checkpoint(path)
    try:
        return TextModel.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
    finally:
        checkpoint.close()


@pytest.fixture(scope="session")
def byte_level() -> TextModel:
    return load(scripted.SCRIPTED)


@pytest.fixture(scope="session")
def spm() -> TextModel:
    return load(scripted.SCRIPTED_SPM)


@pytest.fixture(scope="session")
def demo(demo_model: Path) -> TextModel:
    return load(demo_model)


@pytest.fixture(scope="session")
def variant(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TextModel]:
    """The text side of a variant of scripted.gguf, by name."""
    folder = tmp_path_factory.mktemp("variants")
    known: dict[str, TextModel] = {}

    def get(name: str) -> TextModel:
        if name not in known:
            known[name] = load(scripted.variant(folder, name))
        return known[name]

    return get
