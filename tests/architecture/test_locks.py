"""Locks are those of `_locks.py`: others would stay locked in a forked process."""

from __future__ import annotations

import ast
from collections.abc import Iterable

from architecture.source import FILES, name, nodes

KINDS = ("Lock", "RLock")
MODULES = ("threading", "_thread")
# Where no lock is made to be held, each with the reason.
HARMLESS = {"_locks.py": "it makes them", "python/_allowed.py": "it asks for their types"}


def makes_locks(found: Iterable[ast.AST]) -> bool:
    """Return whether a file calls a kind of locks of Python."""
    found = list(found)
    made = {f"{module}.{kind}" for module in MODULES for kind in KINDS}
    for node in found:
        if isinstance(node, ast.ImportFrom) and node.module in MODULES:
            made.update(one.asname or one.name for one in node.names if one.name in KINDS)
    return any(isinstance(node, ast.Call) and ast.unparse(node.func) in made for node in found)


def test_locks_are_made_in_one_place() -> None:
    assert {name(path) for path in FILES if makes_locks(nodes(path))} == set(HARMLESS)


def test_another_one_would_be_noticed() -> None:
    for text in ("from threading import Event, RLock as Own\nlock = Own()", "lock = threading.Lock()"):
        assert makes_locks(ast.walk(ast.parse(text)))
    assert not makes_locks(ast.walk(ast.parse("from threading import RLock\nlock: RLock")))
