"""Published figures of known chips, for rooflines: memory, its bandwidth, 16-bit arithmetic.

Bandwidth and memory: the makers' own pages (Apple's technical specifications, NVIDIA's data sheets and architecture
papers). Arithmetic: NVIDIA's dense FP16 tensor figures with FP32 accumulation; for Apple's GPUs, which have no such
figure, two operations per lane, 128 lanes per core, at the clock commonly measured: an estimate.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Chip:
    """One device. Decimal units, as published."""

    name: str
    bandwidth_gbs: float  # GB/s
    tflops: float  # 16-bit, dense
    memory_gb: float  # the largest sold
    link_gbs: float | None = None  # GB/s each way to others of its kind: NVLink, or else PCIe; None: no such use


_APPLE = (
    ("m1", 68.25, 2.6, 16),
    ("m1-pro", 200, 5.3, 32),
    ("m1-max", 400, 10.6, 64),
    ("m1-ultra", 800, 21.2, 128),
    ("m2", 100, 3.6, 24),
    ("m2-pro", 200, 6.8, 32),
    ("m2-max", 400, 13.6, 96),
    ("m2-ultra", 800, 27.2, 192),
    ("m3", 100, 3.5, 24),
    ("m3-pro", 150, 6.4, 36),
    ("m3-max", 400, 14.1, 128),
    ("m3-ultra", 819, 28.2, 512),
    ("m4", 120, 4.3, 32),
    ("m4-pro", 273, 8.6, 64),
    ("m4-max", 546, 17.2, 128),
    ("m5", 153, 4.3, 32),
)
_NVIDIA = (
    ("rtx-3060", 360, 51, 12, 32),
    ("rtx-3090", 936, 71, 24, 32),
    ("rtx-4060-ti", 288, 88, 16, 16),
    ("rtx-4090", 1008, 165, 24, 32),
    ("rtx-5090", 1792, 210, 32, 64),
    ("t4", 320, 65, 16, 16),
    ("l4", 300, 121, 24, 32),
    ("l40s", 864, 362, 48, 32),
    ("a10", 600, 125, 24, 32),
    ("a100-40gb", 1555, 312, 40, 300),
    ("a100-80gb", 2039, 312, 80, 300),
    ("h100-pcie", 2039, 756, 80, 64),
    ("h100", 3350, 989, 80, 450),
    ("h200", 4800, 989, 141, 450),
    ("b200", 8000, 2250, 192, 900),
)
CHIPS = {row[0]: Chip(*row) for row in (*_APPLE, *_NVIDIA)}

#: Which of them each device of ``devices.FORMS`` is; those left out can be any.
KINDS: dict[str, tuple[str, ...]] = {
    "cuda": tuple(row[0] for row in _NVIDIA),
    "mlx": tuple(row[0] for row in _APPLE),
    **dict.fromkeys(("cpu", "cpu-exact", "mlx-linux"), ()),
}
#: Shown when no chip is named.
COMMON = ("m4", "m4-pro", "m4-max", "m3-ultra", "rtx-3090", "rtx-4090", "a100-80gb", "h100", "h200")


def find_chip(name: str) -> Chip:
    """The chip called ``name``, whatever its spelling (``M4 Max``, ``RTX4090``).

    Raises:
        ValueError: not in the table; the message lists it.
    """

    def plain(text: str) -> str:
        return "".join(letter for letter in text.casefold() if letter.isalnum())

    wanted = plain(name).removeprefix("apple").removeprefix("nvidia").removeprefix("geforce")
    for chip in CHIPS.values():
        if plain(chip.name) == wanted:
            return chip
    raise ValueError(f"no chip {name!r} in the table; it has {', '.join(CHIPS)}")
