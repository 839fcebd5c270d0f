"""AWQ's safetensors (arXiv:2306.00978), in the layout AutoAWQ calls "gemm": 4 bits, with zero points.

A matrix is stored by input: ``qweight`` int32 [in, out / 8]. A word holds eight outputs in the order 0, 2, 4, 6, 1, 3,
5, 7, lowest bits first. ``qzeros`` [groups, out / 8] is packed likewise; ``scales`` is [groups, out].
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .safetensors import SafeTensor
from .scheme import Module
from .source import StoredTensor
from .weight import CheckpointError, Weight
from .zero_points import affine, is_group_size, kept_group

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)  # of a word's eight outputs
Words = NDArray[np.uint32]


class AwqScheme:
    """``group_size``: inputs that share a scale; -1: all of them."""

    weight = "qweight"
    parts = frozenset(("qweight", "qzeros", "scales"))

    def __init__(self, group_size: int) -> None:
        self._group = group_size

    def holds(self, parts: Mapping[str, SafeTensor]) -> bool:
        return "qweight" in parts

    def stored(self, module: Module) -> StoredTensor:
        shape = module.need("qweight", "I32")
        zeros, scales = module.need("qzeros", "I32"), module.need("scales", "F16", "BF16", "F32")
        if len(shape) != 2 or not shape[0] or shape[0] % 8:
            module.fail("qweight", f"has shape {shape}; wanted: [inputs, a multiple of 8, outputs / 8]")
        columns, rows = shape[0], shape[1] * 8
        group = columns if self._group == -1 else self._group
        groups = columns // group
        if columns % group or zeros != (groups, shape[1]) or scales != (groups, rows):
            module.fail(
                "qweight",
                f"is {rows} outputs of {columns} inputs, in groups of {group} as config.json says; its qzeros {zeros} "
                f"must then be {(groups, shape[1])} and its scales {scales} {(groups, rows)}",
            )
        nbytes = module.nbytes(*self.parts)
        name = f"{module.stem}.qweight"
        return StoredTensor(name, (rows, columns), "MLX", nbytes, 4, group_size=kept_group(group), scheme="AWQ")

    def load(self, module: Module, stored: StoredTensor) -> Weight:
        words = transpose_words(module.data("qweight").view(np.uint32))
        zeros = unpack_outputs(module.data("qzeros").view(np.uint32))
        return affine(module.name, words, module.floats("scales").T, zeros.T, 4)


def awq_scheme(given: Mapping[str, Any], source: str) -> AwqScheme:
    """From config.json's ``quantization_config``."""
    bits, group = given.get("bits", given.get("w_bit")), given.get("group_size", given.get("q_group_size"))
    version = str(given.get("version", given.get("format", "gemm"))).lower()
    if bits != 4 or version != "gemm":
        raise CheckpointError(
            f"{source}: AWQ weights of {bits!r} bits, version {version!r}, are not supported; supported: 4 bits, "
            "version 'gemm'"
        )
    if not is_group_size(group):
        raise CheckpointError(f"{source}: AWQ group_size is {group!r}; wanted: a multiple of 32, or -1")
    return AwqScheme(group)


def unpack_outputs(words: Words) -> NDArray[np.uint8]:
    """Words [n, out / 8] as codes [n, out]."""
    codes = np.empty((*words.shape, 8), np.uint8)
    for field, output in enumerate(ORDER):
        codes[:, :, output] = (words >> np.uint32(4 * field)) & np.uint32(15)
    return codes.reshape(words.shape[0], -1)


def transpose_words(words: Words) -> Words:
    """Words [in, out / 8] as [out, in / 8], each row one bit stream of its inputs.

    Eight words of eight inputs are an 8 x 8 matrix of codes, transposed by three exchanges of ever smaller blocks.
    """
    inputs, width = words.shape
    eight = [np.ascontiguousarray(words[first::8]) for first in range(8)]  # each [in / 8, out / 8]
    for span, mask in ((4, 0x0000FFFF), (2, 0x00FF00FF), (1, 0x0F0F0F0F)):
        shift = np.uint32(4 * span)
        for first in (index for index in range(8) if not index & span):
            differ = ((eight[first] >> shift) ^ eight[first + span]) & np.uint32(mask)
            eight[first + span] ^= differ
            eight[first] ^= differ << shift
    out = np.empty((width, 8, inputs // 8), np.uint32)
    for field, output in enumerate(ORDER):
        out[:, output] = eight[field].T
    return out.reshape(width * 8, inputs // 8)
