"""One user's limits while the server runs: what is left of them, and the 429 where nothing is."""

from __future__ import annotations

import time
from collections.abc import Callable

from ..errors import ApiError, bad_request
from .bucket import Bucket
from .limit_headers import Left
from .user import User


class Allowance:
    """Used on the event loop. A request ``enter``s before its body is read and ``leave``s when its answer is over;
    each prompt is ``admit``ted when it goes to the engine."""

    def __init__(self, user: User, clock: Callable[[], float] = time.monotonic) -> None:
        self.user = user
        self._clock = clock
        self._entered = 0
        self._requests = self._bucket(None, user.requests_per_minute)
        self._tokens = self._bucket(None, user.tokens_per_minute)

    def change(self, user: User) -> None:
        """The user's limits are others from now on; what was used of them stays used."""
        self.user = user
        self._requests = self._bucket(self._requests, user.requests_per_minute)
        self._tokens = self._bucket(self._tokens, user.tokens_per_minute)

    def enter(self) -> None:
        """One more request. Raises ``ApiError`` 429; what is refused counts nowhere."""
        limit = self.user.max_concurrent
        if limit is not None and self._entered >= limit:
            raise _refused(f"{self._entered} requests at once, the most for {self.user.name}; wait for one to end", 1.0)
        if self._requests is not None:
            if wait := self._requests.wait(1):
                raise _refused(
                    f"{self._requests.per_minute} requests per minute for {self.user.name} are used up", wait
                )
            self._requests.take(1)
        self._entered += 1

    def leave(self) -> None:
        self._entered -= 1

    def admit(self, prompt_tokens: int) -> None:
        """Charge a prompt. Raises ``ApiError`` 429 where the minute's tokens don't cover it."""
        if self._tokens is None:
            return
        if wait := self._tokens.wait(prompt_tokens):
            raise _refused(
                f"{self._tokens.per_minute} tokens per minute for {self.user.name} leave "
                f"{max(0, int(self._tokens.level))} now, and the prompt has {prompt_tokens}",
                wait,
            )
        self._tokens.take(prompt_tokens)

    def spend(self, tokens: int) -> None:
        """Tokens were made; a negative number gives back what was charged too much."""
        if self._tokens is not None:
            self._tokens.take(tokens)

    def room(self, prompt_tokens: int, param: str) -> int | None:
        """Tokens that the user's context leaves for an answer; None: no limit. Raises ``ApiError`` 400 for none."""
        limit = self.user.max_context
        if limit is None:
            return None
        if prompt_tokens >= limit:
            raise bad_request(
                f"This server's maximum context length for {self.user.name} is {limit} tokens, but the prompt has "
                f"{prompt_tokens} tokens and at least one is needed for the answer. Shorten the {param}.",
                param,
                "context_length_exceeded",
            )
        return limit - prompt_tokens

    def left(self) -> list[Left]:
        """What is left of each limit per minute."""
        limits = (("requests", self._requests), ("tokens", self._tokens))
        return [Left(of, it.per_minute, max(0, int(it.level)), it.reset) for of, it in limits if it is not None]

    def _bucket(self, old: Bucket | None, per_minute: int | None) -> Bucket | None:
        if per_minute is None:
            return None
        if old is None:
            return Bucket(per_minute, self._clock)
        old.change(per_minute)
        return old


def _refused(what: str, retry_after: float) -> ApiError:
    return ApiError(429, f"Rate limit reached: {what}.", code="rate_limit_exceeded", retry_after=retry_after)
