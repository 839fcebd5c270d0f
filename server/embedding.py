"""Vectors for texts: hidden states as the engine pooled them, cut, brought to length one, and written as asked."""

from __future__ import annotations

import base64

import numpy as np
from numpy.typing import NDArray

from ..core.pooling import unit_vector
from .errors import ApiError, bad_request

FORMATS = (None, "float", "base64")


def vector(pooled: bytes, dimensions: int | None) -> NDArray[np.float32]:
    """See ``core/pooling.unit_vector``.

    Raises:
        ApiError: 400 where the model has fewer dimensions, 500 where its states are not finite.
    """
    check_dimensions(dimensions, len(pooled) // 4)
    try:
        return unit_vector(pooled, dimensions)
    except ValueError:
        message = "The model gave hidden states that are not finite for this text."
        raise ApiError(500, message, code="engine_error") from None


def check_dimensions(asked: int | None, most: int | None) -> None:
    """Raises ``ApiError`` 400; ``most`` None: not known yet."""
    if asked is not None and (asked < 1 or (most is not None and asked > most)):
        limit = "at least 1" if most is None else f"1 to {most}, this model's number of dimensions"
        raise bad_request(f"dimensions is {asked}; it must be {limit}", "dimensions")


def written(found: NDArray[np.float32], encoding: str | None) -> str | list[float]:
    """As base64 of little-endian float32, or as a list of numbers."""
    if encoding == "base64":
        return base64.b64encode(found.astype("<f4").tobytes()).decode("ascii")
    numbers: list[float] = found.tolist()
    return numbers
