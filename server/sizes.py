"""Sizes as people write them."""

from __future__ import annotations

import re

_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}
_BINARY = {"k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[kmgt]?)(?P<binary>i?)b?", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of ``2GiB`` (2 * 1024**3), ``2GB`` or ``2G`` (2 * 1000**3), ``2147483648``.

    Raises:
        ValueError: anything else, or nothing at all.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None or (found["binary"] and not found["unit"]):
        raise ValueError(f"{text!r} is not a size; write it like 2GiB, 512MiB or a number of bytes")
    units = _BINARY if found["binary"] else _UNITS
    size = int(float(found["number"]) * units[found["unit"].lower()])
    if size < 1:
        raise ValueError(f"{text!r} is no size; it must be at least one byte")
    return size


def size_text(size: float) -> str:
    """Bytes for people: 1.50 GiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.2f} GiB"


def decimal_text(size: float) -> str:
    """Bytes in decimal units, as memory is sold: 16.0 GB, 97 MB, 3 kB."""
    if abs(size) >= 0.95e9:
        return f"{size / 1e9:.1f} GB"
    return f"{size / 1e6:.0f} MB" if abs(size) >= 0.95e6 or not size else f"{size / 1e3:.0f} kB"
