"""Which layer an operation of a traced function belongs to, noted in time that does not grow with the graph."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.record import _traced_layers


def test_the_version_of_a_graph_is_the_number_of_its_operations():
    graph = tf.Graph()
    with graph.as_default():
        for number in range(5):
            assert graph.version == len(graph.get_operations()) == number
            tf.constant(float(number))


@pytest.fixture
def lists(monkeypatch) -> list[int]:
    """How many operations each graph had whose operations were listed."""
    found, original = [], tf.Graph.get_operations

    def get_operations(graph):
        made = original(graph)
        found.append(len(made))
        return made

    monkeypatch.setattr(tf.Graph, "get_operations", get_operations)
    return found


def traced(count: int) -> rt.Tape:
    layers = [keras.layers.Dense(2, name=f"dense{number}") for number in range(count)]
    for layer in layers:
        layer.build([1, 2])

    @tf.function(autograph=False)
    def step(x):
        for layer in layers:
            x = layer(x)
        return tf.reduce_sum(x)

    with rt.Tape() as tape:
        step(tf.ones([1, 2]))
    return tape


def test_operations_are_not_listed_for_each_layer(lists):
    traced(3)
    few = len(lists)
    lists.clear()
    traced(30)
    assert len(lists) == few


def test_a_list_is_made_once_when_it_is_needed(lists):
    with tf.Graph().as_default():
        made = _traced_layers.trace_layer("layer", lambda: [tf.constant(1.0).op, tf.constant(2.0).op])
        assert lists == []
        assert len({_traced_layers.chain_of(one) for one in made}) == len(lists) == 1


def test_an_operation_belongs_to_the_innermost_call():
    graph = tf.Graph()
    with graph.as_default():
        first = _traced_layers.trace_layer("outer", lambda: _outer(graph))
        after = tf.constant(4.0).op
    names = [[name for name, _ in _traced_layers.chain_of(one)] for one in (*first, after)]
    assert names == [["outer"], ["outer", "inner"], ["outer"], []]


def _outer(graph: tf.Graph) -> list[tf.Operation]:
    before = tf.constant(1.0).op
    inner = _traced_layers.trace_layer("inner", lambda: tf.constant(2.0).op)
    assert [name for name, _ in _traced_layers.chain_of(inner)] == ["outer", "inner"]  # also before the outer one ends
    return [before, inner, tf.constant(3.0).op]
