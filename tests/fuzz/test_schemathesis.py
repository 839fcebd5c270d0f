"""schemathesis over the server's own OpenAPI document; test_fuzz_bodies is the part that needs no package for it."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest
from servers import Server

SECONDS = 40
CHECKS = ("not_a_server_error", "status_code_conformance", "unsupported_method", "response_schema_conformance")
#: A stream without an end.
ENDLESS = "/dashboard/events"


@pytest.mark.skipif(
    importlib.util.find_spec("schemathesis") is None,
    reason="schemathesis is not installed; 'make test-clients' installs and runs it",
)
def test_every_operation_answers_as_documented(fuzzed_server: Server, tmp_path: Path) -> None:
    """No 5xx, no hang, no method but those named, and no status that the document doesn't name."""
    command = [Path(sys.executable).with_name("schemathesis"), "run", fuzzed_server.url + "/openapi.json"]
    options = ["--phases", "coverage,fuzzing", "--exclude-path", ENDLESS, "--checks", ",".join(CHECKS)]
    options += ["--seed", "20261130", "--max-examples", "25", "--max-time", str(SECONDS), "--request-timeout", "10"]
    done = subprocess.run(
        [*command, *options, "--generation-database", "none", "--no-color"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=6 * SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
