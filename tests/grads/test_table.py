"""Gradients shown: as text, in a terminal with rich, in a notebook."""

from __future__ import annotations

import ast
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rich.console
import tensorflow as tf

import retrotape as rt
import retrotape.grads


def variable(shape: Any = (), name: str = "v", dtype: Any = tf.float32) -> tf.Variable:
    return tf.Variable(tf.zeros(shape, dtype), name=name)


def vector(*norms: float | None, dtype: Any = tf.float32) -> rt.Gradients:
    """Gradients of one element each, named v0, v1, ...; None for a missing one."""
    pairs = [
        (variable(name=f"v{n}", dtype=dtype), None if norm is None else tf.constant(norm, dtype))
        for n, norm in enumerate(norms)
    ]
    return rt.Gradients(pairs)


@pytest.fixture
def grads() -> rt.Gradients:
    w, table, b = variable((2, 2), "w"), variable((4, 2), "table"), variable((), "b")
    rows = tf.IndexedSlices(tf.ones([3, 2]), tf.constant([1, 1, 2]), tf.constant([4, 2]))
    return rt.Gradients(
        [(w, tf.constant([[3.0, 0.0], [0.0, -4.0]])), (table, rows), (b, None)], [(b, "nobody [bold] asked <b>")]
    )


def in_terminal(value: Any, width: int = 120) -> str:
    console = rich.console.Console(file=io.StringIO(), width=width, color_system=None)
    console.print(value)
    return console.file.getvalue()  # type: ignore[attr-defined]


class Cells(HTMLParser):
    """The text of every cell, row by row, and every tag with its attributes."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_data(self, data: str) -> None:
        self.rows[-1][-1] += data


def in_notebook(grads: rt.Gradients) -> list[list[str]]:
    return [[cell.strip() for cell in row] for row in Cells(grads._repr_html_()).rows]


# ------------------------------------------------------------------ one table, three forms

REASON = "missing: nobody [bold] asked <b>"


def test_text(grads: rt.Gradients) -> None:
    assert repr(grads) == (
        "variable  shape   norm          share\n"
        "w         2x2     5             71 %\n"
        "table     4x2     3.162 sparse  29 %\n"
        f"b         scalar  {REASON}"
    )
    assert str(grads) == repr(grads)


def test_rich(grads: rt.Gradients) -> None:
    lines = [line.split() for line in in_terminal(grads).splitlines() if line.strip(" ─")]
    assert lines == [
        ["variable", "shape", "norm", "share"],
        ["w", "2x2", "5", "71", "%"],
        ["table", "4x2", "3.162", "sparse", "29", "%"],
        ["b", "scalar", *REASON.split()],
    ]
    ends = {line.index("%") for line in in_terminal(grads).splitlines() if "%" in line}
    assert len(ends) == 1  # to the right
    assert max(ends) < in_terminal(grads).splitlines()[-2].index("missing")  # a reason does not make its column wide


def test_notebook(grads: rt.Gradients) -> None:
    assert in_notebook(grads) == [
        ["variable", "shape", "norm", "share"],
        ["w", "2x2", "5", "71 %"],
        ["table", "4x2", "3.162 sparse", "29 %"],
        ["b", "scalar", REASON],
    ]


def test_the_page_is_self_contained_and_of_no_colour(grads: rt.Gradients) -> None:
    html, cells = grads._repr_html_(), Cells(grads._repr_html_())
    assert {tag for tag, _ in cells.tags} == {"table", "thead", "tbody", "tr", "th", "td", "span"}
    assert all(set(attrs) <= {"style", "colspan"} for _, attrs in cells.tags)
    colours = re.findall(r"(?:color|background|border)[\w-]*:([^;\"]+)", html)
    assert set(colours) <= {"currentColor", "transparent", "inherit", "collapse", "0", "1px solid currentColor"}
    bars = [attrs["style"] for tag, attrs in cells.tags if tag == "span"]
    assert [re.search(r"width:(\d+)px", style).group(1) for style in bars] == ["43", "17"]  # type: ignore[union-attr]
    numbers = [attrs["style"] for tag, attrs in cells.tags if tag == "td" and "text-align:right" in attrs["style"]]
    assert len(numbers) == 4


def test_names_are_no_markup() -> None:
    bold = variable(name="v")
    key = type("Key", (), {"shape": bold.shape, "dtype": bold.dtype, "name": "<b>x</b> & [red]y[/red]"})()
    grads = rt.Gradients([(key, tf.constant(1.0))])
    assert "&lt;b&gt;x&lt;/b&gt; &amp; [red]y" in grads._repr_html_()
    assert "<b>" not in grads._repr_html_()
    assert in_notebook(grads)[1][0] == key.name
    assert key.name in in_terminal(grads)
    assert key.name in repr(grads)


def test_a_variable_whose_name_is_markup() -> None:
    grads = rt.Gradients([(tf.Variable(1.0, name="<b>"), tf.constant(2.0))])
    assert in_notebook(grads)[1][0] == "<b>"
    assert "<b>" not in grads._repr_html_()


def test_an_empty_one_has_a_header_only() -> None:
    assert repr(rt.Gradients([])).split() == ["variable", "shape", "norm", "share"]
    assert in_notebook(rt.Gradients([])) == [["variable", "shape", "norm", "share"]]
    assert "variable" in in_terminal(rt.Gradients([]))


def test_rich_is_imported_only_where_it_is_used() -> None:
    for path in Path(retrotape.grads.__file__).parent.glob("*.py"):
        for node in ast.parse(path.read_text()).body:  # what is inside a function or for type checkers is deeper
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                assert not re.match(r"(from|import) rich\b", ast.unparse(node)), f"{path}:{node.lineno}"


# ------------------------------------------------------------------ long tables


def test_a_long_table_keeps_the_largest() -> None:
    norms: list[float | None] = [0.01] * 140
    for place in range(3, 123, 2):
        norms[place] = 2.0
    norms += [0.01] * 60
    grads = vector(*norms)
    lines = repr(grads).splitlines()
    assert len(lines) == 1 + 60 + 1
    assert [line.split()[0] for line in lines[1:-1]] == [f"v{n}" for n in range(3, 123, 2)]  # in the order of the keys
    assert lines[-1] == f"… and 140 more, norm {0.01 * 140**0.5:.4g}"
    assert in_notebook(grads)[-1] == [lines[-1]]
    assert len(in_notebook(grads)) == 62
    assert in_terminal(grads).splitlines()[-1].strip() == lines[-1]
    assert "v0 " not in in_terminal(grads)


def test_shares_are_of_the_whole_where_a_table_is_folded() -> None:
    assert {line.split()[3] for line in repr(vector(*[1.0] * 200)).splitlines()[1:-1]} == {"0"}  # 1 of 200, not of 60


def test_sixty_rows_are_not_folded_and_one_more_is() -> None:
    assert len(repr(vector(*[1.0] * 60)).splitlines()) == 61
    assert repr(vector(*[1.0] * 61)).splitlines()[-1] == "… and 1 more, norm 1"


def test_missing_ones_are_folded_first_and_counted() -> None:
    lines = repr(vector(*[None] * 5, *[0.0] * 58, 1.0)).splitlines()
    assert lines[-1] == "… and 4 more, norm 0, 4 of them missing"
    assert lines[-2].split()[0] == "v63"


def test_what_is_not_finite_is_not_folded() -> None:
    lines = repr(vector(*[1.0] * 70, float("nan"), float("-inf"))).splitlines()
    assert [line.split()[:3] for line in lines[-3:-1]] == [["v70", "scalar", "nan"], ["v71", "scalar", "inf"]]
    assert lines[-1] == f"… and 12 more, norm {12**0.5:.4g}"


# ------------------------------------------------------------------ norms and shares


@pytest.mark.parametrize(("bad", "shown"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "inf")])
def test_without_a_finite_total_there_are_no_shares(bad: float, shown: str) -> None:
    grads = vector(1.0, bad, None)
    rows = [line.split() for line in repr(grads).splitlines()[1:]]
    assert rows == [["v0", "scalar", "1", "?"], ["v1", "scalar", shown, "?"], ["v2", "scalar", "missing"]]
    assert in_notebook(grads)[1:3] == [["v0", "scalar", "1", "?"], ["v1", "scalar", shown, "?"]]
    assert "<span" not in grads._repr_html_()


def test_rows_named_twice_are_added_first() -> None:
    table = variable((4, 2), "table")
    rows = tf.IndexedSlices(tf.constant([[3.0, 0.0], [-3.0, 4.0]]), tf.constant([1, 1]), tf.constant([4, 2]))
    assert repr(rt.Gradients([(table, rows)])).split()[-4:] == ["4", "sparse", "100", "%"]


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_norms_whose_squares_do_not_fit(size: float) -> None:
    rows = [line.split() for line in repr(vector(3 * size, 4 * size)).splitlines()[1:]]
    assert [row[2:] for row in rows] == [[f"{3 * size:.4g}", "36", "%"], [f"{4 * size:.4g}", "64", "%"]]
    assert [norm for _, norm in vector(3 * size, 4 * size).norms()] == pytest.approx([3 * size, 4 * size])


def test_half_precision_and_complex_numbers() -> None:
    assert repr(vector(300.0, dtype=tf.float16)).split()[-3:] == ["300", "100", "%"]
    assert repr(vector(300.0, dtype=tf.bfloat16)).split()[-3:] == ["300", "100", "%"]
    assert repr(vector(3.0 - 4.0j, dtype=tf.complex64)).split()[-3:] == ["5", "100", "%"]


def test_zeros_have_no_share() -> None:
    assert repr(vector(0.0, 0.0)).splitlines()[1].split() == ["v0", "scalar", "0", "0", "%"]


# ------------------------------------------------------------------ inside a function


def test_inside_a_function_there_is_one_line_in_all_forms() -> None:
    shown: list[Any] = []
    table = variable((4, 2), "table")

    @tf.function
    def show(values: tf.Tensor) -> tf.Tensor:
        rows = tf.IndexedSlices(values, tf.constant([0, 0]), tf.constant([4, 2]))
        for grads in (
            rt.Gradients([(table, rows), (values, values)]),
            rt.Gradients([(table, None), (tf.reshape(values, tf.shape(values)), None)]),  # known by their key alone
        ):
            shown.extend([repr(grads), grads.__rich__(), Cells("<tr><td>" + grads._repr_html_()).rows[0][0]])
        return values

    show(tf.ones([2, 2]))
    assert shown == ["<Gradients of 2 variables, symbolic>"] * 6
