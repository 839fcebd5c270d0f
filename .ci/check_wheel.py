"""Compare a wheel with the tree it was built from: every module and data file of the package, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
OUTSIDE = ("tests/", "docs/", "deploy/", ".ci/", ".github/")
NOT_INSTALLED = {"README.md", "CHANGELOG.md", "LICENSE", "Makefile", "pyproject.toml", "constraints.txt", ".gitignore"}


def main() -> int:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    tree = {name for name in listed if name and name not in NOT_INSTALLED and not name.startswith(OUTSIDE)}
    with zipfile.ZipFile(sys.argv[1]) as wheel:
        names = {name for name in wheel.namelist() if not name.endswith("/")}
    inside = {name.removeprefix("bireme/") for name in names if name.startswith("bireme/")}
    beside = {name for name in names if not name.startswith("bireme/") and ".dist-info/" not in name}
    problems = [f"missing from the wheel: {name}" for name in sorted(tree - inside)]
    problems += [f"in the wheel, not in the tree: {name}" for name in sorted(inside - tree)]
    problems += [f"outside the package: {name}" for name in sorted(beside)]
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"].get("version")
    if version is not None:
        problems.append("pyproject.toml names a version of its own; __init__.py is its one place")
    print("\n".join(problems) or f"{Path(sys.argv[1]).name} holds all {len(inside)} files of the package")
    return bool(problems)


if __name__ == "__main__":
    raise SystemExit(main())
