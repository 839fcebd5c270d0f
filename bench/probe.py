"""What is learnt of a server before it is measured: its model, how long its tokens are, what it refuses."""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import replace
from typing import Any

import httpx

from .ask import Prompt, Sample, Target, ask
from .sources import WordSource

_PATIENCE = 600.0


def find_model(target: Target) -> str:
    """The first model that the server lists.

    Raises:
        OSError: it can't be reached, or refuses.
        ValueError: there is no list at this address, or it is empty.
    """
    headers = {"Authorization": f"Bearer {target.api_key}"} if target.api_key else {}
    try:
        answer = httpx.get(f"{target.url.rstrip('/')}/models", headers=headers, timeout=10, trust_env=False)
        answer.raise_for_status()
        return str(answer.json()["data"][0]["id"])
    except httpx.InvalidURL as error:
        raise ValueError(f"{target.url!r} is no address: {error}; it looks like http://127.0.0.1:8000/v1") from None
    except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
        hint = "" if target.url.rstrip("/").endswith("/v1") else ", or the address may lack its /v1"
        reason = " ".join(str(error).partition("\n")[0].split()) or type(error).__name__
        said = f"{target.url}/models gives no model ({reason}); name it with --model{hint}"
        raise (OSError if _is_no_fault_of_the_address(error) else ValueError)(said) from None


def _is_no_fault_of_the_address(error: Exception) -> bool:
    """Nobody answers there now, or whoever does refuses: a key is missing, or the server isn't ready."""
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code != httpx.codes.NOT_FOUND
    return isinstance(error, httpx.TransportError) and not isinstance(error, httpx.UnsupportedProtocol)


def word_source(target: Target, chat: bool) -> WordSource:
    """Prose, its words' length in tokens learnt from the server's own ``usage``; the usual 1.35 where it has none."""
    source = WordSource()
    text = source.draw(random.Random("calibrate"), 400)
    sample = first_request(target, text, chat)
    if sample.failure not in (None, "no token") and sample.prompt_tokens is None:
        reason = f" ({sample.reason})" if sample.reason else ""
        absent = sample.failure in ("HTTP 404", "HTTP 405") and "model" not in sample.reason and not chat
        hint = "; a server that has no /completions is measured with --chat" if absent else ""
        raise ValueError(f"a first request to {target.url} failed: {sample.failure}{reason}{hint}")
    if sample.prompt_tokens:
        source.tokens_per_word = sample.prompt_tokens / len(text.split())
    return source


def accepted(target: Target, chat: bool) -> Target:
    """``target`` without ``ignore_eos`` if the server refuses a request for the sake of that, and only of that."""
    without = {key: value for key, value in target.extra.items() if key != "ignore_eos"}
    refusals = ("HTTP 400", "HTTP 422")
    if len(without) == len(target.extra) or first_request(target, "Hello", chat).failure not in refusals:
        return target
    plain = replace(target, extra=without)
    return target if first_request(plain, "Hello", chat).failure in refusals else plain


def first_request(target: Target, text: str, chat: bool) -> Sample:
    """One short answer to ``text``."""
    content: Any = ({"role": "user", "content": text},) if chat else text

    async def once() -> Sample:
        async with httpx.AsyncClient(timeout=_PATIENCE, trust_env=False) as client:
            if target.api_key:
                client.headers["Authorization"] = f"Bearer {target.api_key}"
            return await ask(client, target, Prompt(content, 1), time.perf_counter())

    return asyncio.run(once())
