"""A step of an optimizer with gradients."""

from __future__ import annotations

import inspect
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from grads.vectors import Case, X, dense_model, one
from retrotape import errors


def test_apply_builds_an_optimizer() -> None:
    variable, grads = one([1.0, -2.0])
    optimizer = keras.optimizers.SGD(0.5)
    grads.apply(optimizer)
    assert optimizer.built
    np.testing.assert_allclose(variable, [0.5, 2.0])
    grads.apply(optimizer)
    assert int(optimizer.iterations) == 2


def test_one_adam_for_two_models_steps_as_with_a_stock_tape() -> None:
    def train(tape_of: Any, step: Any) -> list[np.ndarray]:
        encoder, decoder = dense_model(3, seed=1), dense_model(2, seed=2)
        variables, optimizer = encoder.trainable_variables + decoder.trainable_variables, keras.optimizers.Adam(0.1)
        for _ in range(3):
            with tape_of() as tape:
                loss = tf.reduce_mean(decoder(tf.tanh(encoder(X))) ** 2)
            step(tape, loss, variables, optimizer)
        return [variable.numpy() for variable in variables]

    def stock(tape: Any, loss: Any, variables: Any, optimizer: Any) -> None:
        optimizer.apply(tape.gradient(loss, [v.value for v in variables]), variables)

    expected = train(tf.GradientTape, stock)
    for wrt in (True, False):
        ours = train(
            rt.Tape, lambda t, loss, variables, o, wrt=wrt: t.backward(loss, variables if wrt else None).apply(o)
        )
        for got, want in zip(ours, expected, strict=True):
            np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_apply_to_an_optimizer_that_keras_has_built_for_its_variables() -> None:
    model, optimizer = dense_model(), keras.optimizers.Adam(0.1)
    optimizer.build(model.trainable_variables)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(X) ** 2)
    before = model.get_weights()
    tape.backward(loss).apply(optimizer)  # by the tf.Variables that were read
    assert all(np.abs(new - old).max() > 0.05 for new, old in zip(model.get_weights(), before, strict=True))


def test_a_variable_without_gradient_is_left_alone(case: Case) -> None:
    optimizer = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    with pytest.warns(
        errors.MissingGradientWarning, match=r"^1 of 3 variables has no gradient and stays as it is: b\."
    ):
        case.grads.apply(optimizer)
    assert float(case.b) == 1.0
    assert case.w.numpy()[0, 0] != 1.0
    rt.Gradients([(case.b, tf.constant(1.0))]).apply(optimizer)  # the optimizer knows it nonetheless
    assert float(case.b) != 1.0


def test_nothing_to_apply(case: Case) -> None:
    text = (
        r"^None of the variables has a gradient: b\. Compute the loss inside the `with` block, from these variables, w"
    )
    optimizer = keras.optimizers.SGD()
    with pytest.raises(errors.NothingToApplyError, match=text) as caught:
        case.grads.only(case.b).apply(optimizer)
    assert (caught.value.names, caught.value.reasons) == (("b",), ("",))
    assert not optimizer.built
    with pytest.raises(errors.NothingToApplyError, match="there are none"):
        rt.Gradients([]).apply(optimizer)


def test_nothing_to_apply_says_why() -> None:
    unread, other, used = (tf.Variable(1.0, name=name) for name in ("unread", "other", "used"))
    with rt.Tape() as tape:
        loss = tf.stop_gradient(used) * 2.0
    text = (
        r"^None of the variables has a gradient: unread, other \(it was not read on this tape\), "
        r"used \(`tf.stop_gradient` cuts the path: StopGradient \(.*\)\)\. "
        r"Compute the loss inside the `with` block, from these"
    )
    with pytest.raises(errors.NothingToApplyError, match=text) as caught:
        tape.backward(loss, [unread, used, other]).apply(keras.optimizers.SGD())
    assert caught.value.names == ("unread", "used", "other")
    assert caught.value.reasons[0] == "it was not read on this tape"


def test_a_step_warns_of_missing_gradients_and_names_the_op_and_the_line() -> None:
    used, stopped, rounded, unread = (tf.Variable(1.5, name=n) for n in ("used", "stopped", "rounded", "unread"))
    with rt.Tape() as tape:
        loss = used * tf.stop_gradient(stopped) * tf.round(rounded)
    line = inspect.currentframe().f_lineno - 1
    grads = tape.backward(loss, [used, stopped, rounded, unread])
    with pytest.warns(errors.MissingGradientWarning) as caught:
        grads.apply(keras.optimizers.SGD(0.1))
    (warning,) = caught
    assert warning.filename == __file__
    assert str(warning.message) == (
        "3 of 4 variables have no gradient and stay as they are: "
        f"stopped (`tf.stop_gradient` cuts the path: StopGradient ({__file__}:{line})), "
        f"rounded (the gradient function of an op on the path returned None: Round ({__file__}:{line})), "
        "unread (it was not read on this tape). "
        "If that is intended, leave them out: `grads.without(*grads.missing).apply(optimizer)`."
    )
    grads.without(*grads.missing).apply(keras.optimizers.SGD(0.1))  # without a warning
    assert f"missing: `tf.stop_gradient` cuts the path: StopGradient ({__file__}:{line})" in str(grads)


class Stopped(keras.Model):
    """Trains its head, and has forgotten a `stop_gradient` before it."""

    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = keras.layers.Dense(2, name="base"), keras.layers.Dense(1, name="head")

    def call(self, x: Any) -> Any:
        return self.head(tf.stop_gradient(self.base(x)))

    def train_step(self, data: Any) -> dict[str, Any]:
        with rt.Tape() as tape:
            loss = self.compute_loss(*data, self(data[0], training=True))
        tape.backward(loss).apply(self.optimizer)
        return {"loss": loss}


@pytest.mark.parametrize("eagerly", [False, True])
def test_fit_warns_too(eagerly: bool) -> None:
    model = Stopped()
    model.compile("sgd", "mse", run_eagerly=eagerly)
    place = rf"{__file__}:{inspect.getsourcelines(Stopped.call)[1] + 1}"
    names = r"2 of 4 variables have .*base/kernel, .*base/bias"
    text = rf"{names} \(`tf.stop_gradient` cuts the path: StopGradient \({place}\)\)"
    with pytest.warns(errors.MissingGradientWarning, match=text):
        model.fit(tf.ones([4, 3]), tf.ones([4, 1]), verbose=0)


def test_an_optimizer_that_was_built_for_other_variables(case: Case) -> None:
    optimizer = keras.optimizers.Adam()
    case.grads.only(case.w).apply(optimizer)
    before = case.w.numpy()
    text = r"^The optimizer was built for w, and not for table\. Build it for all of them before the first step: `opt"
    with pytest.raises(errors.UnknownVariableError, match=text) as caught:
        case.grads.apply(optimizer)
    assert (caught.value.name, caught.value.known) == ("table", ("w",))
    np.testing.assert_array_equal(case.w, before)


def test_tensors_are_not_applied(case: Case) -> None:
    x = tf.ones([2])
    grads = case.grads + rt.Gradients([(x, x)])
    text = r"An optimizer changes variables, and tensor float32\[2\] is a tensor; use `only\(\*variables\)`\."
    with pytest.raises(TypeError, match=text):
        grads.apply(keras.optimizers.SGD())


OPTIMIZERS = {
    "Adam": lambda: keras.optimizers.Adam(0.05),
    "RMSprop": lambda: keras.optimizers.RMSprop(0.05),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9),
    "a norm for each": lambda: keras.optimizers.SGD(1.0, clipnorm=1.0),
    "a norm for all": lambda: keras.optimizers.SGD(1.0, global_clipnorm=1.0),
    "bounds": lambda: keras.optimizers.SGD(1.0, clipvalue=1.0),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_repeated_rows_are_what_they_are_for_the_optimizer(name: str) -> None:
    after = []
    for way in ("apply", "stock", "summed"):
        table, optimizer = keras.Variable(tf.ones([4, 2])), OPTIMIZERS[name]()
        for _ in range(2):
            with rt.Tape() as tape, tf.GradientTape() as stock:
                loss = tf.reduce_sum(tf.gather(table, [1, 1, 2]) * [[1.0, 1.0], [-0.5, 1.0], [0.5, 0.5]])
            grads = tape.backward(loss)
            if way == "stock":
                optimizer.apply([stock.gradient(loss, table.value)], [table])
            else:
                (grads.map(tf.convert_to_tensor) if way == "summed" else grads).apply(optimizer)
        after.append(tf.convert_to_tensor(table).numpy())
    np.testing.assert_array_equal(after[0], after[1])
    assert np.array_equal(after[0], after[2]) == (name == "momentum")  # which is linear


def test_apply_inside_a_function() -> None:
    model, twin = dense_model(seed=4), dense_model(seed=4)
    optimizer, stock = keras.optimizers.Adam(0.1), keras.optimizers.Adam(0.1)

    @tf.function
    def step() -> tf.Tensor:
        with rt.Tape() as tape:
            loss = tf.reduce_sum(model(X) ** 2)
        tape.backward(loss, model.trainable_variables).clip(global_norm=1.0).apply(optimizer)
        return loss

    for _ in range(2):
        step()
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(twin(X) ** 2)
        grads, _ = tf.clip_by_global_norm(tape.gradient(loss, [v.value for v in twin.trainable_variables]), 1.0)
        stock.apply(grads, twin.trainable_variables)
    for got, want in zip(model.get_weights(), twin.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_loss_scale_optimizer(case: Case) -> None:
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(1.0), initial_scale=8.0)
    (8.0 * case.grads.without(*case.grads.missing)).apply(optimizer)
    np.testing.assert_allclose(case.w, np.array([[1.0, 2.0], [3.0, -4.0]]) - case.dense["w"])
    np.testing.assert_allclose(case.table, 1.0 - case.dense["table"])
    before = case.w.numpy()
    (np.inf * case.grads.only(case.w).map(tf.ones_like)).apply(optimizer)  # skipped, and scaled less from now on
    np.testing.assert_array_equal(case.w, before)
    assert float(optimizer.dynamic_scale) == 4.0
