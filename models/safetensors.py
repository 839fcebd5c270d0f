"""The safetensors container (https://github.com/huggingface/safetensors#format), memory-mapped.

A file is an 8-byte header length, a JSON header of tensor names with type, shape and byte range, and the data. Every
range is checked against the file's size before it is used. Types that NumPy lacks come as
unsigned integers.
"""

from __future__ import annotations

import json
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from .mapped import MappedFile
from .weight import CheckpointError

INDEX = "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # the format's limit, bytes
_SHARD = re.compile(r"(?P<stem>.*)-(?P<number>\d{5})-of-(?P<count>\d{5})\.safetensors")
_DTYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "U64": "<u8", "I64": "<i8", "U32": "<u4"}
_DTYPES |= {"I32": "<i4", "U16": "<u2", "I16": "<i2", "U8": "u1", "I8": "i1", "BOOL": "u1", "F8_E4M3": "u1"}
_OTHER_SIZES = {"F8_E5M2": 1, "F8_E8M0": 1, "F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1, "C64": 8}


@dataclass(frozen=True, slots=True)
class SafeTensor:
    """One entry of a header, checked to lie within its file."""

    name: str
    dtype: str  # the format's own name: "F32", "BF16", ...
    shape: tuple[int, ...]
    offset: int  # bytes from the start of the file
    nbytes: int


class SafetensorsFile:
    """One opened file: ``tensors`` by name, and ``data`` of each as a view.

    Raises:
        CheckpointError: not a safetensors file, cut short or corrupt; names the file, the tensor and the sizes.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = MappedFile(path)
        try:
            self.tensors = self._read_header()
        except CheckpointError:
            self.file.close()
            raise

    def data(self, tensor: SafeTensor) -> NDArray[Any]:
        """The values in the tensor's shape, read-only; BF16 as uint16, F8_E4M3 as uint8."""
        if tensor.dtype not in _DTYPES:
            self._fail(f"tensor {tensor.name} has type {tensor.dtype}, which is not supported")
        count = math.prod(tensor.shape)
        return self.file.array(tensor.offset, count, np.dtype(_DTYPES[tensor.dtype]), f"tensor {tensor.name}").reshape(
            tensor.shape
        )

    def close(self) -> None:
        self.file.close()

    def _fail(self, message: str) -> NoReturn:
        raise CheckpointError(f"{self.path}: {message}")

    def _read_header(self) -> dict[str, SafeTensor]:
        buffer, size = self.file.buffer, self.file.size
        if bytes(buffer[:20]) == b"version https://git-":
            self._fail("an LFS pointer, not the model itself; run `git lfs pull`")
        if size < 8:
            self._fail(f"truncated: a safetensors file has at least 8 bytes, this one {size}")
        length = struct.unpack_from("<Q", buffer)[0]
        if length > min(MAX_HEADER, size - 8):
            self._fail(f"truncated or not a safetensors file: its header takes {length} bytes, the file has {size}")
        try:
            header = json.loads(bytes(buffer[8 : 8 + length]))
        except (ValueError, RecursionError) as error:
            self._fail(f"corrupt: the header is not JSON: {error}")
        if not isinstance(header, dict):
            self._fail("corrupt: the header is no JSON object")
        header.pop("__metadata__", None)
        tensors = {name: self._entry(name, entry, 8 + length) for name, entry in header.items()}
        self._check_overlaps(tensors)
        return tensors

    def _entry(self, name: str, entry: Any, start: int) -> SafeTensor:
        fields = entry if isinstance(entry, dict) else {}
        dtype, shape, span = (fields.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or not isinstance(shape, list) or not isinstance(span, list) or len(span) != 2:
            self._fail(f"corrupt: tensor {name[:80]}: {str(entry)[:200]}")
        if any(type(value) is not int or value < 0 for value in [*shape, *span]):
            self._fail(f"corrupt: tensor {name[:80]}: {str(entry)[:200]}")
        first, last = span
        if last < first or start + last > self.file.size:
            self._fail(
                f"tensor {name} lies outside the file: it takes bytes {start + first} to {start + last}, the file has "
                f"{self.file.size} (truncated, or a corrupt offset); download it again"
            )
        item = np.dtype(_DTYPES[dtype]).itemsize if dtype in _DTYPES else _OTHER_SIZES.get(dtype)
        if item is not None and math.prod(shape) * item != last - first:
            self._fail(
                f"corrupt: tensor {name} of shape {tuple(shape)} and type {dtype} takes {math.prod(shape) * item} "
                f"bytes, its range holds {last - first}"
            )
        return SafeTensor(name, dtype, tuple(shape), start + first, last - first)

    def _check_overlaps(self, tensors: dict[str, SafeTensor]) -> None:
        stop, before = 0, ""
        for tensor in sorted(tensors.values(), key=lambda t: (t.offset, t.nbytes)):
            if tensor.offset < stop and tensor.nbytes:
                self._fail(
                    f"corrupt: tensors overlap: {tensor.name} begins at byte {tensor.offset}, {before} ends at {stop}"
                )
            stop, before = max(stop, tensor.offset + tensor.nbytes), tensor.name


def open_safetensors(folder: Path) -> dict[str, tuple[SafetensorsFile, SafeTensor]]:
    """The tensors of a folder by their own names. An index is the only list; without one, all model*.safetensors count.

    Raises:
        CheckpointError: a file or tensor that the index names is missing, or the folder has no such files.
    """
    index = folder / INDEX
    wanted = _read_index(index) if index.exists() else None
    paths = _list_files(folder) if wanted is None else sorted({folder / name for name in wanted.values()})
    for path in paths:
        if not path.exists():
            raise CheckpointError(f"{path}: missing, though {INDEX} names it; download the model again")
    files = [SafetensorsFile(path) for path in paths]
    found: dict[str, tuple[SafetensorsFile, SafeTensor]] = {}
    for file in files:
        for name, tensor in file.tensors.items():
            if wanted is not None and wanted.get(name) != file.path.name:
                continue
            if name in found:
                raise CheckpointError(f"{file.path}: tensor {name} is also in {found[name][0].path.name}")
            found[name] = (file, tensor)
    for name, place in (wanted or {}).items():
        if name not in found:
            raise CheckpointError(f"{folder / place}: missing tensor {name}, which {INDEX} says is in it")
    return found


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name."""
    try:
        table = json.loads(path.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise CheckpointError(f"{path}: no index of tensors: {error!r}") from error
    if not isinstance(table, dict) or not table:
        raise CheckpointError(f"{path}: weight_map is no object of tensor names")
    for name, place in table.items():
        if not isinstance(place, str) or Path(place).name != place:
            raise CheckpointError(f"{path}: weight_map places {name} in {place!r}; wanted: a file name")
    return table


def _list_files(folder: Path) -> list[Path]:
    paths = sorted(folder.glob("model*.safetensors"))
    if not paths:
        skipped = ("consolidated", "adapter", "optimizer")
        paths = sorted(p for p in folder.glob("*.safetensors") if not p.name.startswith(skipped))
    if not paths:
        pickled = " (only pickled weights, which are not read)" if any(folder.glob("*.bin")) else ""
        raise CheckpointError(f"{folder}: no model*.safetensors file in this folder{pickled}")
    for path in paths:
        match = _SHARD.fullmatch(path.name)
        for number in range(1, int(match["count"]) + 1 if match else 0):
            other = path.with_name(f"{match['stem']}-{number:05d}-of-{match['count']}.safetensors") if match else path
            if not other.exists():
                raise CheckpointError(f"{other}: missing; {path.name} says that it belongs to the model")
    return paths
