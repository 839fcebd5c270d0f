"""A kernel module with one thing changed, beside the real one."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from typing import Any


def mutant(module: str, old: str, new: str, folder: Path) -> Any:
    """The kernel module with ``old`` replaced."""
    source = Path(importlib.import_module(f"bireme.backends.cuda.kernels.{module}").__file__ or "").read_text()
    assert source.count(old) == 1, f"{module} has {source.count(old)} of {old!r}"
    file = folder / f"{module}.py"
    file.write_text(source.replace(old, new))
    name = f"bireme.backends.cuda.kernels.mutant_{module}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None and spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    sys.modules[name] = made
    spec.loader.exec_module(made)
    return made
