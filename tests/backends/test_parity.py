"""Every architecture gives the logits of transformers, from both kinds of file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from steps import LogitTap
from tiny_models import MIXTURES, VARIANTS, VOCAB

from bireme.models.checkpoint import open_checkpoint
from bireme.models.decoder import Decoder
from bireme.models.names import expected_shapes

IDS = [int(i) for i in np.random.default_rng(3).integers(0, VOCAB, 80)]
GOLDEN = Path(__file__).parents[1] / "data" / "golden"


@pytest.mark.parametrize("kind", ["folder", "gguf"])
@pytest.mark.parametrize("name", VARIANTS)
def test_logits_equal_transformers(tiny, drive, name, kind):
    """At position 80 windows of 24 and rope scalings from 64 have long been at work."""
    model = tiny(name)
    wanted = model.logits(IDS)
    driver = drive(getattr(model, kind))
    tap = LogitTap(driver)
    for length in (1, 17, 80):
        driver.step([(driver.add(IDS[:length]), length)])
        np.testing.assert_allclose(tap.logits[-1][0], wanted[length - 1], atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["llama_tied", "mistral", "qwen2", "qwen3", "gemma3", *MIXTURES])
def test_greedy_decoding_equals_transformers(tiny, drive, name):
    model, driver = tiny(name), drive(tiny(name).folder)
    ids = IDS[:20]
    wanted = list(ids)
    for _ in range(24):
        wanted.append(int(model.logits(wanted)[-1].argmax()))
    assert driver.generate([driver.add(ids)], 24) == [wanted[20:]]


@pytest.mark.parametrize("name", ["llama", "llama_tied", "qwen2", "qwen3", "gemma3", *MIXTURES])
def test_every_tensor_is_read_once(tiny, name):
    """A tied head is read and held once; nothing that the checkpoint holds is left out."""
    config = open_checkpoint(tiny(name).gguf).config
    asked: list[str] = []

    class Loader:
        def linear(self, *names: str) -> None:
            asked.extend(f"{name}.weight" for name in names)

        def experts(self, names: list[str]) -> None:
            for name in names:
                self.linear(f"{name}gate_proj", f"{name}up_proj", f"{name}down_proj")

        embedding = norm = router = linear

    Decoder(config, Loader())
    shapes = {name for name in expected_shapes(config) if name.endswith(".weight")}
    assert set(asked) == shapes
    repeated = {name for name in asked if asked.count(name) > 1}
    assert repeated == ({"model.embed_tokens.weight"} if config.tie_embeddings else set())


def test_a_tied_head_takes_no_memory(tiny, drive):
    tied, apart = (drive(tiny(name).folder).backend.info.weight_bytes for name in ("llama_tied", "llama"))
    assert apart - tied == VOCAB * 64 * 4
    assert tied == sum(
        4 * np.prod(s) for s in expected_shapes(open_checkpoint(tiny("llama_tied").folder).config).values()
    )
