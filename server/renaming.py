"""Errors of the chat that is behind another API, told in that API's words."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping

from .errors import ApiError


@contextlib.contextmanager
def field_names(names: Mapping[str, str]) -> Iterator[None]:
    """Inside, an ``ApiError`` that speaks of a chat's field leaves with the name that ``names`` has for it."""
    try:
        yield
    except ApiError as error:
        if error.param is not None and error.param in names:
            name = names[error.param]
            error.message = re.sub(rf"\b{re.escape(error.param)}\b", name, error.message)
            error.param = name
        raise
