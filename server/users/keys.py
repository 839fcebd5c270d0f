"""API keys: made at random, kept as digests."""

from __future__ import annotations

import hashlib
import secrets

#: What a key begins with: known to clients that look for ``sk-``, and to scanners that look for lost keys.
PREFIX = "sk-bireme-"


def new_key() -> str:
    """256 random bits behind the prefix."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(key: str) -> bytes:
    """What is kept of a key.

    A plain SHA-256: slow hashes (bcrypt and the like) make guesses dear, and among 2^256 keys nothing can be guessed.
    They would only cost each request a tenth of a second.
    """
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).digest()


def hint(key: str) -> str:
    """The end of a key, for people who have to tell several apart."""
    return key[-4:]
