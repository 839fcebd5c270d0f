"""Which devices have a use for which option, and what is said of one that the chosen device has no use for.

What asks for other numbers, or for more devices, than the device has is refused: whoever asked would think they had
them. What only says how much of a machine is taken is left, with one warning that names it all.
"""

from __future__ import annotations

import logging
from collections.abc import Collection
from dataclasses import dataclass, fields
from typing import Any

from ..core.config import EngineConfig
from .options import BackendOptions

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Use:
    """``devices`` act on the option. Elsewhere a value is refused, if ``refused`` and not the default; ``anywhere`` are
    values that ask for nothing but what every device does."""

    devices: tuple[str, ...]
    anywhere: tuple[Any, ...] = ()
    refused: bool = False


#: The options that not every device acts on, by the names of their fields in ``EngineConfig`` and ``BackendOptions``.
USES = {
    "cpu_precision": Use(("cpu",), refused=True),
    "mlx_dtype": Use(("mlx",), ("auto",), refused=True),
    "tensor_parallel": Use(("cuda", "cpu"), (1,), refused=True),
    "mlx_weights": Use(("mlx",), ("auto",)),
    "threads": Use(("cpu", "cuda"), (None,)),
    "gpu_memory_fraction": Use(("cuda",)),
    "kv_cache_memory": Use(("cpu", "cuda", "mlx"), (None,)),
}
#: What the KV cache may keep, by device; anything else is refused. A CPU computes no faster with fp8 than with int8; a
#: GPU and MLX keep what is not quantised in the type of their arithmetic; a simulated device keeps none.
KV_CACHE_DTYPES = {
    "cpu": ("auto", "float32", "float16", "int8"),
    "cuda": ("auto", "int8", "fp8"),
    "mlx": ("auto", "int8"),
    "sim": ("auto",),
}


def unused_options(
    device: str, config: EngineConfig, options: BackendOptions, given: Collection[str] = ()
) -> tuple[str, ...]:
    """What ``device`` ("cpu", "cuda", "mlx" or "sim") has no use for, of the options that are ``given`` by name or
    differ from their defaults.

    Raises:
        ValueError: one of them is refused there; the message names it, its value and what to do.
    """
    if config.kv_cache_dtype not in KV_CACHE_DTYPES[device]:
        known = ", ".join(KV_CACHE_DTYPES[device])
        raise ValueError(f"kv_cache_dtype is {config.kv_cache_dtype!r}; on {device} it must be one of {known}")
    values = _values(config) | _values(options)
    defaults = _values(EngineConfig()) | _values(BackendOptions())
    unused = []
    for name, use in USES.items():
        value, usual = values[name], values[name] == defaults[name]
        if device in use.devices or value in use.anywhere or (usual and name not in given):
            continue
        if use.refused and not usual:
            able = " and ".join(use.devices)
            raise ValueError(
                f"{name} is {value!r}, which the device here, {device}, can't do ({able} can); leave it out, or choose "
                "another device"
            )
        unused.append(name)
    return tuple(unused)


def ignored_options(
    device: str, config: EngineConfig, options: BackendOptions, given: Collection[str] = ()
) -> str | None:
    """``unused_options`` in a line for people; None where every option is used."""
    unused = unused_options(device, config, options, given)
    if not unused:
        return None
    named = ", ".join(f"{name} (for {' and '.join(USES[name].devices)})" for name in unused)
    return f"ignored, since the device is {device}: {named}"


def check_options(device: str, config: EngineConfig, options: BackendOptions, given: Collection[str] = ()) -> None:
    """As ``unused_options``; what is ignored is said in the log."""
    if ignored := ignored_options(device, config, options, given):
        logger.warning("%s", ignored)


def _values(record: EngineConfig | BackendOptions) -> dict[str, Any]:
    return {field.name: getattr(record, field.name) for field in fields(record)}
