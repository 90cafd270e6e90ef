"""The files of the package, each read and parsed once."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import retrotape

SOURCE = Path(retrotape.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


@functools.cache
def text(path: Path) -> str:
    return path.read_text()


@functools.cache
def tree(path: Path) -> ast.Module:
    return ast.parse(text(path))


@functools.cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(tree(path)))


def name(path: Path) -> str:
    """Return how an offender is called in the message of an assertion."""
    return path.relative_to(SOURCE).as_posix()
