"""``/v1/completions``, ``/tokenize`` and ``/detokenize`` over HTTP."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import scripted
from api_bodies import events, joined

COMPLETIONS = "/v1/completions"


def complete(server: Any, prompt: Any, **fields: Any) -> Any:
    response = server.post(COMPLETIONS, {"prompt": prompt, "temperature": 0, "max_tokens": 8, **fields})
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("key", ["0", "1", "2", "3", "4", "5"])
def test_scripts_come_out_alike_whole_and_streamed(server: Any, key: str) -> None:
    trigger = scripted.TRIGGERS[key]
    whole = complete(server, f"x{key}")
    assert whole["object"] == "text_completion"
    assert whole["choices"][0]["text"] == trigger.text and whole["choices"][0]["finish_reason"] == "stop"
    response = server.post(COMPLETIONS, {"prompt": f"x{key}", "temperature": 0, "stream": True})
    chunks = events(response)
    assert joined(chunks) == trigger.text
    assert [c["choices"][0]["finish_reason"] for c in chunks if c["choices"][0]["finish_reason"]] == ["stop"]
    assert response.text.endswith("data: [DONE]\n\n")


def test_prompt_forms(server: Any) -> None:
    """B26: one answer per prompt, in order; ids as they are."""
    texts = [choice["text"] for choice in complete(server, ["x0", "x1", [120, 50]])["choices"]]
    assert texts == [scripted.TRIGGERS[key].text for key in "012"]
    assert complete(server, [120, 48])["choices"][0]["text"] == " hello there!"
    assert complete(server, ["x0"])["choices"][0]["text"] == " hello there!"
    assert complete(server, [[120, 48]])["usage"]["prompt_tokens"] == 2
    chunks = events(server.post(COMPLETIONS, {"prompt": ["x0", "x4"], "temperature": 0, "stream": True}))
    assert [joined(chunks, index) for index in (0, 1)] == [" hello there!", "abcDEFGHIJklm"]


@pytest.mark.parametrize("prompt", [None, [], [[]], "", [""], [120, 352], [-1], [1.5], [None], [{"a": 1}], 5, ["x", 5]])
def test_wrong_prompts_are_refused(server: Any, prompt: Any) -> None:
    response = server.post(COMPLETIONS, {"prompt": prompt, "max_tokens": 2})
    assert response.status_code == 400 and response.json()["error"]["param"] == "prompt"


def test_n_over_several_prompts(server: Any) -> None:
    """B25: choices are grouped by prompt, each prompt counted once."""
    whole = complete(server, ["xC", "x0"], n=2, seed=1, temperature=1)
    assert [choice["index"] for choice in whole["choices"]] == [0, 1, 2, 3]
    assert all(choice["text"].startswith(" r") for choice in whole["choices"][:2])
    assert all(choice["text"] == " hello there!" for choice in whole["choices"][2:])
    assert whole["usage"]["prompt_tokens"] == 4


def test_b24_an_echo_is_scored(server: Any) -> None:
    """As lm_eval asks: ids as the prompt, no or one token more, and how likely each token is."""
    prompt = list(b"go on 4") + list(b"x0")
    whole = complete(server, prompt, echo=True, logprobs=2, max_tokens=2)["choices"][0]
    scores = whole["logprobs"]
    assert whole["text"] == "go on 4x0 hello there"
    assert len(scores["tokens"]) == len(prompt) + 2 and {len(part) for part in scores.values()} == {len(prompt) + 2}
    assert scores["token_logprobs"][0] is None and scores["top_logprobs"][0] is None
    assert all(value <= 0 for value in scores["token_logprobs"][1:])
    assert "".join(scores["tokens"]) == whole["text"]
    assert scores["text_offset"] == [whole["text"].index(scores["tokens"][0]), *scores["text_offset"][1:]]
    for offset, token in zip(scores["text_offset"], scores["tokens"], strict=True):
        assert whole["text"][offset:].startswith(token)
    for token, value, top in zip(
        *(scores[name][1:] for name in ("tokens", "token_logprobs", "top_logprobs")), strict=True
    ):
        assert top[token] == value and len(top) in (2, 3)
    nothing = server.post(
        COMPLETIONS, {"prompt": ["x4", prompt], "echo": True, "logprobs": 0, "max_tokens": 0, "temperature": 0}
    ).json()
    assert nothing["usage"]["completion_tokens"] == 0
    assert [one["text"] for one in nothing["choices"]] == ["x4", "go on 4x0"]
    np.testing.assert_allclose(
        nothing["choices"][1]["logprobs"]["token_logprobs"][1:], scores["token_logprobs"][1 : len(prompt)], atol=1e-4
    )
    assert all(one["finish_reason"] == "length" for one in nothing["choices"])


def test_a_scored_echo_as_a_stream_and_of_several_choices(server: Any) -> None:
    body = {"prompt": ["x4", "ab0"], "echo": True, "logprobs": 1, "temperature": 0, "n": 2}
    whole = server.post(COMPLETIONS, body).json()["choices"]
    chunks = events(server.post(COMPLETIONS, {**body, "stream": True}))
    for choice in whole:
        mine = [one["choices"][0] for one in chunks if one["choices"][0]["index"] == choice["index"]]
        assert "".join(one["text"] for one in mine) == choice["text"]
        parts = [one["logprobs"]["token_logprobs"] for one in mine if one["logprobs"]]
        np.testing.assert_allclose(
            [value for part in parts for value in part][1:], choice["logprobs"]["token_logprobs"][1:], atol=1e-4
        )
        assert mine[-1]["finish_reason"] == choice["finish_reason"] == "stop"


def test_suffix_is_refused_with_the_reason(server: Any) -> None:
    refused = server.post(COMPLETIONS, {"prompt": "x0", "suffix": "end"})
    assert refused.status_code == 400 and refused.json()["error"]["param"] == "suffix"
    assert "forward only" in refused.json()["error"]["message"]


def test_tokenizer_info(server: Any) -> None:
    info = server.get("/tokenizer_info").json()
    assert info["eos_token"] == "<|im_end|>" and "<|im_start|>" in info["chat_template"]
    assert info["model_max_length"] == server.get("/v1/models").json()["data"][0]["max_model_len"]


def test_echo(server: Any) -> None:
    """B24: the text begins with the prompt, also in a stream, also with nothing after it."""
    assert complete(server, "x0", echo=True, max_tokens=2)["choices"][0]["text"] == "x0 hello there"
    nothing = complete(server, ["x0", [120, 49]], echo=True, max_tokens=0)
    assert [choice["text"] for choice in nothing["choices"]] == ["x0", "x1"]
    assert nothing["usage"]["completion_tokens"] == 0
    for tokens, text in ((0, "x0"), (2, "x0 hello there")):
        body = {"prompt": "x0", "temperature": 0, "echo": True, "max_tokens": tokens, "stream": True}
        chunks = events(server.post(COMPLETIONS, body))
        assert joined(chunks) == text and chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("top", [0, 1, 6])
def test_completion_logprobs(server: Any, top: int) -> None:
    """B22: four parallel lists; the sampled token is always among the alternatives."""
    shape = complete(server, "x4", logprobs=top)["choices"][0]["logprobs"]
    assert shape["tokens"][:3] == ["abc", "DEF", "G"] and shape["text_offset"][:3] == [0, 3, 6]
    assert len(shape["tokens"]) == len(shape["token_logprobs"]) == len(shape["top_logprobs"]) == 7
    for token, alternatives in zip(shape["tokens"], shape["top_logprobs"], strict=True):
        assert token in alternatives and len(alternatives) in (max(top, 1), top + 1)
    chunks = events(server.post(COMPLETIONS, {"prompt": "x4", "temperature": 0, "logprobs": top, "stream": True}))
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks if chunk["choices"][0]["logprobs"]]
    assert sum((one["tokens"] for one in streamed), []) == shape["tokens"]
    assert sum((one["text_offset"] for one in streamed), []) == shape["text_offset"]


@pytest.mark.parametrize(
    "fields",
    [{"suffix": "end"}, {"logprobs": 21}, {"logprobs": -1}, {"best_of": 1, "n": 2}, {"max_tokens": 0}],
)
def test_fields_not_served_are_named(server: Any, fields: dict[str, Any]) -> None:
    response = server.post(COMPLETIONS, {"prompt": "x0", **fields})
    assert response.status_code == 400 and response.json()["error"]["param"] == next(iter(fields))


def test_best_of_returns_the_likeliest(server: Any) -> None:
    body = {"temperature": 1.0, "seed": 5, "max_tokens": 3, "logprobs": 0}
    everyone = complete(server, "xC", n=4, **body)["choices"]
    best = complete(server, "xC", n=1, best_of=4, **body)
    assert len(best["choices"]) == 1 and best["usage"]["completion_tokens"] == 12

    def mean(choice: Any) -> float:
        scores = choice["logprobs"]["token_logprobs"]
        return sum(scores) / len(scores)

    assert mean(best["choices"][0]) == pytest.approx(max(map(mean, everyone)), abs=1e-4)
    streamed = server.post(COMPLETIONS, {"prompt": "xC", "best_of": 4, "stream": True})
    assert streamed.status_code == 400


def test_tokenize_and_back(server: Any) -> None:
    found = server.post("/tokenize", {"prompt": "hello 😀", "return_token_strs": True}).json()
    assert found["count"] == len(found["tokens"]) == len(found["token_strs"]) and found["max_model_len"] == 2048
    assert server.post("/detokenize", {"tokens": found["tokens"]}).json() == {"prompt": "hello 😀"}
    marks = [scripted.SPECIAL_IDS["<|im_start|>"]]
    assert server.post("/detokenize", {"tokens": marks}).json() == {"prompt": "<|im_start|>"}
    for body in ({}, {"prompt": "a", "messages": []}):
        assert server.post("/tokenize", body).status_code == 400
    for body in ({}, {"tokens": [352]}, {"tokens": [-1]}, {"tokens": "a"}):
        assert server.post("/detokenize", body).status_code == 400


def test_long_prompts_do_not_hold_up_the_event_loop(server: Any) -> None:
    """A prompt of a megabyte is tokenised off the event loop; it is refused by its length in the end."""
    response = server.post(COMPLETIONS, {"prompt": "a b c d " * 120_000})
    assert response.status_code == 400 and response.json()["error"]["code"] == "context_length_exceeded"
