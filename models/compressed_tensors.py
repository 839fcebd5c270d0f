"""What the compressed-tensors library writes: fp8 weights are read, and 4 or 8 bit integers packed in words.

``weight_packed`` is int32 [rows, columns * bits / 32], codes with half their range added, a bit stream along each row;
``weight_scale`` [rows, groups]; ``weight_zero_point`` int32 [rows * bits / 32, groups], a bit stream down each column
with half the range added as well; ``weight_g_idx`` [columns] as in GPTQ. Which of a module's forms it has, and its
groups, follow from its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .fp8_scheme import Fp8Scheme, read_block
from .mlx_affine import unpack_codes
from .safetensors import SafeTensor
from .scheme import Module
from .source import StoredTensor
from .weight import CheckpointError, Weight
from .zero_points import affine, group_order, is_ordered, kept_group

_FORMATS = ("float-quantized", "naive-quantized", "pack-quantized", "mixed-precision")
_BITS = (4, 8)  # of packed integers


class PackedScheme:
    """Packed integers of ``bits``; modules of fp8 weights among them are as in ``Fp8Scheme``."""

    weight = "weight_packed"
    parts = Fp8Scheme.parts | {"weight_packed", "weight_zero_point", "weight_g_idx", "weight_shape"}

    def __init__(self, bits: int, fp8: Fp8Scheme) -> None:
        self._bits = bits
        self._fp8 = fp8

    def holds(self, parts: Mapping[str, SafeTensor]) -> bool:
        return "weight_packed" in parts or self._fp8.holds(parts)

    def stored(self, module: Module) -> StoredTensor:
        if "weight_packed" not in module.parts:
            return self._fp8.stored(module)
        words, scales = module.need("weight_packed", "I32"), module.need("weight_scale", "F16", "BF16", "F32")
        bits = self._bits
        if len(words) != 2 or not all(words) or len(scales) != 2 or scales[0] != words[0] or not scales[1]:
            module.fail(
                "weight_packed", f"has shape {words} with scales {scales}; wanted: [rows, words], [rows, groups]"
            )
        rows, columns = words[0], words[1] * 32 // bits
        group = columns // scales[1]
        if columns % scales[1] or group % 32:
            module.fail(
                "weight_packed",
                f"holds {columns} columns of {bits} bits in {scales[1]} groups a row; a group must be a multiple of 32",
            )
        self._check_zeros(module, rows, scales[1])
        ordered = is_ordered(module, "weight_g_idx", columns)
        return StoredTensor(
            f"{module.stem}.weight_packed", (rows, columns), "MLX", module.nbytes(*self.parts), bits,
            group_size=kept_group(group), scheme="packed", ordered=ordered,
        )  # fmt: skip

    def _check_zeros(self, module: Module, rows: int, groups: int) -> None:
        if "weight_zero_point" not in module.parts:
            return
        shape = module.need("weight_zero_point", "I32", "I8")
        packed = module.parts["weight_zero_point"].dtype == "I32"
        wanted = (-(-rows * self._bits // 32) if packed else rows, groups)
        if shape != wanted:
            module.fail("weight_zero_point", f"has shape {shape}; wanted: {wanted}")

    def load(self, module: Module, stored: StoredTensor) -> Weight:
        if "weight_packed" not in module.parts:
            return self._fp8.load(module, stored)
        scales = module.floats("weight_scale")
        order = group_order(module, "weight_g_idx", stored.shape[1], scales.shape[1])
        words = module.data("weight_packed").view(np.uint32)
        return affine(module.name, words, scales, self._zeros(module, scales.shape), self._bits, order)

    def _zeros(self, module: Module, shape: tuple[int, ...]) -> NDArray[np.int16]:
        """Zero points [rows, groups] as those of codes without a sign."""
        half = 1 << (self._bits - 1)
        if "weight_zero_point" not in module.parts:
            return np.full(shape, half, np.int16)
        data = module.data("weight_zero_point")
        if module.parts["weight_zero_point"].dtype == "I8":
            return data.astype(np.int16) + half
        words = np.ascontiguousarray(data.view(np.uint32).T)
        return unpack_codes(words, self._bits)[:, : shape[0]].T.astype(np.int16)


def compressed_scheme(given: Mapping[str, Any], source: str) -> PackedScheme:
    """From config.json's ``quantization_config``."""
    groups = [group for group in (given.get("config_groups") or {}).values() if isinstance(group, dict)]
    forms = {group.get("format") or given.get("format") for group in groups} | {given.get("format")}
    refused = sorted(str(form) for form in forms if form not in _FORMATS)
    if refused:
        raise CheckpointError(
            f"{source}: weights quantised by compressed-tensors ({', '.join(refused)}) are not supported; supported: "
            f"{', '.join(_FORMATS)}"
        )
    weights = [group.get("weights") or {} for group in groups]
    bits: set[Any] = {each.get("num_bits") for each in weights if each.get("type", "int") == "int"}
    blocks = {tuple(each["block_structure"]) for each in weights if each.get("block_structure")}
    if len(bits) > 1 or len(blocks) > 1 or not bits <= set(_BITS):
        raise CheckpointError(
            f"{source}: compressed-tensors with integers of {sorted(map(str, bits))} bits and blocks {sorted(blocks)} "
            f"are not supported; supported: one width of {_BITS}, one block"
        )
    block = read_block(list(next(iter(blocks))) if blocks else None, source)
    return PackedScheme(next(iter(bits), _BITS[0]), Fp8Scheme(block))
