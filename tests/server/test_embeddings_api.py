"""Embeddings over HTTP. Case numbers are those of the fault list."""

from __future__ import annotations

import base64
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from api_bodies import chat

from bireme.models.checkpoint import open_checkpoint
from bireme.models.tokenizer import Tokenizer
from bireme.models.weight import TokenizerFiles
from bireme.server.embedding import vector
from bireme.server.errors import ApiError

PATH = "/v1/embeddings"


def vectors(answer: httpx.Response) -> np.ndarray:
    assert answer.status_code == 200, answer.text
    data = answer.json()["data"]
    assert [one["index"] for one in data] == list(range(len(data)))
    return np.array([one["embedding"] for one in data], np.float32)


def test_b27_both_formats_and_the_sdk(server: Any) -> None:
    texts = ["hello there", "uno due tre", "x"]
    numbers = vectors(server.post(PATH, {"input": texts, "encoding_format": "float"}))
    coded = server.post(PATH, {"input": texts, "encoding_format": "base64"}).json()["data"]
    raw = np.stack([np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in coded])
    np.testing.assert_array_equal(numbers, raw)
    np.testing.assert_allclose(np.linalg.norm(numbers, axis=1), 1, rtol=1e-5)
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
        found = client.embeddings.create(model="scripted", input=texts)
    np.testing.assert_array_equal(np.array([one.embedding for one in found.data], np.float32), numbers)
    assert found.usage.prompt_tokens == found.usage.total_tokens > 0


def test_input_of_every_kind_and_its_order(server: Any) -> None:
    """B26: a text, ids and lists of either are the same texts in the same order, alone or together."""
    ids = server.post("/tokenize", {"prompt": "hello there"}).json()["tokens"]
    other = vectors(server.post(PATH, {"input": "x"}))[0]
    alone = vectors(server.post(PATH, {"input": "hello there"}))
    by_ids = vectors(server.post(PATH, {"input": ids}))
    mixed = vectors(server.post(PATH, {"input": ["x", "hello there", ids]}))
    for one in (alone[0], by_ids[0], mixed[1], mixed[2]):
        np.testing.assert_allclose(one, alone[0], atol=1e-6)
    np.testing.assert_allclose(mixed[0], other, atol=1e-6)
    assert float(alone[0] @ other) < 0.999


def test_dimensions_are_the_first_ones_at_length_one(server: Any) -> None:
    whole = vectors(server.post(PATH, {"input": "hello"}))[0]
    count = int(np.flatnonzero(whole)[1]) + 1  # so that there is something to bring to length one
    part = vectors(server.post(PATH, {"input": "hello", "dimensions": count}))[0]
    np.testing.assert_allclose(part, whole[:count] / np.linalg.norm(whole[:count]), rtol=1e-5)


@pytest.mark.parametrize(
    ("fields", "param", "word"),
    [
        ({"input": None}, "input", "missing"),
        ({"input": []}, "input", "empty list"),
        ({"input": [[]]}, "input", "empty"),
        ({"input": [99999]}, "input", "99999"),
        ({"input": [{"text": "x"}]}, "input", "text"),
        ({"encoding_format": "x"}, "encoding_format", "'x'"),
        ({"dimensions": 0}, "dimensions", "dimensions is 0"),
        ({"dimensions": 100000}, "dimensions", "number of dimensions"),
        ({"input": ["short", "x" * 9000]}, "input", "maximum context length"),
    ],
)
def test_refusals_name_the_field(server: Any, fields: dict[str, Any], param: str, word: str) -> None:
    answer = server.post(PATH, {"input": "x", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param and word in answer.json()["error"]["message"]


def test_many_texts_beside_chats(server: Any) -> None:
    """More texts than wait at once, while chats are answered: nothing mixes up, nothing is left."""
    texts = [f"text number {at} " + "y" * (at % 50) for at in range(100)]
    body = {"input": texts}
    with ThreadPoolExecutor(8) as pool:
        many = pool.submit(server.post, PATH, body)
        chats = [pool.submit(server.post, "/v1/chat/completions", chat("4")) for _ in range(20)]
        found = vectors(many.result())
        assert all(one.result().json()["choices"][0]["message"]["content"] == "abcDEFGHIJklm" for one in chats)
    for at in (0, 57, 99):
        np.testing.assert_allclose(found[at], vectors(server.post(PATH, {"input": texts[at]}))[0], atol=2e-4)
    server.wait_idle()


def test_a_client_that_leaves_ends_its_texts(hooked: Any) -> None:
    with pytest.raises(httpx.TimeoutException):
        httpx.post(hooked.url + PATH, json={"input": ["slow Z"] * 4}, timeout=0.3)
    hooked.wait_idle()


def test_reranking_says_why_not(server: Any) -> None:
    for path in ("/rerank", "/v1/rerank"):
        answer = server.post(path, {"query": "q", "documents": ["d"]})
        assert answer.status_code == 404 and answer.json()["error"]["code"] == "rerank_not_supported"


def test_vectors_of_odd_states() -> None:
    assert vector(np.zeros(4, "<f4").tobytes(), None).tolist() == [0, 0, 0, 0]
    with pytest.raises(ApiError, match="not finite"):
        vector(np.array([np.nan, 1], "<f4").tobytes(), None)
    large = vector(np.full(2, 3e38, "<f4").tobytes(), None)
    np.testing.assert_allclose(large, [0.5**0.5] * 2, rtol=1e-6)


def test_what_files_say_of_embeddings(tmp_path: Any) -> None:
    """A pooling type, and an end token behind texts, as GGUF files of embedding models have them."""
    import scripted

    name = "general.architecture"
    plain = open_checkpoint(str(scripted.SCRIPTED))
    assert plain.pooling == "mean"
    keys = plain.tokenizer.gguf_metadata
    plain.close()
    assert keys is not None
    for kind, pooling in ((1, "mean"), (3, "last"), (2, None), (["x"], None)):
        file = scripted.rewrite(scripted.SCRIPTED, tmp_path / f"{kind}.gguf", {"llama.pooling_type": kind})
        checkpoint = open_checkpoint(str(file))
        assert checkpoint.pooling == pooling, name
        checkpoint.close()
    ended = {**keys, "tokenizer.ggml.add_eos_token": True}
    tokenizer = Tokenizer.from_files(TokenizerFiles(gguf_metadata=ended), 352)
    assert tokenizer.suffix_ids == (tokenizer.eos_id,)
    assert tokenizer.eos_id not in tokenizer.encode("hello")
