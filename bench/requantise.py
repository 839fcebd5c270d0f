"""GGUF files with the same weights in other clothes, made once and kept in the cache folder."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..models.cache import atomic, cache_folder, locked

_Change = Callable[[Any], tuple[Any, Any]]
"""A tensor of gguf's reader to its new data and type."""


def requantised(model: Path, kind: str = "Q4_0") -> Path:
    """A copy of the GGUF file ``model`` with its Q4_1 matrices as ``kind``, for peers that are at their best with it.

    Everything else, embeddings and metadata included, stays as it is. The new blocks come from the old ones' values, as
    nothing better is at hand: the file serves to measure speed, not quality.
    """
    import gguf

    wanted = gguf.GGMLQuantizationType[kind]

    def change(tensor: Any) -> tuple[Any, Any]:
        if tensor.tensor_type != gguf.GGMLQuantizationType.Q4_1:
            return tensor.data, tensor.tensor_type
        return gguf.quantize(gguf.dequantize(tensor.data, tensor.tensor_type), wanted), wanted

    return _copy(model, kind, change, int(gguf.LlamaFileType.MOSTLY_Q4_0))


def as_float32(model: Path) -> Path:
    """A copy with every tensor in float32, which holds the values of all but the float64 type exactly."""
    import gguf

    wanted = gguf.GGMLQuantizationType.F32

    def change(tensor: Any) -> tuple[Any, Any]:
        return gguf.dequantize(tensor.data, tensor.tensor_type).astype(np.float32, copy=False), wanted

    return _copy(model, "F32", change, int(gguf.LlamaFileType.ALL_F32))


def nudged(model: Path, share: float = 1e-6) -> Path:
    """A copy whose float32 vectors (the norms' weights) are larger or smaller by ``share``, at random but fixed.

    It stands for arithmetic that adds up in another order: the quantised matrices are the same to the bit.
    """
    import gguf

    generator = np.random.default_rng(0)

    def change(tensor: Any) -> tuple[Any, Any]:
        data = tensor.data
        if tensor.tensor_type == gguf.GGMLQuantizationType.F32 and data.ndim == 1:
            data = (data * (1 + share * generator.choice([-1.0, 1.0], data.shape))).astype(np.float32)
        return data, tensor.tensor_type

    return _copy(model, f"nudged-{share:g}", change, None)


def _copy(model: Path, name: str, change: _Change, file_type: int | None) -> Path:
    """The copy called ``name``; ``file_type`` replaces ``general.file_type`` unless None."""
    stamp = hashlib.sha256(f"{model.resolve()} {model.stat().st_size} {model.stat().st_mtime_ns}".encode()).hexdigest()
    target = cache_folder() / "bench" / f"{model.stem}-{stamp[:8]}-{name}.gguf"
    if not target.is_file():
        with locked(target), atomic(target) as part:
            _write(model, part, change, file_type)
    return target


def _write(model: Path, target: Path, change: _Change, file_type: int | None) -> None:
    import gguf

    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            _copy_field(writer, name, field, file_type)
    for tensor in reader.tensors:
        data, kind = change(tensor)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(writer: Any, name: str, field: Any, file_type: int | None) -> None:
    import gguf

    kind = field.types[0]
    value = field.contents()
    if name == "general.file_type" and file_type is not None:
        value = file_type
    sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, value, kind, sub_type=sub)
