"""The tensors of a safetensors folder under canonical names; an MLX weight, its scales and biases are one tensor."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .dequant import bf16_to_float32
from .ggml_types import DENSE
from .mlx_config import MlxQuantization
from .mlx_float import KIND_OF, MODE_OF
from .names import canonical_from_hf
from .safetensors import SafeTensor, SafetensorsFile, open_safetensors
from .source import StoredTensor
from .weight import CheckpointError, Weight

_MLX_PARTS = (".scales", ".biases")
_IGNORED = (".rotary_emb.inv_freq", ".masked_bias")  # tables that old programs saved


class SafetensorsSource:
    """A ``TensorSource`` over a folder.

    Args:
        quantization: what config.json says; None: no tensor may be quantised.
        nested: a model with vision or audio, of which only the language model's tensors count.
    """

    def __init__(self, folder: Path, quantization: MlxQuantization | None, nested: bool) -> None:
        self.path = str(folder)
        self._found = open_safetensors(folder)
        self._quantization = quantization
        self._names: dict[str, str] = {}  # canonical -> the file's
        self._stored: dict[str, StoredTensor] = {}
        self.tensors: Mapping[str, StoredTensor] = self._stored
        try:
            for name in self._found:
                if not name.endswith(_IGNORED) and not (name.endswith(_MLX_PARTS) and self._is_part(name)):
                    self._add(name, nested)
        except CheckpointError:
            self.close()
            raise

    def _is_part(self, name: str) -> bool:
        return name.rpartition(".")[0] + ".weight" in self._found

    def _add(self, name: str, nested: bool) -> None:
        canonical = canonical_from_hf(name)
        if nested and not canonical.startswith(("model.layers.", "model.embed_tokens.", "model.norm.", "lm_head.")):
            return
        if canonical in self._names:
            raise CheckpointError(f"{self.path}: tensors {self._names[canonical]} and {name} are both {canonical}")
        tensor = self._found[name][1]
        scales = self._found.get(name.removesuffix(".weight") + ".scales") if name.endswith(".weight") else None
        if scales is not None:
            stored = self._quantized(name, canonical, tensor, scales[1])
        else:
            problem = None if tensor.dtype in DENSE else f"has type {tensor.dtype}; supported: {', '.join(DENSE)}"
            stored = StoredTensor(name, tensor.shape, tensor.dtype, tensor.nbytes, problem=problem)
        self._names[canonical] = name
        self._stored[canonical] = stored

    def _quantized(self, name: str, canonical: str, words: SafeTensor, scales: SafeTensor) -> StoredTensor:
        """Check the packed tensor against the bits and group size that the configuration gives it."""
        where = f"{self.path}: tensor {name}"
        if self._quantization is None:
            raise CheckpointError(f"{where} has scales, but config.json says nothing of quantisation")
        form = self._quantization.of(canonical)
        bits, group, affine = form.bits, form.group_size, form.mode == "affine"
        biases = self._found.get(name.removesuffix(".weight") + ".biases")
        if affine and biases is None:
            raise CheckpointError(f"{where} has scales but no biases: not MLX's affine form, which config.json names")
        parts = (scales, biases[1]) if affine and biases is not None else (scales,)
        wanted = DENSE if affine else ("U8",)
        if words.dtype != "U32" or len(words.shape) != 2 or any(part.dtype not in wanted for part in parts):
            raise CheckpointError(
                f"{where}: {words.dtype} {words.shape} with scales {scales.dtype}; wanted: U32 [rows, words] with "
                f"scales {' or '.join(wanted)}"
            )
        rows, width = words.shape
        columns = scales.shape[-1] * group if scales.shape else 0
        if any(part.shape != (rows, columns // group) for part in parts) or width * 32 != columns * bits:
            real = f"{width * 32 / columns:g}" if columns else "no"
            raise CheckpointError(
                f"{where}: config.json says {bits} bits in groups of {group}; {width} words packed for {columns} "
                f"columns ({scales.shape[-1] if scales.shape else 0} groups) are {real} bits"
            )
        nbytes = words.nbytes + sum(part.nbytes for part in parts)
        return StoredTensor(name, (rows, columns), KIND_OF.get(form.mode, "MLX"), nbytes, bits, group_size=group)

    def load(self, name: str) -> Weight:
        own, stored = self._names[name], self.tensors[name]
        data = self._data(own)
        if stored.kind in DENSE:
            return Weight(name, stored.shape, stored.kind, data)
        stem, packing = own.removesuffix(".weight"), (stored.bits, stored.group_size)
        if stored.kind in MODE_OF:
            return Weight(name, stored.shape, stored.kind, data, self._data(f"{stem}.scales"), None, *packing)
        scales, biases = self._floats(f"{stem}.scales"), self._floats(f"{stem}.biases")
        return Weight(name, stored.shape, "MLX", data, scales, biases, *packing)

    def _data(self, own: str) -> NDArray[Any]:
        file, tensor = self._found[own]
        return file.data(tensor)

    def _floats(self, own: str) -> NDArray[np.floating[Any]]:
        """Scales or biases; BF16 ones, few as they are, widened."""
        data = self._data(own)
        return bf16_to_float32(data) if self._found[own][1].dtype == "BF16" else data

    def file_name(self, name: str) -> str:
        return self._names.get(name, name)

    def _files(self) -> set[SafetensorsFile]:
        return {file for file, _ in self._found.values()}

    def advise(self, done: bool) -> None:
        for file in self._files():
            if done:
                file.file.advise_done()
            else:
                file.file.advise_sequential()

    def close(self) -> None:
        for file in self._files():
            file.close()
