"""Text that a client keeps for the server without reading it: an answer's reasoning, between one turn and the next.

It is packed, not secret: who may see the token may know the text. Nothing is stored here for it.
"""

from __future__ import annotations

import base64
import binascii
import zlib

_MARK = "bireme1."
#: Characters of text that a token may hold; a short token can't be unpacked into all memory.
MAX_TEXT = 4 * 1024 * 1024


def seal(text: str) -> str:
    """A token that ``unseal`` makes ``text`` of again."""
    packed = zlib.compress(text.encode("utf-8", "replace"), 6)
    return _MARK + base64.urlsafe_b64encode(packed).decode("ascii")


def unseal(token: str) -> str | None:
    """The text of a token; None where it is none of ours, or is broken, or holds too much."""
    if not token.startswith(_MARK):
        return None
    try:
        packed = base64.b64decode(token[len(_MARK) :], altchars=b"-_", validate=True)
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(packed, MAX_TEXT)
        return data.decode("utf-8") if unpacker.eof else None
    except (binascii.Error, zlib.error, ValueError):
        return None
