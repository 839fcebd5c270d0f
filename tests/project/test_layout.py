"""What the project promises of its own shape: packages listed, one direction of imports, a light import."""

from __future__ import annotations

import ast
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
RUN_CLI = "from bireme.server.cli import main; main()"
NOT_PACKAGES = {"tests", "docs", "build", "dist"}

#: What the modules of each part may import of the others.
ALLOWED = {
    "core": {"core", "backends.base", "models.config"},  # a model's shape is a plain record: the memory budget reads it
    "models": {"models", "core", "backends.base"},
    "grammar": {"grammar", "core", "models"},
    "backends": {"backends", "core", "models"},
    # A plan asks the backends' own arithmetic, which needs none of their libraries.
    "planner": {
        *("planner", "core", "models", "backends.mlx.work", "backends.cuda.memory"),
        *("backends.cuda.tensor_parallel.shares", "server.sizes", "server.commands.fail"),
    },
    # The command line names every command, wherever it lives.
    "server": {"server", "grammar", "core", "models", "backends", "planner", "bench.command"},
    "bench": {"bench", "grammar", "server", "core", "models", "backends", "planner", "llm"},
}

CORE_MAY_IMPORT = {"numpy", "bireme"} | sys.stdlib_module_names
MODELS_MUST_NOT_IMPORT = {"torch", "mlx", "triton", "numba", "transformers", "fastapi"}


def _packages() -> Iterator[str]:
    for init in sorted(ROOT.rglob("__init__.py")):
        folders = init.parent.relative_to(ROOT).parts
        if not any(name.startswith(".") or name in NOT_PACKAGES for name in folders):
            yield ".".join(("bireme", *folders))


def _sources(part: str) -> Iterator[Path]:
    yield from sorted((ROOT / part).rglob("*.py"))


def _imports(path: Path) -> Iterator[tuple[int, str]]:
    """(line, module) of each import; modules of this package without the leading ``bireme.``, e.g. ``core.step``."""
    inside = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.lineno, node.module or ""
        elif isinstance(node, ast.ImportFrom):
            base = inside[: len(inside) - node.level]
            target = ".".join((*base, *(node.module or "").split("."))).strip(".")
            if node.module:
                yield node.lineno, f"bireme.{target}"
            else:
                for alias in node.names:
                    yield node.lineno, ".".join(part for part in ("bireme", target, alias.name) if part)


def test_pyproject_lists_every_package() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert sorted(settings["tool"]["setuptools"]["packages"]) == sorted(_packages())


def test_every_folder_of_modules_is_a_package() -> None:
    found = {path.parent for part in ALLOWED for path in _sources(part)}
    assert [str(folder) for folder in sorted(found) if not (folder / "__init__.py").is_file()] == []


@pytest.mark.parametrize("part", sorted(ALLOWED))
def test_imports_point_one_way(part: str) -> None:
    wrong = []
    for path in _sources(part):
        for line, module in _imports(path):
            if module == "bireme.__version__" or not module.startswith("bireme."):
                continue
            inside = module.removeprefix("bireme.")
            if not any(inside == good or inside.startswith(f"{good}.") for good in ALLOWED[part]):
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {module}")
    assert wrong == []


def test_imports_inside_the_package_are_relative() -> None:
    wrong = []
    for path in [*ROOT.glob("*.py"), *(path for part in ALLOWED for path in _sources(part))]:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [node.module or ""]
            wrong += [f"{path}:{node.lineno}" for name in names if name.split(".")[0] == "bireme"]
    assert wrong == []


def test_core_imports_only_numpy_and_the_standard_library() -> None:
    allowed = CORE_MAY_IMPORT
    wrong = [
        f"{path.name}:{line} imports {module}"
        for path in _sources("core")
        for line, module in _imports(path)
        if module.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_models_name_no_array_library() -> None:
    wrong = [
        f"{path.name}:{line} imports {module}"
        for path in _sources("models")
        for line, module in _imports(path)
        if module.split(".")[0] in MODELS_MUST_NOT_IMPORT
    ]
    assert wrong == []


def test_design_has_a_line_for_every_module() -> None:
    text = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
    missing = [
        str(path.relative_to(ROOT))
        for part in ALLOWED
        for path in _sources(part)
        if path.name != "__init__.py" and f"| `{path.relative_to(ROOT / part).as_posix()}` |" not in text
    ]
    assert missing == []


def _python(code: str, tmp_path: Path) -> str:
    run = [sys.executable, "-c", code]
    return subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout


def test_core_and_models_import_with_torch_and_mlx_blocked(tmp_path: Path) -> None:
    modules = [
        ".".join(("bireme", *path.relative_to(ROOT).with_suffix("").parts))
        for part in ("core", "models")
        for path in _sources(part)
        if path.name != "__init__.py"
    ]
    code = f"""
import importlib, sys
for name in ("torch", "mlx", "mlx.core", "triton", "numba", "transformers"):
    sys.modules[name] = None
for name in {modules!r}:
    importlib.import_module(name)
print(len({modules!r}))
"""
    assert int(_python(code, tmp_path)) == len(modules) > 5


def _cpu_seconds(arguments: list[str], tmp_path: Path) -> float:
    """The median of five runs, in seconds of processor time: that of other work on the machine doesn't count."""
    code = (
        "import resource, subprocess, sys\n"
        "subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)\n"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN)\n"
        "print(used.ru_utime + used.ru_stime)\n"
    )
    run = [sys.executable, "-c", code, *arguments]
    times = [
        float(subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True, timeout=120).stdout)
        for _ in range(5)
    ]
    return sorted(times)[2]


def test_import_is_light(tmp_path: Path) -> None:
    loaded = _python("import bireme, sys; print(*sorted(sys.modules))", tmp_path).split()
    assert {"torch", "mlx", "transformers", "numpy", "fastapi", "rich"}.isdisjoint(loaded)
    assert _cpu_seconds([sys.executable, "-c", "import bireme"], tmp_path) < 0.5


def test_help_is_quick_and_light(tmp_path: Path) -> None:
    code = "import sys\nfrom bireme.server.cli import main\nsys.argv = ['bireme', '--help']\n"
    code += "try:\n    main()\nexcept SystemExit:\n    pass\nprint('MODULES', *sorted(sys.modules))\n"
    shown, _, loaded = _python(code, tmp_path).partition("MODULES")
    assert "serve" in shown
    assert {"torch", "mlx", "transformers"}.isdisjoint(loaded.split())
    assert _cpu_seconds([sys.executable, "-c", RUN_CLI, "--help"], tmp_path) < 0.5


def test_skips_give_their_reason() -> None:
    bare = []
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        nodes = list(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))
        calls = [node for node in nodes if isinstance(node, ast.Call)]
        explained = {
            id(call.func)
            for call in calls
            if any(word.arg == "reason" for word in call.keywords)
            or (isinstance(call.func, ast.Attribute) and call.func.attr == "skip" and call.args)
        }
        bare += [
            f"{path.name}:{node.lineno}"
            for node in nodes
            if isinstance(node, ast.Attribute)
            and node.attr in ("skip", "skipif", "xfail")
            and id(node) not in explained
        ]
    assert bare == []
