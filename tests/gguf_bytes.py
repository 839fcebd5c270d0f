"""GGUF files written byte by byte, so that every field can be wrong."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
_FORMATS = {U8: "B", I8: "b", U16: "H", I16: "h", U32: "I", I32: "i", F32: "f", BOOL: "B", U64: "Q", I64: "q", F64: "d"}


def text(value: str | bytes) -> bytes:
    """A string: its length, then its bytes."""
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def number(kind: int, value: float) -> bytes:
    return struct.pack("<" + _FORMATS[kind], value)


def array(kind: int, items: list[bytes], count: int | None = None) -> bytes:
    """An array value: element type, count (true unless given) and the encoded items."""
    return struct.pack("<IQ", kind, len(items) if count is None else count) + b"".join(items)


@dataclass
class Tensor:
    """One row of the tensor table and its data."""

    name: str | bytes = "a.weight"
    dims: tuple[int, ...] = (8,)
    kind: int = 0
    data: bytes = bytes(32)
    offset: int | None = None  # None: where the data really is


@dataclass
class GgufBytes:
    """A file in parts; ``build`` puts them together with true counts and offsets unless told otherwise."""

    keys: list[tuple[str | bytes, int, bytes]] = field(default_factory=list)  # key, value type, encoded value
    tensors: list[Tensor] = field(default_factory=list)
    magic: bytes = b"GGUF"
    version: int = 3
    alignment: int = 32
    tensor_count: int | None = None
    key_count: int | None = None

    def build(self) -> bytes:
        count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        keys = len(self.keys) if self.key_count is None else self.key_count
        out = self.magic + struct.pack("<IQQ", self.version, count, keys)
        for key, kind, value in self.keys:
            out += text(key) + struct.pack("<I", kind) + value
        data = b""
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            out += text(tensor.name) + struct.pack("<I", len(tensor.dims))
            out += b"".join(struct.pack("<Q", dim) for dim in tensor.dims) + struct.pack("<IQ", tensor.kind, offset)
            data += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return out + bytes(-len(out) % self.alignment) + data
