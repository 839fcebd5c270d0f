"""A GGUF file with the same weights in another block type, for peers that are at their best with it."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from ..models.cache import atomic, cache_folder, locked


def requantised(model: Path, kind: str = "Q4_0") -> Path:
    """A copy of the GGUF file ``model`` with its Q4_1 matrices as ``kind``, made once and kept in the cache folder.

    Everything else, embeddings and metadata included, stays as it is. The new blocks come from the old ones' values, as
    nothing better is at hand: the file serves to measure speed, not quality.
    """
    stamp = hashlib.sha256(f"{model.resolve()} {model.stat().st_size} {model.stat().st_mtime_ns}".encode()).hexdigest()
    target = cache_folder() / "bench" / f"{model.stem}-{stamp[:8]}-{kind}.gguf"
    if not target.is_file():
        with locked(target), atomic(target) as part:
            _write(model, part, kind)
    return target


def _write(model: Path, target: Path, kind: str) -> None:
    import gguf

    wanted = gguf.GGMLQuantizationType[kind]
    reader = gguf.GGUFReader(model)
    writer = gguf.GGUFWriter(target, arch=reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            _copy_field(writer, name, field)
    for tensor in reader.tensors:
        data, stored = tensor.data, tensor.tensor_type
        if stored == gguf.GGMLQuantizationType.Q4_1:
            data, stored = gguf.quantize(gguf.dequantize(data, stored), wanted), wanted
        writer.add_tensor(tensor.name, data, raw_dtype=stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _copy_field(writer: Any, name: str, field: Any) -> None:
    import gguf

    kind = field.types[0]
    value = field.contents()
    if name == "general.file_type":
        value = int(gguf.LlamaFileType.MOSTLY_Q4_0)
    sub = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
    writer.add_key_value(name, value, kind, sub_type=sub)
