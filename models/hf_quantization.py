"""How a safetensors folder says that it is quantised: the schemes that are read, everything else refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .awq_scheme import awq_scheme
from .compressed_tensors import compressed_scheme
from .fp8_scheme import fp8_scheme
from .gptq_scheme import gptq_scheme
from .mlx_config import mlx_quantization
from .mlx_scheme import MlxScheme
from .scheme import Scheme
from .weight import CheckpointError

_METHODS: dict[str, Callable[[Mapping[str, Any], str], Scheme]] = {
    "awq": awq_scheme,
    "gptq": gptq_scheme,
    "fp8": fp8_scheme,
    "fbgemm_fp8": fp8_scheme,
    "modelopt": fp8_scheme,
    "compressed-tensors": compressed_scheme,
}


def quantization_scheme(config: Mapping[str, Any], source: str) -> Scheme:
    """How the modules of a folder are stored, by its ``config.json``; modules may always be dense as well.

    Raises:
        CheckpointError: a scheme that is not read, or numbers it doesn't have.
    """
    given = config.get("quantization") or config.get("quantization_config") or config.get("compression_config")
    if given is None:
        return MlxScheme(None)
    if not isinstance(given, dict):
        raise CheckpointError(f"{source}: quantization is {given!r}; wanted: an object")
    method = given.get("quant_method")
    if method is None and "bits" in given and "group_size" in given:
        return MlxScheme(mlx_quantization(given, source))
    if method in _METHODS:
        return _METHODS[method](given, source)
    raise CheckpointError(
        f"{source}: weights quantised by {method or 'an unknown method'} are not supported; supported: dense weights, "
        f"MLX, {', '.join(_METHODS)}, GGUF"
    )
