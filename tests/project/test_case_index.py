"""Every known fault of tests/data/fault_cases.txt has a test that names it."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from pathlib import Path

TESTS = Path(__file__).parents[1]
TABLE = TESTS / "data" / "fault_cases.txt"
NUMBER = re.compile(r"(?<![0-9A-Za-z])([A-F][0-9]{2})(?![0-9A-Za-z])", re.IGNORECASE)


def listed() -> list[str]:
    lines = TABLE.read_text(encoding="utf-8").splitlines()
    return [line.split()[0] for line in lines if line and not line.startswith("#")]


def numbers(text: str) -> set[str]:
    return {found.upper() for found in NUMBER.findall(text.replace("_", " "))}


def named_in(source: str) -> set[str]:
    """Numbers in the names, docstrings and comments of a module's tests."""
    comments = [
        (token.start[0], token.string)
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    ]
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
            words = [text for line, text in comments if first <= line <= (node.end_lineno or first)]
            found |= numbers(" ".join([node.name, ast.get_docstring(node) or "", *words]))
    return found


def test_each_fault_has_a_test_that_names_it() -> None:
    named = set().union(*(named_in(path.read_text(encoding="utf-8")) for path in TESTS.rglob("test_*.py")))
    table = listed()
    assert len(set(table)) == len(table) > 95
    assert not [one for one in table if one not in named]


def test_the_index_reads_names_docstrings_and_comments_of_tests_alone() -> None:
    source = '''
"""A01"""
import pytest

@pytest.mark.parametrize("kind", ["F16"])  # A02
def test_b33_events(kind):
    """C04, and more."""
    assert kind == "F32"  # F01

def helper():
    """C05"""
'''
    assert named_in(source) == {"A02", "B33", "C04", "F01"}
