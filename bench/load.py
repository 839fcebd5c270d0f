"""Load on an OpenAI-compatible server: closed loop (so many users at once) or open loop (so many a second)."""

from __future__ import annotations

import asyncio
import resource
import time
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import httpx

from .ask import Prompt, Sample, Session, Target, ask

OnSample = Callable[[Sample], None]

_OTHER_FILES = 64  # that a process has open beside its connections


async def closed_samples(
    target: Target, sessions: Sequence[Session], concurrency: int, on_sample: OnSample | None = None
) -> list[Sample]:
    """A closed loop: so many users, each taking the next session when its last one ended."""
    waiting = iter(sessions)
    samples: list[Sample] = []

    async def user(client: httpx.AsyncClient) -> None:
        for session in waiting:
            async for sample in _session(client, target, session, time.perf_counter()):
                _note(sample, samples, on_sample)

    async with _client(target, concurrency) as client:
        await asyncio.gather(*(user(client) for _ in range(concurrency)))
    return samples


async def open_samples(
    target: Target,
    sessions: Sequence[Session],
    due: Sequence[float],
    on_sample: OnSample | None = None,
    max_concurrency: int | None = None,
) -> list[Sample]:
    """An open loop: session i starts ``due[i]`` seconds from now, a schedule fixed before anything is sent.

    With ``max_concurrency`` no more are sent at once; the wait for a place counts as latency, and as send lag.
    """
    samples: list[Sample] = []
    places = asyncio.Semaphore(max_concurrency or max(1, len(sessions)))
    async with _client(target, max(1, len(sessions))) as client:
        start = time.perf_counter() + 0.05  # the tasks' own start is over by then

        async def one(session: Session, at: float) -> None:
            await asyncio.sleep(max(0.0, start + at - time.perf_counter()))
            async with places:
                async for sample in _session(client, target, session, start + at):
                    _note(sample, samples, on_sample)

        await asyncio.gather(*(one(session, at) for session, at in zip(sessions, due, strict=True)))
    return samples


def _note(sample: Sample, samples: list[Sample], on_sample: OnSample | None) -> None:
    samples.append(sample)
    if on_sample is not None:
        on_sample(sample)


async def _session(client: httpx.AsyncClient, target: Target, session: Session, due: float) -> AsyncIterator[Sample]:
    """Ask turn after turn; a failed one ends the session."""
    keep = len(session.turns) > 1
    history: tuple[Any, ...] = ()
    for number, turn in enumerate(session.turns):
        if number:
            await asyncio.sleep(session.think)
            due = time.perf_counter()
        prompt = Prompt((*history, *turn.content), turn.max_tokens) if keep else turn
        sample = await ask(client, target, prompt, due)
        if sample.failure is not None:
            sample.unasked = len(session.turns) - number - 1
        yield sample
        if sample.failure is not None:
            return
        if keep:
            assert isinstance(prompt.content, tuple)
            history = (*prompt.content, {"role": "assistant", "content": sample.text})


def _client(target: Target, connections: int) -> httpx.AsyncClient:
    allow_files(connections)
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    # An environment's proxy is not for a server under test, least of all one on this machine.
    return httpx.AsyncClient(headers=headers, limits=limits, timeout=target.timeout, trust_env=False)


def allow_files(connections: int) -> None:
    """Let this process have so many connections, as far as it may: each is an open file, and macOS begins with 256."""
    wanted = connections + _OTHER_FILES
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
