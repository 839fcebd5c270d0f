"""MLX's quantised modules: packed words with scales and, in the affine mode, biases."""

from __future__ import annotations

from collections.abc import Mapping

from .ggml_types import DENSE
from .mlx_config import MlxQuantization
from .mlx_float import KIND_OF, MODE_OF
from .safetensors import SafeTensor
from .scheme import Module
from .source import StoredTensor
from .weight import CheckpointError, Weight


class MlxScheme:
    """``quantization``: what config.json says; None: nothing, so that no module may be quantised."""

    weight = "weight"
    parts = frozenset(("weight", "scales", "biases"))

    def __init__(self, quantization: MlxQuantization | None) -> None:
        self._quantization = quantization

    def holds(self, parts: Mapping[str, SafeTensor]) -> bool:
        return "weight" in parts and "scales" in parts

    def stored(self, module: Module) -> StoredTensor:
        """Check the packed tensor against the bits and group size that the configuration gives it."""
        words, scales, biases = (module.parts.get(part) for part in ("weight", "scales", "biases"))
        assert words is not None and scales is not None
        where = f"{module.folder}: tensor {words.name}"
        if self._quantization is None:
            raise CheckpointError(f"{where} has scales, but config.json says nothing of quantisation")
        form = self._quantization.of(module.name)
        bits, group, affine = form.bits, form.group_size, form.mode == "affine"
        if affine and biases is None:
            raise CheckpointError(f"{where} has scales but no biases: not MLX's affine form, which config.json names")
        parts = (scales, biases) if affine and biases is not None else (scales,)
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
        return StoredTensor(words.name, (rows, columns), KIND_OF.get(form.mode, "MLX"), nbytes, bits, group_size=group)

    def load(self, module: Module, stored: StoredTensor) -> Weight:
        data, packing = module.data("weight"), (stored.bits, stored.group_size)
        if stored.kind in MODE_OF:
            return Weight(module.name, stored.shape, stored.kind, data, module.data("scales"), None, *packing)
        scales, biases = module.floats("scales"), module.floats("biases")
        return Weight(module.name, stored.shape, "MLX", data, scales, biases, *packing)
