"""In what form a checkpoint's weights are kept, and in what dtype the arithmetic is done."""

from __future__ import annotations

from dataclasses import dataclass

from ...models.weight import Checkpoint
from ..options import BackendOptions
from .library import Array, mx, on_metal
from .weights import MlxLoader

NORM = "model.norm.weight"


@dataclass(frozen=True, slots=True)
class Storage:
    """``quantized``: quantised matrices stay quantised; else they are decoded. ``dtype``: of dense ones and of
    activations."""

    dtype: Array
    quantized: bool

    def describe(self, loader: MlxLoader) -> str:
        """For people; names what was quantised anew."""
        name = str(self.dtype).removeprefix("mlx.core.")
        if not self.quantized:
            return f"decoded to {name}"
        again = ", ".join(f"{count} {kind}" for kind, count in sorted(loader.requantised.items()))
        return f"{name} activations" + (f"; {again} matrices requantised to 8 bits in groups of 32" if again else "")


def choose_storage(checkpoint: Checkpoint, options: BackendOptions) -> Storage:
    """Metal keeps quantised weights and computes in half precision. A Linux CPU, whose quantised products are hundreds
    of times slower than its float32 ones, decodes them, unless ``options`` say otherwise."""
    metal = on_metal()
    quantized = metal if options.mlx_weights == "auto" else options.mlx_weights == "quantized"
    if options.mlx_dtype != "auto":
        return Storage(getattr(mx, options.mlx_dtype), quantized)
    return Storage(_half(checkpoint) if metal else mx.float32, quantized)


def _half(checkpoint: Checkpoint) -> Array:
    """bfloat16 where the model was kept in it; float16 elsewhere, which holds GGUF's float16 scales exactly."""
    stored = {checkpoint.stored(name).kind for name in checkpoint.names()}
    return mx.bfloat16 if "BF16" in stored or stored == {"F32"} else mx.float16
