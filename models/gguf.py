"""The GGUF container, versions 2 and 3, little-endian (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md).

Reads the header, the metadata and the tensor table of one file; tensor data stays in the mapping until asked for.
Every length and offset in the file is checked before it is used, so a broken file ends in ``CheckpointError`` and in
nothing else.
Big-endian files are refused: they exist for s390x only.
"""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from . import ggml_types
from .ggml_types import GgmlType
from .mapped import MappedFile
from .weight import CheckpointError

VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_NAME_BYTES = 1024  # tensor names; the specification allows 64
MAX_KEY_BYTES = 65535  # the specification's limit
MAX_ITEMS = 1 << 22  # in one array; the largest vocabularies have some 2**18
MAX_NESTING = 8  # arrays in arrays
MAX_DIMS = 4

_U32 = struct.Struct("<I")
_U64 = struct.Struct("<Q")
_STRING, _ARRAY, _BOOL = 8, 9, 7
_SCALARS = {  # value type: numpy type; bool apart, since its bytes are checked
    0: "u1",
    1: "i1",
    2: "<u2",
    3: "<i2",
    4: "<u4",
    5: "<i4",
    6: "<f4",
    7: "u1",
    10: "<u8",
    11: "<i8",
    12: "<f8",
}


@dataclass(frozen=True, slots=True)
class GgufTensor:
    """One row of the tensor table, checked to lie within its file."""

    name: str
    shape: tuple[int, ...]  # rows first, i.e. the file's order reversed
    type: GgmlType
    offset: int  # bytes from the start of the file
    nbytes: int


class GgufFile:
    """One opened file: ``metadata`` (all keys, as Python values), ``tensors`` by name, and ``data`` of each.

    Raises:
        CheckpointError: not GGUF, another version, cut short or corrupt; names file, key or tensor, and sizes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path)
        try:
            cursor = _Cursor(self.file)
            tensor_count, key_count = _read_header(cursor)
            self.metadata = _read_metadata(cursor, key_count)
            self.alignment = _alignment(cursor, self.metadata)
            self.tensors = _read_tensors(cursor, tensor_count, self.alignment)
        except CheckpointError:
            self.file.close()
            raise

    def data(self, tensor: GgufTensor) -> NDArray[Any]:
        """As stored: F32, F16 and BF16 (as uint16) typed, in the tensor's shape; others uint8 [rows, bytes per row]."""
        what = f"tensor {tensor.name}"
        dense = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}.get(tensor.type.name)
        if dense is not None:
            return self.file.array(tensor.offset, math.prod(tensor.shape), dense, what).reshape(tensor.shape)
        rows = math.prod(tensor.shape[:-1])
        return self.file.array(tensor.offset, tensor.nbytes, np.uint8, what).reshape(rows, -1)

    def close(self) -> None:
        self.file.close()


class _Cursor:
    """A position in the file that can't leave it."""

    __slots__ = ("buffer", "path", "pos", "size")

    def __init__(self, file: MappedFile) -> None:
        self.buffer, self.size, self.path = file.buffer, file.size, file.path
        self.pos = 0

    def fail(self, message: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {message}")

    def take(self, count: int, what: str) -> int:
        """The position of the next ``count`` bytes, which are now behind the cursor."""
        start = self.pos
        if count > self.size - start:
            self.fail(f"truncated: {what} needs {count} bytes at {start}, the file has {self.size}; download it again")
        self.pos = start + count
        return start

    def u32(self, what: str) -> int:
        return int(_U32.unpack_from(self.buffer, self.take(4, what))[0])

    def u64(self, what: str) -> int:
        return int(_U64.unpack_from(self.buffer, self.take(8, what))[0])

    def name(self, what: str, limit: int) -> str:
        """A string that must be valid UTF-8 of at most ``limit`` bytes."""
        length = self.u64(f"the length of {what}")
        start = self.take(length, what)
        if length > limit:
            self.fail(f"corrupt: {what} has {length} bytes, at most {limit} are allowed")
        raw = bytes(self.buffer[start : start + length])
        try:
            return raw.decode()
        except UnicodeDecodeError:
            self.fail(f"corrupt: {what} is not UTF-8: {raw[:40]!r}")

    def expect_items(self, count: int, least: int, what: str) -> None:
        """Refuse a count that the rest of the file can't hold, at ``least`` bytes an item."""
        if count * least > self.size - self.pos:
            self.fail(
                f"truncated or corrupt: {count} {what} need at least {count * least} bytes at {self.pos}, "
                f"the file has {self.size}"
            )


def _read_header(cursor: _Cursor) -> tuple[int, int]:
    """Check magic and version; the numbers of tensors and of metadata keys."""
    magic = bytes(cursor.buffer[:4])
    if magic != b"GGUF":
        cursor.fail(
            f"not a GGUF file{_guess_content(bytes(cursor.buffer[:256]))}: it begins with {magic!r}, not b'GGUF'"
        )
    cursor.take(4, "the magic")
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        cursor.fail("a big-endian GGUF file, which is not supported; convert it with gguf-convert-endian")
    if version not in VERSIONS:
        cursor.fail(f"unsupported version {version} of GGUF; versions 2 and 3 are read")
    tensor_count, key_count = cursor.u64("the tensor count"), cursor.u64("the metadata count")
    cursor.expect_items(key_count, 13, "metadata keys")
    cursor.expect_items(tensor_count, 32, "tensors")
    return tensor_count, key_count


def _guess_content(head: bytes) -> str:
    """What people save under a model's name by mistake."""
    text = head.lstrip().lower()
    if not head:
        return " (the file is empty)"
    if text.startswith(b"version https://git-lfs"):
        return " (LFS pointer; run `git lfs pull` to get the model itself)"
    if text.startswith((b"<!doctype", b"<html", b"<?xml")):
        return " (a web page; the download went wrong)"
    if head[:4] in (b"ggml", b"lmgg", b"fmgg", b"tjgg", b"ggjt", b"ggmf", b"ggla", b"algg"):
        return " (an older container; convert the model again)"
    return ""


def _read_metadata(cursor: _Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for index in range(count):
        key = cursor.name(f"metadata key {index}", MAX_KEY_BYTES)
        if key in metadata:
            cursor.fail(f"corrupt: metadata key {key[:80]!r} occurs twice")
        kind = cursor.u32(f"the value type of {key[:80]}")
        metadata[key] = _read_value(cursor, kind, key[:80], 0)
    return metadata


def _read_value(cursor: _Cursor, kind: int, key: str, depth: int) -> Any:
    """A value of type ``kind``: a Python number, bool, string, or (nested) list of these."""
    if kind == _STRING:
        return _read_strings(cursor, 1, key)[0]
    if kind == _ARRAY:
        item_kind = cursor.u32(f"the element type of {key}")
        count = cursor.u64(f"the length of {key}")
        return _read_array(cursor, item_kind, count, key, depth + 1)
    return _read_numbers(cursor, kind, 1, key)[0]


def _read_array(cursor: _Cursor, kind: int, count: int, key: str, depth: int) -> list[Any]:
    if count > MAX_ITEMS and cursor.size - cursor.pos >= count:  # else the count is wrong, which the readers below say
        cursor.fail(f"corrupt: {key} has {count} elements, at most {MAX_ITEMS} are allowed")
    if depth > MAX_NESTING:
        cursor.fail(f"corrupt: {key} nests arrays more than {MAX_NESTING} deep")
    if kind == _STRING:
        return _read_strings(cursor, count, key)
    if kind == _ARRAY:
        cursor.expect_items(count, 12, f"arrays of {key}")
        return [_read_value(cursor, _ARRAY, key, depth) for _ in range(count)]
    return _read_numbers(cursor, kind, count, key)


def _read_numbers(cursor: _Cursor, kind: int, count: int, key: str) -> list[Any]:
    if kind not in _SCALARS:
        cursor.fail(f"corrupt: unknown value type {kind} of metadata key {key}")
    dtype = np.dtype(_SCALARS[kind])
    start = cursor.take(count * dtype.itemsize, f"metadata {key}")
    values = np.frombuffer(cursor.buffer, dtype, count, start) if count else np.empty(0, dtype)
    if kind != _BOOL:
        return list(values.tolist())
    if count and int(values.max()) > 1:
        cursor.fail(f"corrupt: metadata {key} is a bool of value {int(values.max())}; 0 or 1 is wanted")
    return list(values.astype(np.bool_).tolist())


def _read_strings(cursor: _Cursor, count: int, key: str) -> list[str]:
    """``count`` strings. Bytes that aren't UTF-8 become U+FFFD. Vocabularies come through here, so the loop is lean."""
    cursor.expect_items(count, 8, f"strings of {key}")
    buffer, size, unpack = cursor.buffer, cursor.size, _U64.unpack_from
    pos = cursor.pos
    strings: list[str] = []
    for _ in range(count):
        start = pos + 8
        if start > size:
            cursor.take(size, f"metadata {key}")
        pos = start + unpack(buffer, pos)[0]
        if pos > size:
            cursor.pos = start
            cursor.take(pos - start, f"metadata {key}")
        strings.append(str(buffer[start:pos], "utf-8", "replace"))
    cursor.pos = pos
    return strings


def _alignment(cursor: _Cursor, metadata: dict[str, Any]) -> int:
    value = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if isinstance(value, bool) or not isinstance(value, int):
        cursor.fail(
            f"corrupt: general.alignment has the wrong type ({type(value).__name__} {value!r}); wanted: an integer"
        )
    if value <= 0 or value % 8:
        cursor.fail(f"corrupt: general.alignment is {value}; wanted: a positive multiple of 8")
    return value


def _read_tensors(cursor: _Cursor, count: int, alignment: int) -> dict[str, GgufTensor]:
    rows = [_read_tensor_row(cursor, index) for index in range(count)]
    start = -(-cursor.pos // alignment) * alignment  # the data section
    tensors: dict[str, GgufTensor] = {}
    for name, shape, kind, offset in rows:
        if name in tensors:
            cursor.fail(f"corrupt: tensor {name} occurs twice")
        if offset % alignment:
            cursor.fail(f"corrupt: misaligned offset {offset} of tensor {name}; wanted: a multiple of {alignment}")
        nbytes = math.prod(shape) // kind.block * kind.size
        if start + offset + nbytes > cursor.size:
            cursor.fail(
                f"tensor {name} lies outside the file: it takes bytes {start + offset} to {start + offset + nbytes}, "
                f"the file has {cursor.size} (truncated, or a corrupt offset); download it again"
            )
        tensors[name] = GgufTensor(name, shape, kind, start + offset, nbytes)
    _check_overlaps(cursor, tensors)
    return tensors


def _read_tensor_row(cursor: _Cursor, index: int) -> tuple[str, tuple[int, ...], GgmlType, int]:
    name = cursor.name(f"the name of tensor {index}", MAX_NAME_BYTES)
    dims = cursor.u32(f"the dimensions of tensor {name}")
    if not 1 <= dims <= MAX_DIMS:
        cursor.fail(f"corrupt: tensor {name} has {dims} dimensions; wanted: 1 to {MAX_DIMS}")
    sizes = [cursor.u64(f"the shape of tensor {name}") for _ in range(dims)]
    shape = tuple(reversed(sizes))
    number = cursor.u32(f"the type of tensor {name}")
    offset = cursor.u64(f"the offset of tensor {name}")
    if 0 in sizes or max(sizes) >= 1 << 62:
        cursor.fail(f"corrupt: tensor {name} has shape {shape}")
    kind = ggml_types.BY_NUMBER.get(number)
    if kind is None:
        cursor.fail(f"unsupported tensor type {ggml_types.describe(number)} of tensor {name}")
    if sizes[0] % kind.block:
        cursor.fail(
            f"corrupt: tensor {name}: a row of {sizes[0]} is no multiple of the block {kind.block} of {kind.name}"
        )
    return name, shape, kind, offset


def _check_overlaps(cursor: _Cursor, tensors: dict[str, GgufTensor]) -> None:
    stop, last = 0, ""
    for tensor in sorted(tensors.values(), key=lambda t: t.offset):
        if tensor.offset < stop:
            cursor.fail(
                f"corrupt: tensors overlap: {tensor.name} begins at byte {tensor.offset}, {last} ends at {stop}"
            )
        stop, last = tensor.offset + tensor.nbytes, tensor.name
