"""fp8 checkpoints: how their modules are stored.

``weight`` is F8_E4M3 [rows, columns]; its scales, to multiply with, are named ``weight_scale_inv`` or ``weight_scale``
and stand for the whole matrix, for a row each, for groups of a row, or for blocks of rows and columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np

from .fp8 import KIND
from .safetensors import SafeTensor
from .scheme import Module
from .source import StoredTensor
from .weight import CheckpointError, Weight

_SCALES = ("weight_scale_inv", "weight_scale")
Block = tuple[int, int]


class Fp8Scheme:
    """``block``: (rows, columns) of one scale, where config.json names any. Activations are never made fp8: scales for
    them are read by nobody."""

    weight = "weight"
    parts = frozenset(("weight", "input_scale", "activation_scale", *_SCALES))

    def __init__(self, block: Block | None) -> None:
        self._block = block

    def holds(self, parts: Mapping[str, SafeTensor]) -> bool:
        return "weight" in parts and parts["weight"].dtype == KIND

    def stored(self, module: Module) -> StoredTensor:
        shape = module.need("weight", KIND)
        part = self._part(module)
        block = self._block_of(module, part, shape)
        if block is None:
            named = f"blocks of {self._block}" if self._block else "no blocks"
            module.fail(part, f"has shape {module.parts[part].shape}; config.json names {named} for weights {shape}")
        nbytes = module.nbytes("weight", part)
        return StoredTensor(f"{module.stem}.weight", shape, KIND, nbytes, 8, group_size=block[1])

    def load(self, module: Module, stored: StoredTensor) -> Weight:
        part = self._part(module)
        block = self._block_of(module, part, stored.shape)
        assert block is not None
        rows, columns = stored.shape
        scales = module.floats(part).astype(np.float32).reshape(-(-rows // block[0]), -(-columns // block[1]))
        each = np.repeat(scales, block[0], axis=0)[:rows]
        return Weight(module.name, stored.shape, KIND, module.data("weight"), each, None, 8, block[1])

    def _part(self, module: Module) -> str:
        part = next((name for name in _SCALES if name in module.parts), _SCALES[0])
        module.need(part, "F32", "BF16", "F16")
        return part

    def _block_of(self, module: Module, part: str, shape: tuple[int, ...]) -> Block | None:
        """Rows and columns of one scale; None where the shapes don't fit."""
        if len(shape) != 2 or not all(shape):
            return None
        (rows, columns), scale = shape, module.parts[part].shape
        if prod(scale) == 1:
            return rows, columns
        if scale in ((rows,), (rows, 1)):
            return 1, columns
        if self._block is not None:
            counts = -(-rows // self._block[0]), -(-columns // self._block[1])
            return self._block if scale == counts else None
        if len(scale) == 2 and scale[0] == rows and scale[1] and columns % scale[1] == 0:
            return 1, columns // scale[1]
        return None


def fp8_scheme(given: Mapping[str, Any], source: str) -> Fp8Scheme:
    """From config.json's ``quantization_config``: "fp8", "fbgemm_fp8", or "modelopt" with FP8."""
    method, algorithm = given.get("quant_method"), given.get("quant_algo", "FP8")
    if method == "modelopt" and algorithm != "FP8":
        raise CheckpointError(f"{source}: weights quantised by modelopt ({algorithm}) are not supported; FP8 is")
    if given.get("fmt", "e4m3") != "e4m3":
        raise CheckpointError(f"{source}: fp8 weights in the format {given['fmt']!r} are not supported; e4m3 is")
    return Fp8Scheme(read_block(given.get("weight_block_size"), source))


def read_block(found: Any, source: str) -> Block | None:
    if found is None:
        return None
    whole = isinstance(found, list) and len(found) == 2 and all(type(size) is int and size > 0 for size in found)
    if not whole:
        raise CheckpointError(f"{source}: weight_block_size is {found!r}; wanted: [rows, columns]")
    return found[0], found[1]
