"""How a safetensors folder says that MLX quantised it: one form for all, and others for some modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .mlx_affine import BITS, GROUP_SIZES
from .mlx_float import MODES
from .names import canonical_from_hf, of_all_experts
from .weight import CheckpointError


@dataclass(frozen=True, slots=True)
class MlxForm:
    """How one matrix is quantised."""

    bits: int
    group_size: int
    mode: str = "affine"  # or a key of ``mlx_float.MODES``


#: What MLX takes where an affine layer's bits or group size are not given.
AFFINE_DEFAULT = MlxForm(bits=4, group_size=64)


@dataclass(frozen=True, slots=True)
class MlxQuantization:
    """The folder's own form, and per module (canonical name, without ".weight") where it has another."""

    form: MlxForm
    overrides: Mapping[str, MlxForm]

    def of(self, name: str) -> MlxForm:
        """The form of the weight ``name`` (canonical); MLX gives one to all experts."""
        module = name.removesuffix(".weight")
        return self.overrides.get(module) or self.overrides.get(of_all_experts(module), self.form)


def mlx_quantization(given: Mapping[str, Any], source: str) -> MlxQuantization:
    """From config.json's "quantization".

    Raises:
        CheckpointError: a mode, or numbers, that MLX doesn't have.
    """
    form = _form(given, "quantization", source)
    overrides: dict[str, MlxForm] = {}
    for key, value in given.items():
        if isinstance(value, dict):
            name = canonical_from_hf(key + ".weight").removesuffix(".weight")
            overrides[name] = _form(value, key, source)
    return MlxQuantization(form, overrides)


def _form(given: Mapping[str, Any], where: str, source: str) -> MlxForm:
    """An override inherits nothing: what it doesn't say has the default that it has in MLX itself."""
    mode = given.get("mode", "affine")
    if mode != "affine" and mode not in MODES:
        raise CheckpointError(
            f"{source}: MLX quantisation mode {mode!r} of {where} is not supported; supported: affine, "
            f"{', '.join(MODES)}"
        )
    own = MODES.get(mode, AFFINE_DEFAULT)
    bits, group_size = given.get("bits", own.bits), given.get("group_size", own.group_size)
    if mode != "affine":
        if (bits, group_size) != (own.bits, own.group_size):
            raise CheckpointError(
                f"{source}: {where} is {mode} with {bits!r} bits in groups of {group_size!r}; {mode} has {own.bits} "
                f"bits in groups of {own.group_size}"
            )
        return MlxForm(own.bits, own.group_size, mode)
    if bits not in BITS or group_size not in GROUP_SIZES:
        raise CheckpointError(
            f"{source}: {where} has {bits!r} bits in groups of {group_size!r}; supported: {BITS} bits, "
            f"groups of {GROUP_SIZES}"
        )
    return MlxForm(int(bits), int(group_size))
