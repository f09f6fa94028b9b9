"""Every case is found by its name."""

from __future__ import annotations

import ast
import functools
import re
from pathlib import Path

import pytest

from tests.cases import CASES

TESTS = Path(__file__).parents[1]


@functools.cache
def named_cases() -> frozenset[str]:
    """The cases that open the docstring of a test, alone or several: ``D01: ...``, ``G01, G03: ...``."""
    named: set[str] = set()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                opening = re.match(r"((?:[A-Z]\d\d(?:, )?)+): ", ast.get_docstring(node) or "")
                if opening:
                    named.update(opening[1].split(", "))
    return frozenset(named)


@pytest.mark.parametrize("area", CASES)
def test_every_case_of_an_area_is_a_test(area: str) -> None:
    """A case that nobody can find by its name is a case that nobody knows to be covered."""
    assert set(CASES[area]) - named_cases() == set()
