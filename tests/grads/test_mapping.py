"""Gradients are a mapping from variables, and show what is in it."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from grads.vectors import Case, dense_model
from retrotape import errors

# ------------------------------------------------------------------ a mapping


def test_names_are_keys_too() -> None:
    a, b, c = (tf.Variable(1.0, name=name) for name in ("left/kernel", "right/kernel", "bias"))
    grads = rt.Gradients([(a, tf.constant(1.0)), (b, tf.constant(2.0)), (c, None)])
    assert (float(grads["left/kernel"]), float(grads.get("right/kernel")), float(grads["bias"])) == (1.0, 2.0, 0.0)
    assert "bias" in grads
    assert "kernel" not in grads  # two end so
    assert grads.only("bias").keys() == [c]
    assert len(grads.without("left/kernel")) == 2
    with pytest.raises(
        errors.UnknownSourceError, match=r"no gradient with respect to 'kernel' here\. The sources are: left/kernel"
    ):
        grads["kernel"]
    assert grads.values()[2] is None


def test_it_is_a_mapping_in_order(case: Case) -> None:
    assert len(case.grads) == 3
    assert [key.name for key in case.grads.keys()] == ["w:0", "table:0", "b:0"]
    assert [key.name for key, _ in case.grads.items()] == ["w:0", "table:0", "b:0"]
    assert case.w in case.grads
    assert tf.Variable(1.0) not in case.grads
    assert case.grads.get(tf.Variable(1.0)) is None
    np.testing.assert_array_equal(case.grads[case.w], case.dense["w"])
    assert case.grads[case.table] is case.rows


def test_a_missing_gradient_is_zero_and_told(case: Case) -> None:
    assert case.grads.missing == (case.b,)
    assert float(case.grads[case.b]) == 0.0
    assert case.grads.pairs()[2] == (None, case.b)


def test_a_keras_variable_and_its_tf_variable_are_one_key() -> None:
    variable = keras.Variable([1.0, 2.0])
    grads = rt.Gradients([(variable, tf.constant([1.0, 2.0])), (variable.value, tf.constant([10.0, 20.0]))])
    assert len(grads) == 1
    assert variable in grads
    assert variable.value in grads
    np.testing.assert_array_equal(grads[variable], [11.0, 22.0])
    np.testing.assert_array_equal(grads[variable.value], [11.0, 22.0])
    assert len(grads.without(variable.value)) == 0


def test_a_missing_keras_variable_is_zero() -> None:
    variable = keras.Variable([1.0, 2.0], dtype="float16")
    grad = rt.Gradients([(variable, None)])[variable]
    assert grad.dtype == tf.float16
    assert grad.shape == [2]


def test_only_and_without_take_keys_and_nests_of_keys(case: Case) -> None:
    assert case.grads.only(case.b, case.w).keys() == [case.w, case.b]
    assert case.grads.only([case.w, {"t": case.table}]).keys() == [case.w, case.table]
    assert case.grads.without(case.w).keys() == [case.table, case.b]
    assert case.grads.without([case.w, case.b], tf.Variable(0.0)).keys() == [case.table]
    assert case.grads.only(case.b).missing == (case.b,)


@pytest.mark.parametrize("ask", [lambda grads, key: grads[key], lambda grads, key: grads.only(key)])
def test_an_unknown_key_is_named_with_the_known_ones(case: Case, ask: Any) -> None:
    text = (
        r"^There is no gradient with respect to other here\. The sources are: w, table, b\. Name it in the query: `tape"
    )
    with pytest.raises(errors.UnknownSourceError, match=text) as caught:
        ask(case.grads, tf.Variable(1.0, name="other"))
    assert caught.value.name == "other"
    assert isinstance(caught.value, KeyError)


@pytest.mark.parametrize("key", ["nobody", 0])
def test_a_key_of_another_kind_is_unknown_too(case: Case, key: Any) -> None:
    assert key not in case.grads
    with pytest.raises(errors.UnknownSourceError, match="There is no gradient with respect to"):
        case.grads[key]


def test_nothing_is_known_to_an_empty_one() -> None:
    with pytest.raises(
        errors.UnknownSourceError, match=r"no gradient with respect to tensor float32\[2\] here.*are: none"
    ):
        rt.Gradients([])[tf.ones(2)]


def test_map_leaves_out_what_is_missing(case: Case) -> None:
    squared = case.grads.map(lambda grad: tf.convert_to_tensor(grad) ** 2)
    np.testing.assert_array_equal(squared[case.table], case.dense["table"] ** 2)
    assert squared.missing == (case.b,)


# ------------------------------------------------------------------ norms, and the table of them


def test_norms_by_name(case: Case) -> None:
    assert dict(case.grads.norms()) == pytest.approx({"w": 5.0, "table": 10**0.5, "b": 0.0})


def test_norms_of_variables_of_one_name_are_all_there() -> None:
    pairs = [(tf.Variable(0.0, name="v"), tf.constant(3.0)), (tf.Variable(0.0, name="v"), tf.constant(4.0))]
    assert [norm for _, norm in rt.Gradients(pairs).norms()] == [3.0, 4.0]


def test_the_table(case: Case) -> None:
    lines = [line.split() for line in repr(case.grads).splitlines()]
    assert lines == [
        ["variable", "shape", "norm", "share"],
        ["w", "2x2", "5", "71", "%"],
        ["table", "4x2", "3.162", "sparse", "29", "%"],
        ["b", "scalar", "missing"],
    ]


def test_the_table_names_keras_variables_by_path_and_tensors_by_type() -> None:
    model, x = dense_model(), tf.ones([2])
    text = repr(rt.Gradients([(model.trainable_variables[0], None), (x, x)]))
    assert model.trainable_variables[0].path in text
    assert "tensor float32[2]" in text


def test_inside_a_function_the_table_tells_that_it_is_symbolic(case: Case) -> None:
    shown = []

    @tf.function
    def show(values: tf.Tensor) -> tf.Tensor:
        rows = tf.IndexedSlices(values, tf.constant([0, 0]), tf.constant([4, 2]))
        shown.extend([repr(rt.Gradients([(case.w, values)])), repr(rt.Gradients([(case.table, rows)]))])
        return values

    show(tf.ones([2, 2]))
    assert shown == ["<Gradients of 1 variables, symbolic>"] * 2


def test_weights_are_not_applied_as_gradients(case: Case) -> None:
    """`zip(grads, weights)` is what one types from habit, and a mapping would give its keys there."""
    before = case.w.numpy()
    with pytest.raises(TypeError, match=r"iterating over them is ambiguous: use `grads\.apply\(optimizer\)`, or `gr"):
        keras.optimizers.SGD(0.1).apply_gradients(zip(case.grads, [case.w], strict=False))
    np.testing.assert_array_equal(case.w, before)
    keras.optimizers.SGD(0.1).apply_gradients(case.grads.only(case.w).pairs())
    np.testing.assert_allclose(case.w, before - 0.1 * case.grads[case.w], rtol=1e-6)
