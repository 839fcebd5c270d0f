"""How a safetensors folder says that it is quantised: MLX's affine form is read, everything else refused by name."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .mlx_affine import BITS, GROUP_SIZES
from .names import canonical_from_hf
from .weight import CheckpointError


@dataclass(frozen=True, slots=True)
class MlxQuantization:
    """Bits and group size: the folder's own, and per module (canonical name, without ".weight") where it has others."""

    bits: int
    group_size: int
    overrides: Mapping[str, tuple[int, int]]  # module -> (bits, group size)

    def of(self, name: str) -> tuple[int, int]:
        """(bits, group size) of the weight ``name`` (canonical)."""
        return self.overrides.get(name.removesuffix(".weight"), (self.bits, self.group_size))


def mlx_quantization(config: Mapping[str, Any], source: str) -> MlxQuantization | None:
    """What ``config.json`` says of quantisation; None: nothing, the weights are dense.

    Raises:
        CheckpointError: another scheme than MLX's affine one, or numbers it doesn't have.
    """
    given = config.get("quantization") or config.get("quantization_config") or config.get("compression_config")
    if given is None:
        return None
    if not isinstance(given, dict):
        raise CheckpointError(f"{source}: quantization is {given!r}; wanted: an object")
    method = given.get("quant_method") or (None if "bits" in given and "group_size" in given else "an unknown method")
    if method is not None:
        raise CheckpointError(
            f"{source}: weights quantised by {method} are not supported; supported: dense weights, MLX affine, GGUF"
        )
    bits, group_size = _numbers(given, {}, "quantization", source)
    overrides: dict[str, tuple[int, int]] = {}
    for key, value in given.items():
        if isinstance(value, dict):
            name = canonical_from_hf(key + ".weight").removesuffix(".weight")
            overrides[name] = _numbers(value, given, key, source)
    return MlxQuantization(bits, group_size, overrides)


def _numbers(given: Mapping[str, Any], outer: Mapping[str, Any], where: str, source: str) -> tuple[int, int]:
    mode = given.get("mode", outer.get("mode", "affine"))
    if mode != "affine":
        raise CheckpointError(
            f"{source}: MLX quantisation mode {mode!r} of {where} is not supported; supported: affine"
        )
    bits, group_size = given.get("bits", outer.get("bits")), given.get("group_size", outer.get("group_size"))
    if bits not in BITS or group_size not in GROUP_SIZES:
        raise CheckpointError(
            f"{source}: {where} has {bits!r} bits in groups of {group_size!r}; supported: {BITS} bits, "
            f"groups of {GROUP_SIZES}"
        )
    return int(bits), int(group_size)
