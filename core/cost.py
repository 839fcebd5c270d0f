"""How long a step will take: t = a + b * tokens + c * pairs, fitted while serving.

``tokens`` counts the step's tokens, ``pairs`` the (query, key) pairs its attention covers. The fit sizes prompt chunks,
so that the step a running stream waits for lasts no longer than the stall bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

import numpy as np

_DECAY = 0.1  # weight of a new step in its bucket's mean: about the last ten of a size count
_CLIP = 2.0  # a step counts as no more than so many times (or parts) of its bucket's mean: hiccups pass
_REFIT_EVERY = 16
_HALF_LIFE = 64  # observations until a bucket that saw nothing new counts half
_LEAST = 0.001  # the least it ever counts: old news of a size is better than none
_TERMS = ([1], [0, 1], [1, 2], [0, 1, 2])  # base, per token, per pair: a token always costs something
_SETTLED = 3  # steps in a bucket before its mean is trusted to clip others


@dataclass(slots=True)
class _Bucket:
    """Decaying means over the steps of about one size (powers of two in tokens and pairs)."""

    tokens: float
    pairs: float
    seconds: float
    seen: int  # the observation that last came here
    count: int = 1

    def add(self, tokens: int, pairs: int, seconds: float, now: int) -> None:
        self.seen = now
        if self.count >= _SETTLED:
            seconds = min(max(seconds, self.seconds / _CLIP), self.seconds * _CLIP)
        elif seconds < self.seconds / _CLIP:  # the first ones carry warm-up: believe the faster
            self.tokens, self.pairs, self.seconds = tokens, pairs, seconds
        weight = max(_DECAY, 1.0 / (self.count + 1))
        self.tokens += weight * (tokens - self.tokens)
        self.pairs += weight * (pairs - self.pairs)
        self.seconds += weight * (seconds - self.seconds)
        self.count += 1


class CostModel:
    """Seconds of a step as a function of its size, never negative and never falling with size.

    One mean is kept per size, so a long time of nothing but small steps forgets nothing about large ones.
    """

    def __init__(self, seconds_per_token: float = 1e-3) -> None:
        self.base = 0.0
        self.per_token = seconds_per_token  # cautious until measured
        self.per_pair = 0.0
        self._buckets: dict[tuple[int, int], _Bucket] = {}
        self._now = 0  # observations so far
        self._since_fit = 0

    def observe(self, tokens: int, pairs: int, seconds: float) -> None:
        """A step of this size took so long on the device."""
        if tokens < 1 or not 0.0 <= seconds < float("inf"):
            return
        self._now += 1
        key = (tokens.bit_length(), pairs.bit_length())
        bucket = self._buckets.get(key)
        if bucket is None:
            self._buckets[key] = _Bucket(tokens, pairs, seconds, self._now)
            self._since_fit = _REFIT_EVERY  # a new size is news
        else:
            bucket.add(tokens, pairs, seconds, self._now)
        self._since_fit += 1
        if self._since_fit >= _REFIT_EVERY:
            self._fit()
            self._since_fit = 0

    def seconds(self, tokens: int, pairs: int) -> float:
        """The predicted time of a step."""
        return self.base + self.per_token * tokens + self.per_pair * pairs

    def chunk(self, seconds: float, computed: int) -> int:
        """The most tokens of a prompt with ``computed`` tokens done that add no more than ``seconds`` to a step.

        n tokens cover n * computed + n^2 / 2 pairs: the positive root of b n + c (n computed + n^2 / 2) = seconds.
        """
        if seconds <= 0:
            return 0
        linear = self.per_token + self.per_pair * computed
        if self.per_pair <= 1e-18:
            return int(min(seconds / linear, 2**31)) if linear > 0 else 2**31
        root = sqrt(linear * linear + 2 * self.per_pair * seconds)
        return int(min(2 * seconds / (linear + root), 2**31))  # the stable form of (root - linear) / per_pair

    def _fit(self) -> None:
        """Weighted least squares over the buckets, no term negative: the best of the fits with some terms left out.

        Errors count relative to the time measured: a step that was slow for a reason of its own (a compilation, a
        hiccup) can't pull the fit further than its own weight, and a size seen once counts a tenth.
        """
        buckets = [bucket for bucket in self._buckets.values() if bucket.seconds > 0]
        if len(buckets) < 2:  # one size seen: all of it may be per token, which is the cautious reading
            for bucket in buckets:
                self.base, self.per_token, self.per_pair = 0.0, bucket.seconds / bucket.tokens, 0.0
            return
        times = np.array([b.seconds for b in buckets])
        ages = np.array([self._now - b.seen for b in buckets])
        seen_once = np.array([0.1 if b.count == 1 else 1.0 for b in buckets])
        scale = np.sqrt(np.maximum(_LEAST, 0.5 ** (ages / _HALF_LIFE)) * seen_once) / times
        rows = np.array([(1.0, b.tokens, b.pairs) for b in buckets]) * scale[:, None]
        target = times * scale
        best = float("inf")
        for columns in _TERMS:
            if len(columns) > len(buckets):
                continue
            terms = np.linalg.lstsq(rows[:, columns], target, rcond=1e-9)[0]
            error = float(((rows[:, columns] @ terms - target) ** 2).sum())
            if (terms >= 0).all() and error < best * (1 - 1e-6):
                best = error
                values = dict(zip(columns, terms.tolist(), strict=True))
                self.base, self.per_token, self.per_pair = (values.get(column, 0.0) for column in range(3))
