"""Schemas and vocabularies to measure grammar libraries with: out of packages on PyPI, fetched once.

The schemas with instances are the JSON Schema Test Suite (https://github.com/json-schema-org/JSON-Schema-Test-Suite),
which lies in jsonschema's source distribution; the schemas of real programs are those that check-jsonschema brings.
The large vocabulary is Qwen's (151,643 tokens), which lies in dashscope's wheel.
"""

from __future__ import annotations

import base64
import json
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..grammar.vocabulary import TokenTable
from ..models.cache import atomic, cache_folder, locked

SUITE = "jsonschema==4.26.0"
SUITE_FOLDER = "json/tests/draft2020-12/"
PROGRAMS = "check-jsonschema==0.39.0"
PROGRAMS_FOLDER = "check_jsonschema/builtin_schemas/vendor/"
LARGE = "dashscope==2.0.2"
LARGE_MEMBER = "dashscope/resources/qwen.tiktoken"
#: Files of the suite left out: those about names and places of schemas, which no answer of a model depends on.
LEFT_OUT = frozenset({"refRemote", "dynamicRef", "vocabulary", "anchor", "content", "format"})


@dataclass(frozen=True, slots=True)
class Case:
    """A schema, and instances as JSON text that are valid or are not."""

    name: str
    schema: str
    valid: list[str] = field(default_factory=list)
    invalid: list[str] = field(default_factory=list)


def suite() -> list[Case]:
    """A case per schema of the test suite's required part."""
    found = []
    with tarfile.open(_package(SUITE, source=True)) as archive:
        for member in archive.getmembers():
            folder, _, name = member.name.partition(SUITE_FOLDER)
            stem = name.removesuffix(".json")
            if not name.endswith(".json") or "/" in name or stem in LEFT_OUT:
                continue
            file = archive.extractfile(member)
            assert file is not None
            found += [_case(stem, group) for group in json.load(file)]
    return [case for case in found if "http://localhost" not in case.schema]


def _case(stem: str, group: Any) -> Case:
    texts: dict[bool, list[str]] = {True: [], False: []}
    for test in group["tests"]:
        texts[test["valid"]].append(json.dumps(test["data"], ensure_ascii=False))
    return Case(f"{stem}: {group['description']}", json.dumps(group["schema"]), texts[True], texts[False])


def programs() -> list[Case]:
    """Schemas of configuration files: large, and written without language models in mind."""
    with zipfile.ZipFile(_package(PROGRAMS)) as archive:
        names = [name for name in archive.namelist() if name.startswith(PROGRAMS_FOLDER) and name.endswith(".json")]
        return [Case(Path(name).stem, archive.read(name).decode()) for name in sorted(names)]


def large_vocabulary() -> TokenTable:
    """Qwen's tokens, with one end token behind them."""
    with zipfile.ZipFile(_package(LARGE)) as archive:
        lines = archive.read(LARGE_MEMBER).split(b"\n")
    tokens = [base64.b64decode(line.split()[0]) for line in lines if line]
    return TokenTable([*tokens, b"<|im_end|>"], [len(tokens)], [len(tokens)])


def demo_vocabulary() -> TokenTable:
    """The demo model's 49,152 tokens."""
    from ..models.checkpoint import open_checkpoint
    from ..models.demo import demo_model
    from ..models.tokenizer import Tokenizer

    checkpoint = open_checkpoint(demo_model())
    try:
        tokenizer = Tokenizer.from_files(checkpoint.tokenizer, checkpoint.config.vocab_size)
        return TokenTable.of(tokenizer, checkpoint.end_ids)
    finally:
        checkpoint.close()


def longest_tokens(table: TokenTable) -> dict[bytes, int]:
    """Tokens by their bytes: for ``encode``."""
    control = frozenset(table.control)
    return {token: i for i, token in enumerate(table.tokens) if token and i not in control}


def encode(data: bytes, tokens: dict[bytes, int], longest: int = 24) -> Iterator[int]:
    """``data`` in the longest tokens from the left: no model's own way, and the same for every library."""
    at = 0
    while at < len(data):
        for length in range(min(longest, len(data) - at), 0, -1):
            token = tokens.get(data[at : at + length])
            if token is not None:
                yield token
                at += length
                break
        else:
            raise ValueError(f"byte {data[at]} is no token of this vocabulary")


def _package(name: str, *, source: bool = False) -> Path:
    """A package's file, fetched once."""
    project, _, version = name.partition("==")
    path = cache_folder() / "bench" / f"{project}-{version}{'.tar.gz' if source else '.whl'}"
    with locked(path):
        if not path.is_file():
            kind = ["--no-binary", project] if source else ["--only-binary", ":all:"]
            with tempfile.TemporaryDirectory(dir=path.parent) as folder:
                command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", *kind, "-d", folder, name]
                subprocess.run(command, check=True)
                with atomic(path) as part:
                    part.write_bytes(next(Path(folder).iterdir()).read_bytes())
    return path
