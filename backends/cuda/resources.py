"""What every kernel takes of a GPU, found by compiling for it: no GPU is needed.

``python -m bireme.backends.cuda.resources [--arch 90] [--only NAME] [--json FILE] [--update FILE]`` prints a
table.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from .kernels.variant import Variant

#: Compute capabilities compiled for: A100, H100 and H200, B200, RTX 50.
ARCHITECTURES = (80, 90, 100, 120)
#: The most shared memory, in bytes, that one program may have.
SHARED_LIMIT = {80: 163 * 1024, 90: 227 * 1024, 100: 227 * 1024, 120: 99 * 1024}
MODULES = ("norm", "rope", "activation", "decode", "extend", "sampler", "quantized", "experts")
_TENSOR_CORES = ("wgmma.mma_async", "mma.sync", "tcgen05.mma")


@dataclass(frozen=True, slots=True)
class Resources:
    """One variant on one architecture."""

    name: str
    arch: int
    registers: int  # a thread
    spilled: int  # bytes stored and loaded, a thread
    shared: int  # bytes a program
    vector_loads: int  # instructions that move 16 bytes from global memory
    loads: int  # all that read global memory
    tensor_cores: str  # which of the matrix instructions, "" for none

    def problems(self, variant: Variant) -> list[str]:
        """What this must not be, in words."""
        found = []
        if self.spilled and variant.hot:
            found.append(f"{self.name} on sm_{self.arch} spills {self.spilled} bytes")
        if self.shared > SHARED_LIMIT[self.arch]:
            limit = SHARED_LIMIT[self.arch]
            found.append(f"{self.name} on sm_{self.arch} wants {self.shared} bytes of shared memory of {limit}")
        if variant.vector_loads and not self.vector_loads:
            found.append(f"{self.name} on sm_{self.arch} has no 16-byte loads")
        if variant.tensor_cores and not self.tensor_cores:
            found.append(f"{self.name} on sm_{self.arch} uses no tensor cores")
        return found


def all_variants() -> Iterator[Variant]:
    """Every variant that is checked, module by module."""
    for name in MODULES:
        yield from import_module(f".kernels.{name}", __package__).variants()


def measure(variant: Variant, arch: int) -> Resources:
    """Compile ``variant`` for ``arch``; seconds of work."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    names = variant.kernel.arg_names
    signature = {name: variant.types.get(name, "constexpr") for name in names}
    aligned = [n for n, name in enumerate(names) if _aligned(variant, name)]
    source = ASTSource(
        fn=variant.kernel,
        signature=signature,
        constexprs={(names.index(name),): value for name, value in variant.constants.items()},
        attrs={(n,): [["tt.divisibility", 16]] for n in aligned},
    )
    options = {"num_warps": variant.warps, "num_stages": variant.stages}
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    ptx = compiled.asm["ptx"]
    registers, spilled = _assemble(ptx, arch)
    return Resources(
        name=variant.name,
        arch=arch,
        registers=registers,
        spilled=spilled,
        shared=compiled.metadata.shared,
        vector_loads=len(
            re.findall(r"ld\.global\.\S*v4\.[bf]32|ld\.global\.\S*v2\.b64|cp\.async\S* .*\b(?:0x10|16)\b", ptx)
        ),
        loads=len(re.findall(r"ld\.global|cp\.async\.c[ag]", ptx)),
        tensor_cores=" ".join(word for word in _TENSOR_CORES if word in ptx),
    )


def _aligned(variant: Variant, name: str) -> bool:
    kind = variant.types.get(name, "")
    return kind.startswith("*") or (kind in ("i32", "i64") and name not in variant.unaligned)


def _assemble(ptx: str, arch: int) -> tuple[int, int]:
    """Registers and bytes spilled, from ptxas."""
    from triton.backends.nvidia.compiler import get_ptxas

    target = re.search(r"\.target (sm_\w+)", ptx)
    assert target is not None
    with tempfile.TemporaryDirectory() as scratch:
        source = Path(scratch) / "kernel.ptx"
        source.write_text(ptx)
        command = [
            get_ptxas(arch).path,
            "-v",
            f"-arch={target[1]}",
            str(source),
            "-o",
            str(Path(scratch) / "kernel.cubin"),
        ]
        said = subprocess.run(command, check=True, capture_output=True, text=True).stderr
    registers = re.search(r"Used (\d+) registers", said)
    assert registers is not None, said
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", said)
    return int(registers[1]), sum(map(int, spills))


def table(rows: list[Resources]) -> str:
    """The rows as Markdown."""
    lines = [
        "| kernel | sm | registers | spilled | shared | 16-byte loads | loads | tensor cores |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        cells: list[Any] = [f"`{row.name}`", row.arch, row.registers, row.spilled, row.shared, row.vector_loads]
        lines.append("| " + " | ".join(map(str, [*cells, row.loads, row.tensor_cores or "-"])) + " |")
    return "\n".join(lines)


def _as_json(rows: list[Resources]) -> str:
    """One row a line, with the Triton that made them."""
    import triton

    lines = ",\n".join(json.dumps(asdict(row)) for row in rows)
    return f'{{"triton": "{triton.__version__}", "rows": [\n{lines}\n]}}\n'


def _merged(kept: list[dict[str, Any]], made: list[Resources]) -> list[Resources]:
    """``kept`` with ``made`` in place of older rows, in the variants' order; what is no variant is dropped."""
    known = {(row["name"], row["arch"]): Resources(**row) for row in kept}
    known |= {(row.name, row.arch): row for row in made}
    wanted = ((variant.name, arch) for variant in all_variants() for arch in ARCHITECTURES)
    return [known[key] for key in wanted if key in known]


def main() -> None:
    """Compile, print the table, and fail where a kernel breaks its bounds."""
    parser = argparse.ArgumentParser(prog="python -m bireme.backends.cuda.resources", description=__doc__)
    parser.add_argument("--arch", type=int, choices=ARCHITECTURES, action="append", help="only these; may be repeated")
    parser.add_argument(
        "--only", action="append", metavar="NAME", help="variants whose name begins so; may be repeated"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows to FILE as well")
    parser.add_argument("--update", type=Path, metavar="FILE", help="put the rows in their places in FILE")
    chosen = parser.parse_args()
    rows, problems = [], []
    for variant in all_variants():
        if chosen.only and not variant.name.startswith(tuple(chosen.only)):
            continue
        for arch in sorted(set(chosen.arch or ARCHITECTURES) & set(variant.architectures)):
            rows.append(measure(variant, arch))
            problems += rows[-1].problems(variant)
    if chosen.json:
        chosen.json.write_text(_as_json(rows))
    if chosen.update:
        chosen.update.write_text(_as_json(_merged(json.loads(chosen.update.read_text())["rows"], rows)))
    print(table(rows))
    if problems:
        raise SystemExit("\n".join(problems))


if __name__ == "__main__":
    main()
