"""The page lists every reason why a query is not compiled, as `tape.why_not_compiled` prints it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import lower as compiling
from retrotape.lower._queries import RECORDED
from retrotape.record import NO_QUERY

SOURCE = Path(compiling.__file__).parent
PAGE = SOURCE.parents[2] / "docs" / "warm_loops.md"


def text_of(node: ast.expr) -> str:
    """Return a text of the source, with a dot for each part that is filled in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(part.value if isinstance(part, ast.Constant) else "…" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def reasons() -> list[str]:
    """Return every reason in the source."""
    found = [NO_QUERY, RECORDED]
    for path in sorted([*SOURCE.glob("*.py"), *SOURCE.with_name("query").glob("*.py")]):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "NotCompilableError":
                found.append(text_of(node.args[0]))
            elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "op_by_op":
                found.append(text_of(node.args[1]))
            elif isinstance(node, ast.FunctionDef) and node.name == "_why_not":
                found += [text_of(one.value) for one in ast.walk(node) if isinstance(one, ast.Return) and one.value]
    return sorted({text for text in found if text})


# Reasons that no user can do anything about and that are rare, so that the page leaves them out.
RARE = {
    "it uses a resource or a list of tensors that is not on the tape",
    "it runs …, which makes a resource",
    "part of the derivative is computed by ops that cannot be observed",
    "a backward function refers to functions that are nested too deeply",
    "the backward function … uses …, which has state",
    "it records …, which is more than an op",
}


@pytest.mark.parametrize("text", reasons())
def test_every_reason_is_on_the_page(text: str):
    rows = [line.split("|")[1].strip() for line in PAGE.read_text().splitlines() if line.startswith("|")]
    pattern = re.escape(text).replace("…", ".+")
    assert text in RARE or any(re.fullmatch(pattern, row) for row in rows)


def test_no_rare_reason_is_left_over():
    assert set(reasons()) >= RARE


def test_the_summary_says_it_too():
    w = tf.Variable([1.0, 2.0])
    lines = []
    for _ in range(3):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(w**2)
        assert "last query" not in str(tape.summary())
        tape.gradient(loss, [w])
        lines.append(str(tape.summary()).splitlines()[-1])
    assert "last query: op by op; it was seen for the first time" in lines[0]
    assert "last query: compiled" in lines[2]


def test_the_text_is_about_the_last_query():
    w = tf.Variable([1.0, 2.0])
    for _ in range(4):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(w))
        first = tape.gradient(loss, w)
    assert tape.why_not_compiled() is None
    tape.gradient(first, w)  # a gradient of a gradient runs op by op
    assert tape.why_not_compiled() is not None
