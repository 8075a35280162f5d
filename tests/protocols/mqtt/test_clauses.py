"""The list of normative statements is whole, and names tests that are there."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

import pytest

from tests.protocols.mqtt import clauses

TESTS = Path(__file__).parents[2]
VERSIONS = {
    "3.1.1": (clauses.V3, (clauses.V3_CLIENT, clauses.V3_OPEN), clauses.COUNTS_3),
    "5": (clauses.V5, (clauses.V5_CLIENT, clauses.V5_NOT_OURS, clauses.V5_OPEN), clauses.COUNTS_5),
}


@cache
def functions(module: str) -> frozenset[str]:
    """The tests of a module."""
    path = (TESTS if "/" in module else Path(__file__).parent) / f"{module}.py"
    tree = ast.parse(path.read_text())
    return frozenset(node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("version", VERSIONS)
def test_every_statement_has_its_test(version: str) -> None:
    table, others, counts = VERSIONS[version]
    named = clauses.tested(table)
    rest = [statement for text in others for statement in text.split()]
    assert len(rest) == len(set(rest))
    assert not set(named) & set(rest)
    assert set(named) | set(rest) == clauses.all_of(counts)


@pytest.mark.parametrize("version", VERSIONS)
def test_the_tests_are_there(version: str) -> None:
    missing = {
        f"{module} {function}"
        for module, function in clauses.tested(VERSIONS[version][0]).values()
        if function not in functions(module)
    }
    assert not missing


def test_nothing_is_without_a_test() -> None:
    assert len(clauses.V3_OPEN.split()) == 0
    assert len(clauses.V5_OPEN.split()) == 0
