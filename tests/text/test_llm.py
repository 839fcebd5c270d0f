"""``LLM``, on the real CPU backend with a model whose answers are known."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import scripted

from bireme import LLM, SamplingParams
from bireme.core.request import FinishReason, RequestRejectedError
from bireme.llm import default_params
from bireme.models.template import TemplateError

GREEDY = SamplingParams(temperature=0, max_tokens=24)


@pytest.fixture(scope="module")
def llm() -> Iterator[LLM]:
    options = {"max_num_seqs": 4, "max_num_batched_tokens": 64, "max_queue": 4, "kv_cache_memory": 64 << 20}
    with LLM(str(scripted.SCRIPTED), device="cpu", cpu_precision="exact", max_model_len=256, **options) as model:
        yield model


def chats(keys: str) -> list[list[dict[str, str]]]:
    return [[{"role": "user", "content": f"go {key}"}] for key in keys]


def test_more_conversations_than_the_queue_takes_are_all_answered(llm: LLM) -> None:
    keys = "".join(key for key, trigger in scripted.TRIGGERS.items() if not trigger.endless)
    results = llm.chat(chats(keys), GREEDY)
    for key, result in zip(keys, results, strict=True):
        trigger, answer = scripted.TRIGGERS[key], result.outputs[0]
        assert (answer.text, answer.finish_reason) == (trigger.text, FinishReason.STOP)
        assert len(answer.token_ids) == trigger.completion_tokens


def test_one_conversation_or_one_prompt_needs_no_list_around_it(llm: LLM) -> None:
    assert llm.chat(chats("4")[0], GREEDY)[0].outputs[0].text == "abcDEFGHIJklm"
    assert llm.generate("x4", GREEDY)[0].outputs[0].text == "abcDEFGHIJklm"
    result = llm.generate([120, 52], GREEDY)[0]
    assert (result.prompt, result.prompt_ids, result.outputs[0].text) == (None, (120, 52), "abcDEFGHIJklm")


def test_a_stop_string_ends_one_answer_and_leaves_its_siblings_alone(llm: LLM) -> None:
    params = [SamplingParams(temperature=0, max_tokens=9, n=2), SamplingParams(max_tokens=9, temperature=0)]
    first, second = llm.generate(["x4", "x6"], params, stop="DEFGHIJ")
    assert [(a.text, a.finish_reason, a.stop) for a in first.outputs] == [("abc", FinishReason.STOP, "DEFGHIJ")] * 2
    assert second.outputs[0].finish_reason is FinishReason.LENGTH and len(second.outputs[0].token_ids) == 9
    assert llm.generate("x4", GREEDY, stop=["DEF"], include_stop=True)[0].outputs[0].text == "abcDEF"


def test_logprobs_come_one_for_each_token(llm: LLM) -> None:
    answer = llm.generate("x0", SamplingParams(temperature=0, max_tokens=9, logprobs=2))[0].outputs[0]
    assert answer.logprobs is not None and len(answer.logprobs) == len(answer.token_ids) == 4
    assert all(score.top_ids[0] == token for score, token in zip(answer.logprobs, answer.token_ids, strict=True))


def test_a_repeated_prompt_is_found_in_the_cache(llm: LLM) -> None:
    prompt = "a long enough prompt to fill two blocks 4"
    assert llm.generate(prompt, GREEDY)[0].cached_tokens == 0
    again = llm.generate(prompt, GREEDY)[0]
    assert again.cached_tokens == len(again.prompt_ids) - 1  # at least one token is always computed


def test_seeded_draws_repeat(llm: LLM) -> None:
    params = SamplingParams(seed=5, max_tokens=12, n=3)
    first, again = (llm.generate("xC", params)[0].outputs for _ in range(2))
    assert [a.text for a in first] == [a.text for a in again]
    assert len({a.text for a in first}) > 1


def test_a_prompt_that_never_fits_is_refused_and_leaves_nothing_behind(llm: LLM) -> None:
    with pytest.raises(RequestRejectedError, match="256"):
        llm.generate(["x4", "x" * 300], GREEDY)
    assert llm.generate("x5", GREEDY)[0].outputs[0].text == "uno due tre"


def test_wrong_arguments_are_named(llm: LLM) -> None:
    with pytest.raises(ValueError, match="2 params for 1 prompts"):
        llm.generate(["x"], [GREEDY, GREEDY])
    with pytest.raises(TemplateError, match="must be a word"):
        llm.chat([{"role": "", "content": "a"}])
    with pytest.raises(TypeError, match="max_seqs.*Known: .*max_num_seqs"):
        LLM(str(scripted.SCRIPTED), max_seqs=3)


def test_a_model_that_can_not_be_opened_is_named(tmp_path: Path) -> None:
    (tmp_path / "broken.gguf").write_bytes(b"GGUF")
    with pytest.raises(ValueError, match="broken.gguf"):
        LLM(str(tmp_path / "broken.gguf"), device="cpu")


def test_sampling_defaults_come_from_the_models_own_files() -> None:
    params = default_params({"temperature": 0.6, "top_k": 20, "max_length": 7})
    assert (params.temperature, params.top_k, params.max_tokens) == (0.6, 20, None)


def test_embeddings_are_unit_vectors_in_the_order_asked(llm: LLM) -> None:
    """Twelve texts through a queue of four; the mean of a text's states, and its first dimensions at length one."""
    texts = [f"go {'abc'[i % 3]} {'x' * i}" for i in range(12)]
    vectors = llm.embed(texts)
    assert len(vectors) == 12 and all(v.dtype == np.float32 and v.ndim == 1 for v in vectors)
    assert np.allclose([np.linalg.norm(v) for v in vectors], 1, atol=1e-6)
    ids = [llm.generate(text, SamplingParams(max_tokens=1))[0].prompt_ids for text in texts[:2]]
    for alone, vector in zip(llm.embed(ids), vectors[:2], strict=True):
        assert np.allclose(alone, vector, atol=1e-5)
    few = int(np.flatnonzero(vectors[5])[0]) + 3  # this model's first states are zero
    (short,) = llm.embed(texts[5], dimensions=few)
    assert np.allclose(short, vectors[5][:few] / np.linalg.norm(vectors[5][:few]), atol=1e-5)
    assert abs(float(vectors[0] @ vectors[5])) < 0.99999


def test_embeddings_that_cannot_be_say_why(llm: LLM) -> None:
    with pytest.raises(ValueError, match="dimensions is 9999; it must be 1 to "):
        llm.embed("x", dimensions=9999)
    with pytest.raises(RequestRejectedError):
        llm.embed(["x", "y" * 4000])
    with pytest.raises(ValueError, match="999999"):
        llm.embed([[999999]])
    assert llm.embed([]) == []
