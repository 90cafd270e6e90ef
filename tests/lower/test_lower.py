"""A computation as a function of TensorFlow: whatever the ops and attributes are, it gives the same bits."""

from __future__ import annotations

import gc
import random
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from lower.lowering import assert_lowers, lowered, ops
from retrotape.ir import Func, Proto, Shape
from retrotape.lower import _builder
from retrotape.tf.core import context


def values(seed: int, shape: tuple[int, ...] = (3, 3), dtype: str = "float32") -> tf.Tensor:
    return tf.constant(np.random.default_rng(seed).normal(size=shape).astype(dtype))


UNARY: list[Any] = [
    tf.sin,
    tf.transpose,
    tf.nn.softmax,
    tf.linalg.diag_part,
    lambda a: tf.cast(tf.cast(a, tf.float64) * 3.0, tf.float32),
    lambda a: tf.reduce_sum(a, 0),
    lambda a: tf.reduce_max(a, -1, keepdims=True),
    lambda a: tf.concat(tf.split(a, 3), 0),
    lambda a: tf.gather(a, [2, 0, 0]),
    lambda a: tf.pad(a, [[1, 0], [0, 0]][: a.shape.rank])[1:],
    lambda a: tf.zeros_like(a) - tf.ones_like(a),
    lambda a: tf.cumsum(a, reverse=True, exclusive=True),
    lambda a: tf.where(a > 0.0, a, tf.abs(a) ** 0.5),
    lambda a: tf.reshape(a, tf.shape(a)[::-1]),
    lambda a: tf.cast(tf.argmax(a, 0), tf.float32) * a,
    lambda a: tf.add_n([a, a * 0.1, a / 3.0, a]),
]
BINARY: list[Any] = [tf.add, tf.subtract, tf.multiply, tf.math.divide_no_nan, tf.maximum, tf.math.squared_difference]


def random_program(seed: int):
    """Return a function of two matrices that a seed decides on; its values are vectors and matrices of size three."""

    def function(a: tf.Tensor, b: tf.Tensor) -> list[tf.Tensor]:
        rng, made = random.Random(seed), [a, b]
        for _ in range(12):
            one, other = rng.choice(made), rng.choice(made)
            fits = [unary for unary in UNARY if one.shape.rank == 2 or unary not in UNARY[3:4]]
            made.append(rng.choice(fits)(one) if rng.random() < 0.6 else rng.choice(BINARY)(one, other))
        return made[-4:]

    return function


@pytest.mark.parametrize("seed", range(24))
def test_a_random_program_gives_the_same_bits(seed: int):
    assert_lowers(random_program(seed), [values(1), values(2)], [values(3), values(4)])


def with_attributes() -> dict[str, tuple[Any, list[tf.Tensor]]]:
    image, kernel = values(0, (1, 5, 5, 2)), values(1, (3, 3, 2, 4))
    matrix = values(2)
    return {
        "lists of integers, text": (
            lambda a, b: [tf.nn.conv2d(a, b, [1, 2, 2, 1], "SAME", dilations=1)],
            [image, kernel],
        ),
        "an empty list": (lambda a: [tf.squeeze(a[None])], [matrix]),
        "a list of types": (lambda a, b: list(tf.raw_ops.IdentityN(input=[a, b])), [matrix, tf.constant(["b"])]),
        "a number of outputs": (lambda a: tf.unstack(a), [matrix]),
        "several outputs": (lambda a: list(tf.linalg.qr(a)), [matrix]),
        "floats": (lambda a: [tf.nn.leaky_relu(a, 0.3)], [matrix]),
        "bools": (lambda a, b: [tf.matmul(a, b, transpose_a=True)], [matrix, values(3)]),
        "equations of einsum": (lambda a, b: [tf.einsum("ij,kj->ik", a, b)], [matrix, values(3)]),
        "half precision": (lambda a: [tf.cast(a, tf.bfloat16) * 3.0], [matrix]),
        "complex": (lambda a: [tf.signal.fft(tf.complex(a, a))], [matrix]),
        "integers": (lambda a: [tf.cast(a * 5.0, tf.int8) // 2], [matrix]),
        "strings": (lambda a: [tf.tile(a, [2]), tf.constant(["c"])], [tf.constant(["a", "b"])]),
        "bool tensors": (lambda a: [tf.logical_not(a > 0.0)], [matrix]),
        "an input as result": (lambda a: [a, tf.identity(a)], [matrix]),
        "a constant as result": (lambda a: [tf.constant([7, 8]), a], [matrix]),
        "nothing at all": (lambda a: [tf.constant(1.5)], [matrix]),
    }


@pytest.mark.parametrize("name", list(with_attributes()))
def test_attributes_of_every_kind_are_those_of_the_op(name: str):
    function, inputs = with_attributes()[name]
    assert_lowers(function, inputs)


@pytest.mark.parametrize(
    ("kind", "value", "text"),
    [
        ("list(shape)", (Shape((2, None)), Shape(None)), "dim { size: 2 }"),
        ("list(func)", (Func("f"),), 'name: "f"'),
        ("list(float)", (0.5, 1.5), "f: 0.5"),
        ("list(bool)", (True, False), "b: true"),
        ("list(string)", (b"a",), 's: "a"'),
        ("shape", Shape(None), "unknown_rank: true"),
        ("func", Func("f"), 'name: "f"'),
        ("tensor", Proto(tf.make_tensor_proto(3.0).SerializeToString()), "float_val: 3"),
    ],
)
def test_rare_attributes_become_protos(kind: str, value: Any, text: str):
    assert text in " ".join(str(_builder._proto(kind, value)).split())


@pytest.mark.parametrize("count", [1, 2, 3, 5, 8, 9, 20])
def test_add_n_adds_in_the_order_of_the_op(count: int):
    """Values of sizes so different that another order gives other bits; in a function, the kernel begins with a term
    whose memory it may take, which the first two, arguments, are not.
    """
    inputs = [values(seed, (50,)) * 10.0 ** (seed % 7) for seed in range(count)]
    assert_lowers(lambda *terms: [tf.add_n([*terms[:2], *(term * 1.1 for term in terms[2:])])], inputs)


def test_a_sum_in_another_order_would_be_noticed():
    inputs = [values(seed, (50,)) * 10.0 ** (seed % 7) for seed in range(5)]
    (found,) = lowered(lambda *terms: [tf.add_n(terms)], *inputs)(inputs, ())
    assert not np.array_equal(found, tf.add_n(inputs[::-1]))


def test_results_that_are_missing_stay_missing():
    found = lowered(lambda a: [None, a * 2.0, None], values(0))([values(0)], ())
    assert found[0] is None
    assert found[2] is None
    np.testing.assert_array_equal(found[1], values(0) * 2.0)


@pytest.mark.parametrize("shape", [None, [5, 3]])
def test_indexed_slices_stay_slices(shape):
    def function(a):
        given = None if shape is None else tf.constant(shape)
        return [tf.IndexedSlices(a * 2.0, tf.constant([4, 0, 4]), given), a]

    found = lowered(function, values(0))([values(0)], ())
    assert isinstance(found[0], tf.IndexedSlices)
    assert (found[0].dense_shape is None) == (shape is None)
    np.testing.assert_array_equal(found[0].indices, [4, 0, 4])
    np.testing.assert_array_equal(found[0].values, values(0) * 2.0)


def test_inputs_that_are_not_used_are_not_taken():
    found = assert_lowers(lambda a, b: [b * 2.0], [values(0), values(1)])
    assert found.inputs == (1,)


def test_the_same_constant_is_stored_once():
    def function(a):
        return [a * tf.constant([1.0, 2.0, 3.0]) + tf.constant([1.0, 2.0, 3.0])]

    assert assert_lowers(function, [values(0)]).function.size == 3


def test_nothing_is_computed_twice():
    assert ops(lambda a: [tf.sin(a) + tf.sin(a), tf.sin(a)], values(0)) == ["Sin", "AddV2"]


def test_what_no_result_needs_does_not_run():
    def function(a):
        tf.cos(a)
        return [tf.sin(a)]

    assert ops(function, values(0)) == ["Sin"]


def test_a_function_is_removed_from_tensorflow_when_it_is_dropped():
    found = lowered(lambda a: [tf.sin(a)], values(0))
    name = found.function.name
    assert context.context().has_function(name)
    del found
    gc.collect()
    assert not context.context().has_function(name)


def test_large_tensors_get_more_than_one_thread():
    small, large = (lowered(lambda a: [tf.sin(a)], values(0, (size,)))[0]._attrs for size in (100, 100_000))
    assert small[1] == "SINGLE_THREADED_EXECUTOR"
    assert large[1] == ""
