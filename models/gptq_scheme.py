"""GPTQ's safetensors (arXiv:2210.17323), as AutoGPTQ and GPTQModel write them: 2, 3, 4 or 8 bits, with zero points.

A matrix is stored by input: ``qweight`` int32 [in * bits / 32, out], a bit stream down each column, lowest bits first;
``qzeros`` [groups, out * bits / 32], a bit stream along each row; ``scales`` [groups, out]. Zero points are stored one
too small, except in the format "gptq_v2". ``g_idx`` [in] says which group an input is in; where the inputs were
quantised in order of their activations (``desc_act``) that is any order.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from .mlx_affine import unpack_codes
from .safetensors import SafeTensor
from .scheme import Module
from .source import StoredTensor
from .weight import CheckpointError, Weight
from .zero_points import affine, group_order, is_group_size, is_ordered, kept_group

BITS = (2, 3, 4, 8)
FORMATS = {"gptq": 1, "gptq_v2": 0}  # what is added to stored zero points


class GptqScheme:
    """``group_size``: inputs that share a scale; -1: all of them. ``offset``: added to stored zero points. ``ordered``:
    whether inputs may be in any order."""

    weight = "qweight"
    parts = frozenset(("qweight", "qzeros", "scales", "g_idx"))

    def __init__(self, bits: int, group_size: int, offset: int, ordered: bool) -> None:
        self._bits = bits
        self._group = group_size
        self._offset = offset
        self._ordered = ordered

    def holds(self, parts: Mapping[str, SafeTensor]) -> bool:
        return "qweight" in parts

    def stored(self, module: Module) -> StoredTensor:
        shape = module.need("qweight", "I32")
        zeros, scales = module.need("qzeros", "I32"), module.need("scales", "F16", "BF16", "F32")
        if len(shape) != 2 or not shape[0] or shape[0] * 32 % self._bits or shape[1] * self._bits % 32:
            module.fail("qweight", f"has shape {shape}; wanted: [inputs * {self._bits} / 32, outputs]")
        columns, rows = shape[0] * 32 // self._bits, shape[1]
        group = columns if self._group == -1 else self._group
        groups, width = columns // group, rows * self._bits // 32
        if columns % group or zeros != (groups, width) or scales != (groups, rows):
            module.fail(
                "qweight",
                f"is {rows} outputs of {columns} inputs with {self._bits} bits in groups of {group}, as config.json "
                f"says; its qzeros {zeros} must then be {(groups, width)} and its scales {scales} {(groups, rows)}",
            )
        ordered = is_ordered(module, "g_idx", columns) and self._ordered
        return StoredTensor(
            f"{module.stem}.qweight", (rows, columns), "MLX", module.nbytes(*self.parts), self._bits,
            group_size=kept_group(group), scheme="GPTQ", ordered=ordered,
        )  # fmt: skip

    def load(self, module: Module, stored: StoredTensor) -> Weight:
        words = np.ascontiguousarray(module.data("qweight").view(np.uint32).T)
        zeros = unpack_codes(module.data("qzeros").view(np.uint32), self._bits).astype(np.int16) + self._offset
        scales = module.floats("scales").T
        order = group_order(module, "g_idx", stored.shape[1], scales.shape[1])
        return affine(module.name, words, scales, zeros.T, self._bits, order)


def gptq_scheme(given: Mapping[str, Any], source: str) -> GptqScheme:
    """From config.json's ``quantization_config``."""
    bits, group = given.get("bits"), given.get("group_size")
    form = given.get("checkpoint_format") or given.get("format") or "gptq"
    if form not in FORMATS or given.get("is_marlin_format"):
        named = "marlin" if given.get("is_marlin_format") else form
        raise CheckpointError(
            f"{source}: GPTQ weights in the format {named!r} are not supported; supported: {', '.join(FORMATS)}"
        )
    if bits not in BITS or not is_group_size(group):
        raise CheckpointError(
            f"{source}: GPTQ weights of {bits!r} bits in groups of {group!r} are not supported; supported: {BITS} "
            "bits, groups of a multiple of 32, or -1"
        )
    return GptqScheme(int(bits), group, FORMATS[form], bool(given.get("desc_act", True)))
