from __future__ import annotations

import keras
import pytest
import tensorflow as tf
from hypothesis import given
from hypothesis import strategies as st

import retrotape as rt
from retrotape.report._charts import Scale
from retrotape.report._graph import ranks, reduced
from retrotape.report._pictures import picture_of


@st.composite
def graphs(draw) -> dict[int, set[int]]:
    count = draw(st.integers(1, 9))
    return {node: draw(st.sets(st.integers(0, node - 1))) if node else set() for node in range(count)}


def ancestors(edges: dict[int, set[int]], node: int) -> set[int]:
    return set().union(*({one} | ancestors(edges, one) for one in edges[node]))


@given(graphs())
def test_a_reduction_has_the_same_paths_and_no_edge_too_many(edges):
    few = reduced(edges)
    for node in edges:
        assert ancestors(few, node) == ancestors(edges, node)
        for one in few[node]:
            others = {**few, node: few[node] - {one}}
            assert one not in ancestors(others, node)


@given(graphs())
def test_a_rank_is_the_longest_path(edges):
    def longest(node: int) -> int:
        return max((1 + longest(one) for one in edges[node]), default=0)

    assert ranks(edges) == {node: longest(node) for node in edges}


def titles(drawing, edges) -> list[tuple[str, str]]:
    return [(drawing.nodes[a].title, drawing.nodes[b].title) for a, b in edges]


def test_a_transformer(report):
    outermost, blocks, parts, whole = report.drawings
    assert [node.title for node in outermost.nodes] == ["transformer", "making.py:53"]
    assert titles(blocks, blocks.edges) == [
        ("tokens", "block0"),
        ("block0", "block1"),
        ("block1", "head"),
        ("head", "making.py:53"),
    ]
    first = ["tokens", "attention", "+", "norm1", "up", "down", "+", "norm2"]
    assert [node.title for node in parts.nodes][:8] == first
    assert [node.rank for node in parts.nodes][:8] == list(range(8))
    # Residual connections pass by the layers between: they do not follow from the chain, but would not be seen in it.
    assert titles(parts, parts.skips)[:2] == [("tokens", "+"), ("norm1", "+")]
    assert {("query", "Einsum"), ("key", "Einsum"), ("value", "Einsum")} <= set(titles(whole, whole.edges))


def test_only_what_leads_to_the_loss():
    used, logged = (keras.layers.Dense(2, name=name) for name in ("used", "logged"))
    x = tf.ones([1, 2])
    with rt.Tape() as tape:
        out = used(x)
        logged(out)
        loss = tf.reduce_sum(out)
    (drawing,) = tape.report(loss=loss).drawings
    first, last = (node.title for node in drawing.nodes)
    assert first == "used"
    assert last.startswith("test_graph.py:")


def test_a_loop_has_no_cycle():
    dense = keras.layers.Dense(2, name="dense")
    x = tf.ones([1, 2])
    with rt.Tape() as tape:
        for _ in range(3):
            x = dense(x) + 1.0
        loss = tf.reduce_sum(x)
    (drawing,) = tape.report(loss=loss).drawings
    assert all(a < b for a, b in drawing.edges)
    assert [node.rank for node in drawing.nodes] == list(range(len(drawing.nodes)))
    assert [node.title for node in drawing.nodes][::2][:3] == ["dense #1", "dense #2", "dense #3"]


def test_many_calls_are_drawn_as_one_layer():
    dense = keras.layers.Dense(2, name="dense")
    x = tf.ones([1, 2])
    with rt.Tape() as tape:
        for _ in range(150):
            x = dense(x)
        loss = tf.reduce_sum(x)
    (drawing,) = tape.report(loss=loss).drawings
    assert drawing.nodes[0].title == "dense ×150"  # noqa: RUF001 - a sign
    assert len(drawing.nodes) == 2


@pytest.mark.parametrize("layers", [2, 30])
def test_nodes_of_a_rank_have_different_columns(layers):
    inputs = keras.Input([4])
    outputs = keras.layers.concatenate([keras.layers.Dense(2)(inputs) for _ in range(layers)])
    model = keras.Model(inputs, outputs)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 4])))
    drawing = tape.report(loss=loss).drawings[-1]
    spots = [(node.rank, node.column) for node in drawing.nodes]
    assert len(set(spots)) == len(spots) >= layers


def test_only_the_box_that_has_the_result_shows_its_gradient():
    """A line may run before and after a layer; a model may have ops of its own before the first layer."""
    dense, x = keras.layers.Dense(2, name="dense"), tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        loss = tf.reduce_sum(dense(x * 2.0) ** 2)
    report = tape.report(loss=loss)
    flows = {one.place: one for one in report.flow}
    picture = picture_of(report.drawings[-1], report.places, flows, Scale(-3, 3))
    first, layer, last = picture.boxes
    assert (first.place, first.title) == (last.place, last.title)
    assert first.heat == 0.0
    assert layer.heat > 0.0
    assert last.heat > 0.0
