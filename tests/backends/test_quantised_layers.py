"""Layers of AWQ, GPTQ, fp8 and packed folders on every backend: what they compute, and how much they hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from backend_kinds import NO_MLX
from quantised_folders import CASES, make_folder, make_mixture

from bireme.backends.cpu.weights import QuantizedLoader
from bireme.backends.cuda.weights import DenseLoader
from bireme.models.checkpoint import open_checkpoint

PARTS = [f"model.layers.1.self_attn.{part}_proj" for part in "qkv"]
#: Cases whose codes the CPU's kernels and MLX keep; others are rounded to 8 bits.
KEPT = [case for case in CASES if not case.startswith("fp8")]


def off(found: np.ndarray, x: torch.Tensor, values: np.ndarray) -> float:
    """The largest error, relative to the largest result."""
    wanted = x.double().numpy() @ values.astype(np.float64).T
    return float(np.abs(found - wanted).max() / np.abs(wanted).max())


@pytest.mark.parametrize("case", CASES)
def test_on_the_cpu(tmp_path: Path, case: str) -> None:
    folder = make_folder(case, tmp_path)
    checkpoint, x = open_checkpoint(folder.path), torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    values = np.concatenate([folder.values[f"{name}.weight"] for name in PARTS])
    exact = DenseLoader(checkpoint, torch.float32, torch.device("cpu")).linear(*PARTS)
    assert off(exact(x).numpy(), x, values) < 1e-6
    fast = QuantizedLoader(checkpoint).linear(*PARTS)
    assert off(fast(x).numpy(), x, values) < 0.02  # activations of 8 bits
    layer = getattr(fast, "layer", fast)
    if case in KEPT:
        order = fast.order.numpy() if layer is not fast else np.arange(64)
        np.testing.assert_allclose(layer.dequantize(), values[:, order], rtol=1e-6, atol=1e-9)
        bits = checkpoint.stored(f"{PARTS[0]}.weight").bits
        shared = 0.5 if "sym" in case else 2  # a scale, and a minimum, per 32 codes
        assert layer.nbytes <= values.size * (bits + shared) / 8 + 4 * len(values)  # and the bias


def test_orders_that_differ_within_a_layer_are_decoded(tmp_path: Path) -> None:
    folder = make_folder("gptq-order", tmp_path)
    checkpoint = open_checkpoint(folder.path)
    name = PARTS[0]
    parts = {"o": f"{name.removesuffix('q_proj')}o_proj", "q": name, "gate": "model.layers.1.mlp.gate_proj"}
    found = {part: checkpoint.weight(f"{own}.weight") for part, own in parts.items()}
    found["gate"].order[:2] = found["gate"].order[1::-1]  # type: ignore[index]
    checkpoint.weight = lambda wanted: next(w for w in found.values() if w.name == wanted)  # type: ignore[method-assign]
    values = np.concatenate([found[part].dequantize() for part in ("q", "gate")])
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(2))
    fast = QuantizedLoader(checkpoint).linear(parts["q"], parts["gate"])
    assert fast.kinds == ("8-bit from MLX",) and off(fast(x).numpy(), x, values) < 0.02


@pytest.mark.mlx
@NO_MLX
@pytest.mark.parametrize("case", CASES)
def test_on_mlx(tmp_path: Path, case: str) -> None:
    from bireme.backends.mlx.library import mx
    from bireme.backends.mlx.weights import ORDER_BYTES, MlxLoader

    folder = make_folder(case, tmp_path)
    checkpoint, x = open_checkpoint(folder.path), torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    values = np.concatenate([folder.values[f"{name}.weight"] for name in PARTS])
    loader = MlxLoader(checkpoint, mx.float32, quantized=True)
    layer = loader.linear(*PARTS)
    assert off(np.array(layer(mx.array(x.numpy()))), x, values) < (1e-5 if not loader.requantised else 0.01)
    assert bool(loader.requantised) == (case not in KEPT)
    planned = sum(loader._planned(f"{name}.weight", checkpoint.stored(f"{name}.weight")) for name in PARTS)
    shared = 2 * 64 * ORDER_BYTES if case == "gptq-order" else 0  # q, k and v have one order
    assert loader.nbytes == planned - shared


@pytest.mark.mlx
@NO_MLX
def test_orders_on_mlx(tmp_path: Path) -> None:
    """Matrices of one input in different orders, and a table, whose rows come out in the model's."""
    from bireme.backends.mlx.library import mx
    from bireme.backends.mlx.weights import MlxLoader

    folder = make_mixture(tmp_path, bits=8)  # 8 bits in groups of 32: as what is quantised anew
    checkpoint, x = open_checkpoint(folder.path), torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    loader = MlxLoader(checkpoint, mx.float32, quantized=True)
    names = [f"model.layers.1.mlp.experts.{expert}.up_proj" for expert in (0, 1, 2, 2)]
    layer = loader.linear(*names)
    values = np.concatenate([folder.values[f"{name}.weight"] for name in names])
    assert len(layer.parts) == 3 and not loader.requantised
    assert off(np.array(layer(mx.array(x.numpy()))), x, values) < 1e-5
    rows = loader.embedding(names[1])(mx.array([3, 0, 5]))
    np.testing.assert_allclose(np.array(rows), folder.values[f"{names[1]}.weight"][[3, 0, 5]], rtol=1e-6, atol=1e-7)
