"""Rotary frequencies against those of transformers."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_models import llama3_divisors
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from bireme.models.config import RopeConfig
from bireme.models.rope import frequencies

LLAMA3 = {"factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
SCALINGS = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "llama3", **LLAMA3},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768},
    {
        "rope_type": "yarn",
        "factor": 16.0,
        "original_max_position_embeddings": 4096,
        "beta_fast": 24.0,
        "beta_slow": 2.0,
    },
    {"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 4096, "attention_factor": 1.25},
]


def ours(scaling: dict, theta: float) -> RopeConfig:
    names = {"rope_type": "kind", "original_max_position_embeddings": "original_max_position"}
    return RopeConfig(theta=theta, **{names.get(key, key): value for key, value in scaling.items()})


@pytest.mark.parametrize("theta", [10000.0, 500000.0])
@pytest.mark.parametrize("scaling", SCALINGS, ids=lambda s: f"{s['rope_type']}-{s['factor']:.0f}")
def test_scaled_frequencies(scaling, theta):
    original = scaling.get("original_max_position_embeddings", 2048)
    parameters = {**scaling, "rope_theta": theta}
    theirs = LlamaConfig(
        head_dim=128, max_position_embeddings=int(original * scaling["factor"]), rope_parameters=parameters
    )
    wanted, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, "cpu")
    found, factor = frequencies(ours(scaling, theta), 128)
    np.testing.assert_allclose(found, wanted.numpy(), rtol=2e-6)
    assert factor == pytest.approx(magnitude)


def test_divisors_say_the_same_as_llama3():
    rope = {**LLAMA3, "rope_theta": 10000.0}
    divided = RopeConfig(divisors=tuple(llama3_divisors(rope, 64)))
    np.testing.assert_allclose(
        frequencies(divided, 64)[0], frequencies(ours({"rope_type": "llama3", **LLAMA3}, 10000.0), 64)[0], rtol=1e-9
    )


@pytest.mark.parametrize(
    "rope, message",
    [
        (RopeConfig(kind="dynamic"), "'dynamic' is not known"),
        (RopeConfig(kind="yarn", factor=2.0), "needs the original context length"),
        (RopeConfig(divisors=(1.0, 2.0)), "2 rotary divisors for 32 frequencies"),
    ],
)
def test_unusable_scalings_are_refused(rope, message):
    with pytest.raises(ValueError, match=message):
        frequencies(rope, 64)
