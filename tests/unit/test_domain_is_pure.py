"""import-linter keeps clocks, randomness and I/O out of udfs.domain where they are imported.

Here is what needs no import that it would see: a method that reads the clock of a type that is welcome
as a value, and built-ins that reach outside.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import udfs.domain

if TYPE_CHECKING:
    from collections.abc import Iterator

CLOCK_TYPES = frozenset({"datetime", "date"})
CLOCK_METHODS = frozenset({"now", "utcnow", "today"})
REACHING_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "input", "open", "print"})

DOMAIN = Path(udfs.domain.__path__[0])
MODULES = sorted(str(path.relative_to(DOMAIN)) for path in DOMAIN.rglob("*.py"))


def impurities(source: str) -> Iterator[tuple[int, str]]:
    """Line and name of each call that makes a decision depend on more than its arguments."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Call(func=ast.Name(id=name)) if name in REACHING_BUILTINS:
                yield node.lineno, name
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner) | ast.Attribute(attr=owner), attr=method)) if (
                owner in CLOCK_TYPES and method in CLOCK_METHODS
            ):
                yield node.lineno, method


@pytest.mark.parametrize("module", MODULES)
def test_a_decision_calls_nothing_but_its_arguments(module: str) -> None:
    assert list(impurities((DOMAIN / module).read_text())) == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("from datetime import datetime\ndatetime.now()", [(2, "now")]),
        ("import datetime as dt\ndt.datetime.utcnow()", [(2, "utcnow")]),
        ("from datetime import date\ndate.today()", [(2, "today")]),
        ("open('/etc/passwd')", [(1, "open")]),
        ("def f(x):\n    print(x)", [(2, "print")]),
        ("def apply(state, event, now):\n    return state.now(event)", []),
        ("from datetime import datetime\ndatetime.fromtimestamp(0)", []),
    ],
)
def test_the_check_sees_what_it_is_made_for(source: str, found: list[tuple[int, str]]) -> None:
    assert list(impurities(source)) == found
