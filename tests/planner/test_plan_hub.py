"""Headers from the Hub: ranges only, whole headers, no weights."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from bireme.planner import hub_headers
from bireme.planner.open import open_shape, shape_of_path


def client_for(data: bytes, asked: list[int]) -> httpx.Client:
    """Serves ranges of ``data`` and notes how many bytes each answer had."""

    def answer(request: httpx.Request) -> httpx.Response:
        first, last = map(int, request.headers["range"].removeprefix("bytes=").split("-"))
        part = data[first : last + 1]
        asked.append(len(part))
        return httpx.Response(206, content=part)

    return httpx.Client(transport=httpx.MockTransport(answer))


def test_gguf_headers_are_enough(demo_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_headers, "_FIRST", 1 << 18)  # less than the vocabulary takes: it has to ask again
    data, asked = demo_model.read_bytes(), []
    target = tmp_path / "model.gguf"
    with client_for(data, asked) as client:
        hub_headers._fetch(client, "http://hub/model.gguf", target, len(data))
    assert len(asked) > 1 and sum(asked) < len(data) / 5
    assert target.stat().st_size == len(data)
    found, wanted = shape_of_path(target), open_shape(str(demo_model))
    assert (found.layers, found.weights, found.config) == (wanted.layers, wanted.weights, wanted.config)


def test_safetensors_headers_are_enough(tmp_path: Path) -> None:
    import numpy as np
    from safetensors.numpy import save

    data, asked = save({"model.embed_tokens.weight": np.zeros((1000, 64), np.float16)}), []
    target = tmp_path / "model.safetensors"
    with client_for(data, asked) as client:
        hub_headers._fetch(client, "http://hub/model.safetensors", target, len(data))
    assert sum(asked) < 500 < len(data) == target.stat().st_size
    (tmp_path / "config.json").write_text(
        '{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2}', "utf-8"
    )
    assert shape_of_path(tmp_path).weights.total_bytes == 128_000


def test_a_page_instead_of_a_model_is_refused(tmp_path: Path) -> None:
    page = b"<!doctype html><title>gone</title>" * 10
    with client_for(page, []) as client, pytest.raises(ValueError, match="no safetensors file"):
        hub_headers._fetch(client, "http://hub/x", tmp_path / "model.safetensors", len(page))
