"""Damaged files: whatever bytes change, opening loads or raises CheckpointError, soon and in little memory."""

from __future__ import annotations

import time
import tracemalloc
from pathlib import Path

import pytest
from gguf_bytes import GgufBytes
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tiny import as_f32, hf_settings, random_weights, tiny_config, write_folder, write_gguf

from bireme.models.checkpoint import open_checkpoint
from bireme.models.weight import CheckpointError

CONFIG = tiny_config(vocab_size=32, hidden_size=32, intermediate_size=32, num_layers=1, head_dim=8)
PROFILE = settings(
    max_examples=400, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@st.composite
def damage(draw: st.DrawFn, size: int, head: int) -> tuple[list[tuple[int, bytes]], int]:
    """Overwritten spans (most in the first ``head`` bytes, where the tables are) and the length kept."""
    place = st.one_of(st.integers(0, head - 1), st.integers(0, size - 1))
    value = st.one_of(
        st.binary(min_size=1, max_size=8), st.sampled_from([b"\xff" * 8, bytes(8), b"\0\0\0\0\0\0\0\x80", b"\t\0\0\0"])
    )
    spans = draw(st.lists(st.tuples(place, value), min_size=1, max_size=6))
    return spans, draw(st.one_of(st.just(size), st.integers(0, size)))


def damaged(content: bytes, spans: list[tuple[int, bytes]], keep: int) -> bytes:
    out = bytearray(content)
    for place, value in spans:
        out[place : place + len(value)] = value
    return bytes(out[:keep])


def check_opening(path: Path, target: Path) -> None:
    """Open ``path``; where it opens, load everything."""
    start = time.process_time()
    tracemalloc.start()
    try:
        checkpoint = open_checkpoint(path)
        for name in checkpoint.names():
            checkpoint.weight(name).dequantize()
        checkpoint.close()
    except CheckpointError as error:
        assert str(target) in str(error)
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 4 << 20
    assert time.process_time() - start < 1


@pytest.fixture(scope="module")
def gguf_file(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = tmp_path_factory.mktemp("gguf")
    return write_gguf(folder / "m.gguf", CONFIG, random_weights(CONFIG), type_of=lambda name: "Q4_0").read_bytes()


@PROFILE
@given(data=st.data())
def test_damaged_gguf(gguf_file: bytes, tmp_path: Path, data: st.DataObject) -> None:
    spans, keep = data.draw(damage(len(gguf_file), head=2500))
    path = tmp_path / "m.gguf"
    path.write_bytes(damaged(gguf_file, spans, keep))
    check_opening(path, path)


@PROFILE
@given(data=st.data())
def test_damaged_safetensors(tmp_path: Path, data: st.DataObject) -> None:
    folder = write_folder(tmp_path / "m", hf_settings(CONFIG), as_f32(random_weights(CONFIG)))
    path = folder / data.draw(st.sampled_from(["model.safetensors", "config.json"]))
    content = path.read_bytes()
    spans, keep = data.draw(damage(len(content), head=min(1200, len(content))))
    path.write_bytes(damaged(content, spans, keep))
    check_opening(folder, folder)


@PROFILE
@given(content=st.binary(max_size=400))
def test_random_bytes_after_a_good_start(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(GgufBytes().build()[:8] + content)
    check_opening(path, path)
