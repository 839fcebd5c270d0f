"""GPT-2's stand-in characters: each of the 256 bytes written as one printable character."""

from __future__ import annotations


def _byte_to_char() -> dict[int, str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    table = {byte: chr(byte) for byte in printable}
    spare = (chr(code) for code in range(256, 512))
    return {byte: table.get(byte) or next(spare) for byte in range(256)}


BYTE_TO_CHAR: dict[int, str] = _byte_to_char()
CHAR_TO_BYTE: dict[str, int] = {char: byte for byte, char in BYTE_TO_CHAR.items()}


def to_bytes(token: str) -> bytes:
    """The bytes a stored token stands for; a token with a character outside the alphabet is plain UTF-8."""
    try:
        return bytes([CHAR_TO_BYTE[char] for char in token])
    except KeyError:
        return token.encode("utf-8", "replace")
