"""Typed, checked look-ups in a file's key-value part (config.json, GGUF metadata)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .weight import CheckpointError


@dataclass(frozen=True, slots=True)
class Settings:
    """``values`` of ``source`` (a file, for messages), looked up as ``prefix + key``. A null value counts as absent.

    Every method raises ``CheckpointError`` naming file, key and value when the key is missing (and has no default), of
    the wrong type or out of range.
    """

    values: Mapping[str, Any]
    source: str
    prefix: str = ""

    def get(self, key: str) -> Any:
        return self.values.get(self.prefix + key)

    def has(self, key: str) -> bool:
        return self.get(key) is not None

    def fail(self, key: str, wanted: str) -> CheckpointError:
        """The error for a bad value of ``key``; the caller raises it."""
        return CheckpointError(f"{self.source}: {self.prefix}{key} is {self.get(key)!r}; wanted: {wanted}")

    def missing(self, key: str) -> CheckpointError:
        return CheckpointError(f"{self.source}: missing {self.prefix}{key}")

    def integer(self, key: str, default: int | None = None, least: int = 1, most: int = 1 << 31) -> int:
        """An integer; a float that is whole counts. A list of equal integers (one per layer) counts as that integer."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        if isinstance(value, list) and value and all(item == value[0] for item in value):
            value = value[0]
        if isinstance(value, list):
            raise self.fail(key, "the same number in every layer")
        if isinstance(value, float) and value.is_integer():
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
            raise self.fail(key, f"an integer from {least} to {most}")
        return value

    def number(self, key: str, default: float | None = None, above: float = 0.0) -> float:
        """A finite number greater than ``above``."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value <= above:
            raise self.fail(key, f"a number above {above:g}")
        return float(value)

    def boolean(self, key: str, default: bool) -> bool:
        value = self.get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise self.fail(key, "true or false")
        return value

    def text(self, key: str, default: str | None = None) -> str:
        value = self.get(key)
        if value is None:
            if default is None:
                raise self.missing(key)
            return default
        if not isinstance(value, str):
            raise self.fail(key, "a string")
        return value
