"""Tiny folders as AWQ, GPTQ, fp8 and compressed-tensors programs write them, with the values they stand for."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from tiny import Stored, hf_settings, random_weights, tiny_config, write_folder

from bireme.models.names import expert_of

CONFIG = tiny_config()
DENSE = random_weights(CONFIG)
Made = tuple[dict[str, Stored], NDArray[np.float32]]  # tensors by last part, values


@dataclass(frozen=True)
class Folder:
    path: Path
    values: dict[str, NDArray[np.float32]]  # of every tensor, by canonical name
    tensors: dict[str, Stored]


def bfloat16(values: NDArray[Any]) -> Stored:
    """Rounded towards zero."""
    return "BF16", (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def widened(stored: Stored) -> NDArray[np.float32]:
    kind, data = stored
    return (data.astype(np.uint32) << 16).view(np.float32) if kind == "BF16" else data.astype(np.float32)


def stream(codes: NDArray[Any], bits: int) -> NDArray[np.int32]:
    """Codes [n, k] as int32 words [n, k * bits / 32]: each row one number, the first code in its lowest bits."""
    rows = []
    for row in codes:
        whole = sum(int(code) << bits * place for place, code in enumerate(row))
        rows.append(np.frombuffer(whole.to_bytes(len(row) * bits // 8, "little"), "<i4"))
    return np.array(rows)


def drawn(name: str, shape: tuple[int, int], groups: int, bits: int) -> tuple[Any, Any, Any]:
    """Codes [N, K], zero points and scales [N, G], at random; every code and zero point may come."""
    rng = np.random.default_rng(sum(name.encode()))
    codes = rng.integers(0, 1 << bits, shape)
    zeros = rng.integers(0, 1 << bits, (shape[0], groups))
    scales = rng.uniform(0.5, 1, (shape[0], groups)) / (1 << bits) / 4
    return codes, zeros, scales.astype(np.float16)


def decoded(codes: Any, zeros: Any, scales: NDArray[np.float32], group_of: Any) -> NDArray[np.float32]:
    return ((codes - zeros[:, group_of]) * scales[:, group_of].astype(np.float64)).astype(np.float32)


def awq(name: str, shape: tuple[int, int], group: int, half: str = "F16") -> Made:
    rows, columns = shape
    size = columns if group == -1 else group
    codes, zeros, scales = drawn(name, shape, columns // size, 4)
    kept = ("F16", scales) if half == "F16" else bfloat16(scales)
    packed = []
    for by_input in (codes.T, zeros.T):
        words = np.zeros((len(by_input), rows // 8), np.uint32)
        for nibble, output in enumerate((0, 2, 4, 6, 1, 3, 5, 7)):
            words |= by_input[:, output::8].astype(np.uint32) << np.uint32(4 * nibble)
        packed.append(words.view(np.int32))
    tensors = {"qweight": ("I32", packed[0]), "qzeros": ("I32", packed[1]), "scales": (kept[0], kept[1].T)}
    return tensors, decoded(codes, zeros, widened(kept), np.arange(columns) // size)


def gptq(
    name: str, shape: tuple[int, int], group: int, bits: int = 4, v2: bool = False, order: bool = False,
    symmetric: bool = False, seed: int = 0,
) -> Made:  # fmt: skip
    """``order``: columns are in one that depends on their number and ``seed``."""
    rows, columns = shape
    size = columns if group == -1 else group
    codes, zeros, scales = drawn(name, shape, columns // size, bits)
    if not v2:
        zeros += 1  # 2^bits may come, and 0 may not
    if symmetric:
        zeros[:] = 1 << (bits - 1)
    group_of = np.arange(columns) // size
    if order:
        group_of = np.random.default_rng(columns + seed).permutation(group_of)
    tensors = {
        "qweight": ("I32", np.ascontiguousarray(stream(codes, bits).T)),
        "qzeros": ("I32", stream((zeros - (0 if v2 else 1)).T, bits)),
        "scales": ("F16", np.ascontiguousarray(scales.T)),
        "g_idx": ("I32", group_of.astype(np.int32)),
    }
    return tensors, decoded(codes, zeros, scales.astype(np.float32), group_of)


def fp8(name: str, shape: tuple[int, int], part: str, block: tuple[int, int], kind: str, flat: str = "") -> Made:
    """``block``: rows and columns of one scale; ``flat``: "row" or "tensor", for scales of other shapes."""
    generator = torch.Generator().manual_seed(sum(name.encode()))
    values = torch.randn(shape, generator=generator)
    values[0, :4] = torch.tensor([448.0, -448.0, 2.0**-9, -0.0])  # the largest, the least subnormal
    codes = values.to(torch.float8_e4m3fn)
    counts = -(-shape[0] // block[0]), -(-shape[1] // block[1])
    scales = (torch.rand(counts, generator=generator) / 16 + 0.01).numpy()
    kept: Stored = ("F32", scales) if kind == "F32" else bfloat16(scales)
    wide = np.kron(widened(kept), np.ones(block, np.float32))[: shape[0], : shape[1]]
    if flat:
        kept = (kept[0], kept[1].reshape({"row": (-1, 1), "tensor": ()}[flat]))
    raw = codes.view(torch.uint8).numpy()
    return {"weight": ("F8_E4M3", raw), part: kept}, codes.float().numpy() * wide


def packed(name: str, shape: tuple[int, int], group: int, bits: int = 4, asymmetric: bool = True) -> Made:
    """compressed-tensors' pack-quantized."""
    rows, columns = shape
    codes, zeros, scales = drawn(name, shape, columns // group, bits)
    tensors = {
        "weight_packed": ("I32", stream(codes, bits)),
        "weight_scale": ("F16", scales),
        "weight_shape": ("I64", np.array(shape, np.int64)),
    }
    if asymmetric:
        tensors["weight_zero_point"] = ("I32", np.ascontiguousarray(stream(zeros.T, bits).T))
    else:
        zeros[:] = 1 << (bits - 1)
    return tensors, decoded(codes, zeros, scales.astype(np.float32), np.arange(columns) // group)


_INT4 = {"weights": {"num_bits": 4, "type": "int", "strategy": "group"}}
_FLOAT = {"weights": {"num_bits": 8, "type": "float", "strategy": "channel", "block_structure": None}}
_BLOCKS = {"weights": {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [48, 32]}}


def _compressed(form: str, group: dict[str, Any]) -> dict[str, Any]:
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": {"group_0": group}}


def _gptq(bits: int = 4, group: int = 32, **more: Any) -> dict[str, Any]:
    return {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": False, **more}


_AWQ = {"quant_method": "awq", "bits": 4, "version": "gemm", "zero_point": True}
#: name -> (quantization_config, how a matrix is made)
CASES: dict[str, tuple[dict[str, Any], Callable[[str, tuple[int, int]], Made]]] = {
    "awq": ({**_AWQ, "group_size": 32}, lambda name, shape: awq(name, shape, 32)),
    "awq-bf16": ({**_AWQ, "group_size": -1}, lambda name, shape: awq(name, shape, -1, "BF16")),
    "gptq": (_gptq(), lambda name, shape: gptq(name, shape, 32)),
    "gptq-sym": (_gptq(checkpoint_format="gptq"), lambda name, shape: gptq(name, shape, 32, symmetric=True)),
    "gptq-v2-2bit": (
        _gptq(2, -1, checkpoint_format="gptq_v2"), lambda name, shape: gptq(name, shape, -1, 2, v2=True)
    ),
    "gptq-3bit": (_gptq(3), lambda name, shape: gptq(name, shape, 32, 3)),
    "gptq-8bit": (_gptq(8), lambda name, shape: gptq(name, shape, 32, 8)),
    "gptq-8bit-sym": (_gptq(8, -1), lambda name, shape: gptq(name, shape, -1, 8, symmetric=True)),
    "gptq-order": (_gptq(desc_act=True), lambda name, shape: gptq(name, shape, 32, order=True)),
    "fp8-blocks": (
        {"quant_method": "fp8", "weight_block_size": [48, 32]},
        lambda name, shape: fp8(name, shape, "weight_scale_inv", (48, 32), "BF16"),
    ),
    "fp8-tensor": (
        {"quant_method": "fp8"},
        lambda name, shape: fp8(name, shape, "weight_scale", shape, "F32", "tensor"),
    ),
    "fp8-rows": (
        _compressed("float-quantized", _FLOAT),
        lambda name, shape: fp8(name, shape, "weight_scale", (1, shape[1]), "BF16", "row"),
    ),
    "fp8-compressed-blocks": (
        _compressed("float-quantized", _BLOCKS), lambda name, shape: fp8(name, shape, "weight_scale", (48, 32), "F32")
    ),
    "packed": (_compressed("pack-quantized", _INT4), lambda name, shape: packed(name, shape, 32)),
    "packed-sym": (
        _compressed("pack-quantized", _INT4), lambda name, shape: packed(name, shape, 32, asymmetric=False)
    ),
}  # fmt: skip


def make_folder(case: str, folder: Path) -> Folder:
    """The decoder's projections as ``case`` has them, all else in float16."""
    given, make = CASES[case]
    tensors: dict[str, Stored] = {}
    values: dict[str, NDArray[np.float32]] = {}
    for name, dense in DENSE.items():
        if name.endswith("_proj.weight"):
            parts, values[name] = make(name, dense.shape)
            tensors |= {f"{name.removesuffix('weight')}{part}": stored for part, stored in parts.items()}
        else:
            tensors[name] = ("F16", dense.astype(np.float16))
            values[name] = tensors[name][1].astype(np.float32)
    return Folder(write_folder(folder, hf_settings(CONFIG, quantization_config=given), tensors), values, tensors)


def make_mixture(folder: Path, bits: int = 4, known: bool = True) -> Folder:
    """A mixture of experts by GPTQ in the order of activations: each matrix of an expert has its own, but those of
    expert 0, which no token of the calibration met, have none. ``known``: config.json says that it was so."""
    config = tiny_config("qwen3_moe")
    tensors: dict[str, Stored] = {}
    values: dict[str, NDArray[np.float32]] = {}
    for name, dense in random_weights(config).items():
        if not name.endswith("_proj.weight"):
            tensors[name] = ("F16", dense.astype(np.float16))
            values[name] = tensors[name][1].astype(np.float32)
            continue
        expert = expert_of(name)
        seed = 0 if expert is None else sum(name.encode())
        parts, values[name] = gptq(name, dense.shape, 32, bits, order=expert != 0, seed=seed)
        tensors |= {f"{name.removesuffix('weight')}{part}": stored for part, stored in parts.items()}
    given = _gptq(bits, desc_act=known)
    return Folder(write_folder(folder, hf_settings(config, quantization_config=given), tensors), values, tensors)
