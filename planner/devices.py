"""How Bireme's own backends hold a model: which encoding the weights take, and the K and V."""

from __future__ import annotations

from dataclasses import replace

from .shape import ModelShape, Weights

#: Device: (bytes a parameter, None: as stored in the file; type of K and V).
FORMS: dict[str, tuple[float | None, str]] = {
    "any": (None, "f16"),
    "mlx": (None, "f16"),
    "cuda": (None, "bf16"),
    "cpu": (None, "f32"),
    "cpu-exact": (4.0, "f32"),
}


def held_on(model: ModelShape, device: str) -> ModelShape:
    """``model`` with its weights as ``device`` keeps them in memory."""
    size = FORMS[device][0]
    weights = model.weights
    if size is None or weights.parameters is None:
        return model
    factor = weights.parameters * size / weights.total_bytes
    held = Weights(
        total_bytes=round(weights.total_bytes * factor),
        active_bytes=round((weights.active_parameters or weights.parameters) * size),
        parameters=weights.parameters,
        active_parameters=weights.active_parameters,
        expert_bytes=round(weights.expert_bytes * factor),
        num_experts=weights.num_experts,
        experts_used=weights.experts_used,
        source=f"{weights.source}, decoded to {8 * size:g} bits on {device}",
    )
    return replace(model, weights=held)
