"""What a step returns: any nest of tensors, variables and Python values, new each time."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, namedtuple
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import alike, plays

PAIR, OTHER = tf.constant([1.0, 2.0]), tf.constant([3.0, 5.0])
HELD = tf.constant([7.0, 8.0])
LARGE = tf.reshape(tf.range(4096.0), [4, 1024])
Point = namedtuple("Point", "x y")


@dataclass
class Losses:
    total: Any
    parts: list


def made_default(x):
    found = defaultdict(list)
    found["a"].append(x * 2.0)
    return found


RESULTS = {
    "a tensor": lambda x: x * 2.0,
    "nothing": lambda x: None,
    "numbers": lambda x: (1, 2.5, "text", None, True, np.float32(3.0)),
    "an array": lambda x: np.array([1.0, 2.0]),
    "a dictionary": lambda x: {"loss": tf.reduce_sum(x), "n": 2, "more": [x * 2.0, (x,)]},
    "an ordered one": lambda x: OrderedDict(b=x, a=x * 2.0),
    "one with a default": made_default,
    "a named tuple": lambda x: Point(x * 2.0, x),
    "a dataclass": lambda x: Losses(tf.reduce_sum(x), [x, x * 3.0]),
    "the argument": lambda x: x,
    "a held tensor": lambda x: (HELD, LARGE, x + HELD, LARGE[0]),
    "a constant": lambda x: tf.constant(3.0),
    "a shape": lambda x: (tf.shape(x), x.shape[0], tf.size(x)),
    "one tensor twice": lambda x: (lambda y: [y, y])(x * 2.0),
    "ragged": lambda x: tf.RaggedTensor.from_row_lengths(x * 2.0, [1, 1]),
    "sparse": lambda x: tf.sparse.from_dense(x),
    "slices": lambda x: tf.IndexedSlices(x * 2.0, tf.constant([0, 3]), tf.constant([5])),
    "strings": lambda x: tf.strings.as_string(x),
    "integers": lambda x: (tf.argmax(x), tf.cast(x, tf.int32), x > 1.0),
    "complex": lambda x: tf.complex(x, x * 2.0),
    "half": lambda x: tf.cast(x, tf.bfloat16) * 2,
}


@pytest.mark.parametrize("name", RESULTS)
def test_it_is_like_what_eager_code_returns(name: str):
    function = RESULTS[name]
    compiled = rt.compile(lambda x: function(x), strict=True)
    for x in (PAIR, OTHER, PAIR, OTHER * 2):
        expected, found = function(x), compiled(x)
        assert type(found) is type(expected)
        if name != "a dataclass":
            tf.nest.assert_same_structure(found, expected, expand_composites=True)
        else:
            expected, found = ([one.total, one.parts] for one in (expected, found))
        flat = (tf.nest.flatten(nest, expand_composites=True) for nest in (expected, found))
        for left, right in zip(*flat, strict=True):
            np.testing.assert_array_equal(left, right)
    assert sum(plays(compiled)) == 3


def test_results_are_not_shared_between_calls():
    step = rt.compile(lambda x: [x * 2.0], strict=True)
    first, second, third = (step(PAIR) for _ in range(3))
    second.append(1)
    assert len(third) == len(first) == 1


def test_variables_are_returned_as_they_are():
    w = tf.Variable(1.0)
    step = rt.compile(lambda x: (w.assign_add(x), w), strict=True)
    for n in range(3):
        one, other = step(tf.constant(1.0))
        assert one.handle is w.handle
        assert other is w
        assert float(w) == n + 2.0


def test_gradients_are_returned_with_their_keys():
    w, unused = tf.Variable(2.0, name="w"), tf.Variable(1.0, name="unused")

    def function(x):
        with rt.Tape() as tape:
            y = w * x * x
        return tape.backward(y, [w, unused])

    step = rt.compile(function, strict=True)
    for x in (1.0, 3.0, 4.0):
        found, expected = step(tf.constant(x)), function(tf.constant(x))
        assert float(found[w]) == float(expected[w]) == x * x
        assert [one is unused for one in found.missing] == [one is unused for one in expected.missing] == [True]
        assert found.why(unused) == expected.why(unused)


def test_updates_of_every_kind():
    def make():
        w, v, k = tf.Variable([1.0, 2.0, 3.0]), tf.Variable(1.0), tf.Variable(0, dtype=tf.int64)

        def step(x, i):
            w.scatter_nd_add([[0], [2]], [x, x])
            w.scatter_update(tf.IndexedSlices([x * 2.0], [1]))
            w[0:1].assign([x])
            v.assign(tf.reduce_sum(w))
            v.assign_sub(x * 0.5)
            k.assign_add(1)
            w.assign(tf.where(tf.cast(k, tf.float32) > 2.0, w * 0.5, w))
            return v.read_value(), tf.gather(w, i), w.sparse_read(i)

        return step, {"vars": [w, v, k]}

    step = alike(make, [(tf.constant(float(n)), tf.constant([n % 3, 1])) for n in range(6)], strict=True)
    assert plays(step) == [5]


def test_two_variables_that_swap():
    def make():
        a, b = tf.Variable([1.0, 2.0]), tf.Variable([3.0, 4.0])

        def step(x):
            old = a.read_value()
            a.assign(b * x)
            b.assign(old)
            return a + b

        return step, {"vars": [a, b]}

    alike(make, [(PAIR,), (OTHER,), (PAIR,), (OTHER,)], strict=True)


def test_a_function_with_loops_and_branches_inside_the_step():
    def make():
        w = tf.Variable(1.0)

        @tf.function
        def inner(x, n):
            for _ in tf.range(n):
                if x[0] > 2.0:
                    x = x * 0.5
                else:
                    x = x + 1.0
            return x

        def step(x):
            with rt.Tape() as tape:
                y = tf.reduce_sum(inner(x * w, tf.constant(3)))
            w.assign_sub(0.01 * tape.gradient(y, w))
            return y

        return step, {"vars": [w]}

    alike(make, [(PAIR,), (OTHER,), (PAIR,), (OTHER,)])


def test_methods_are_compiled_for_each_object():
    class Model:
        def __init__(self, w: float) -> None:
            self.w = tf.Variable(w)

        @rt.compile
        def step(self, x):
            return self.w.assign_add(x) * 2.0

    one, other = Model(1.0), Model(10.0)
    for _ in range(3):
        one.step(tf.constant(1.0))
        other.step(tf.constant(1.0))
    assert (float(one.w), float(other.w)) == (4.0, 13.0)
    assert plays(Model.step) == [2, 2]
    assert len(one.step.recordings()) == 2


def test_jit_gives_the_same_up_to_rounding():
    w = tf.Variable([1.0, 2.0])
    step = rt.compile(lambda x: (w.assign_add(x * 0.1) * 1.0, tf.tanh(x)), jit=True, strict=True)
    for n in range(3):
        value, tanh = step(PAIR)
        np.testing.assert_allclose(value, [1.0 + 0.1 * (n + 1), 2.0 + 0.2 * (n + 1)], rtol=1e-6)
        np.testing.assert_allclose(tanh, np.tanh([1.0, 2.0]), rtol=1e-6)
    assert plays(step) == [2]
