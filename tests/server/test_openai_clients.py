"""The ``openai`` package against a real server: what clients do, many at once."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
import scripted

Messages = list[dict[str, Any]]


def say(trigger: str) -> Any:
    return [{"role": "user", "content": f"go {trigger}"}]


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as one:
        yield one


def test_chat_and_stream(client: openai.OpenAI) -> None:
    model = client.models.list().data[0].id
    assert client.models.retrieve(model).id == model
    whole = client.chat.completions.create(model=model, messages=say("1"), temperature=0)
    assert whole.choices[0].message.content == "😀" and whole.choices[0].finish_reason == "stop"
    assert whole.usage is not None and whole.usage.prompt_tokens_details is not None
    stream = client.chat.completions.create(
        model=model, messages=say("1"), temperature=0, stream=True, stream_options={"include_usage": True}
    )
    chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == "😀"
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_stream_helper(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="scripted", messages=say("4"), temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert final.choices[0].message.content == "abcDEFGHIJklm" and final.choices[0].finish_reason == "stop"
    assert "content.delta" in kinds and kinds[-2:] != []


def test_completions(client: openai.OpenAI) -> None:
    answer = client.completions.create(model="scripted", prompt=["x0", "x4"], temperature=0, logprobs=1)
    assert [choice.text for choice in answer.choices] == [" hello there!", "abcDEFGHIJklm"]
    assert answer.choices[0].logprobs is not None
    texts = [
        part.choices[0].text
        for part in client.completions.create(model="scripted", prompt="x0", temperature=0, stream=True)
    ]
    assert "".join(texts) == " hello there!"


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as too_long:
        client.chat.completions.create(model="scripted", messages=[{"role": "user", "content": "long " * 3000}])
    assert too_long.value.code == "context_length_exceeded" and too_long.value.param == "messages"
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(model="gpt-4", messages=say("0"))
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(model="scripted", messages=say("0"), temperature=-1)


def run_all(server: Any, jobs: list[dict[str, Any]]) -> list[str]:
    """All requests at once; their texts in order."""

    async def one(client: openai.AsyncOpenAI, job: dict[str, Any]) -> str:
        stream = await client.chat.completions.create(model="scripted", stream=True, **job)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def everyone() -> list[str]:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as client:
            return list(await asyncio.gather(*(one(client, job) for job in jobs)))

    return asyncio.run(everyone())


def test_many_streams_at_once(server: Any) -> None:
    """Forty streams, each its own text: nothing crosses."""
    keys = [key for key, trigger in scripted.TRIGGERS.items() if not trigger.endless and key != "3"]
    jobs = [{"messages": say(keys[i % len(keys)]), "temperature": 0} for i in range(40)]
    assert run_all(server, jobs) == [scripted.TRIGGERS[keys[i % len(keys)]].text for i in range(40)]
    server.wait_idle()


def test_seeds(server: Any) -> None:
    """C21: a seeded answer is the same alone and in any company; others differ."""

    def job(seed: int | None) -> dict[str, Any]:
        return {"messages": say("C"), "temperature": 1.0, "max_tokens": 20} | ({} if seed is None else {"seed": seed})

    (alone,) = run_all(server, [job(42)])
    mixed = run_all(server, [job(None), job(42), job(None), job(None)])
    seeded = run_all(server, [job(43), job(44), job(42), job(42)])
    assert mixed[1] == alone and seeded[2] == seeded[3] == alone
    others = [mixed[0], mixed[2], mixed[3], seeded[0], seeded[1]]
    assert len({alone, *others}) == 6


def test_greedy_rows_beside_sampled_ones(server: Any) -> None:
    """C20: each as alone."""
    jobs = [{"messages": say("C"), "temperature": 1.0, "max_tokens": 12, "logit_bias": {"5": -100}} for _ in range(3)]
    jobs += [{"messages": say(key), "temperature": 0} for key in "0145"]
    assert run_all(server, jobs)[3:] == [scripted.TRIGGERS[key].text for key in "0145"]


def test_long_prompt_does_not_stop_a_stream(server: Any, client: openai.OpenAI) -> None:
    """C15: while a prompt near the context limit is read, the stream's tokens keep coming."""
    stream = client.chat.completions.create(
        model="scripted", messages=say("6"), temperature=0, max_tokens=1200, stream=True
    )
    parts = iter(stream)
    for _ in range(10):
        next(parts)

    async def long_one() -> str:
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0) as other:
            answer = await other.completions.create(
                model="scripted", prompt=[120] * 1990 + [48], max_tokens=4, temperature=0
            )
            return answer.choices[0].text

    assert asyncio.run(long_one()) == " hello there!"
    assert sum(1 for _ in parts) > 0
    server.wait_idle()
