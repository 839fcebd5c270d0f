"""What the kernels take of a GPU, compiled for it here: a few anew, all of them in the table beside this file."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

triton = pytest.importorskip("triton", reason="Triton is not installed: it exists for Linux only")

from bireme.backends.cuda.resources import Resources, all_variants  # noqa: E402

TABLE = Path(__file__).with_name("resources.json")
ANEW = ["decode[128]", "extend[128]", "matrix[Q4_K, 16]", "vector[Q4_K, 1]", "rope_and_store[128]", "weigh"]


def table() -> tuple[str, dict[tuple[str, int], Resources]]:
    """The Triton that made the table, and its rows."""
    kept = json.loads(TABLE.read_text())
    return kept["triton"], {(row["name"], row["arch"]): Resources(**row) for row in kept["rows"]}


def test_every_variant_is_in_the_table_and_within_its_bounds():
    _, rows = table()
    variants = {(v.name, arch): v for v in all_variants() for arch in v.architectures}
    assert variants.keys() == rows.keys()
    assert [problem for key, row in rows.items() for problem in row.problems(variants[key])] == []


@pytest.mark.parametrize("change", [{"spilled": 8}, {"shared": 1 << 20}, {"vector_loads": 0}, {"tensor_cores": ""}])
def test_a_kernel_out_of_bounds_is_named(change):
    variant = next(v for v in all_variants() if v.name == "decode[128]")
    row = table()[1]["decode[128]", 90]
    worse = Resources(**{name: change.get(name, getattr(row, name)) for name in row.__dataclass_fields__})
    assert len(worse.problems(variant)) == 1 and "decode[128] on sm_90" in worse.problems(variant)[0]


def test_compiled_anew_they_are_as_the_table_says(tmp_path):
    """In a process of its own: this one only interprets."""
    made = tmp_path / "rows.json"
    command = [sys.executable, "-m", "bireme.backends.cuda.resources", "--arch", "90", "--json", str(made)]
    for name in ANEW:
        command += ["--only", name]
    subprocess.run(command, check=True, env=os.environ | {"TRITON_INTERPRET": "0"}, timeout=250, capture_output=True)
    found = {row["name"]: Resources(**row) for row in json.loads(made.read_text())["rows"]}
    assert found.keys() == set(ANEW)
    version, rows = table()
    if version == triton.__version__:
        assert found == {name: rows[name, 90] for name in ANEW}
