"""Golden files, one loading trait each: the backend gives the logits and greedy tokens of an independent reference."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from steps import LogitTap

GOLDEN = Path(__file__).parents[1] / "data" / "golden"
CASES = json.loads((GOLDEN / "golden.json").read_text())


@pytest.mark.parametrize("name", CASES)
def test_golden(drive, name):
    case = CASES[name]
    path = GOLDEN / name
    driver = drive(path if path.is_dir() else path.with_suffix(".gguf"))
    tap = LogitTap(driver)
    made = driver.generate([driver.add(case["prompt_ids"])], len(case["greedy"]))
    np.testing.assert_allclose(tap.logits[0][0, :8], case["last_logits_first8"], atol=case["tol"], rtol=0)
    assert made == [case["greedy"]]
