"""The examples that learn through updates: their numbers, by other routes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from docs.running import PICTURES, assert_picture, run, run_in

# ------------------------------------------------------------------ higher orders, and through updates


def test_second_order():
    numbers = run("second_order").numbers
    assert [numbers[name] for name in ("first", "second", "third", "hvp")] == [12.0, 12.0, 6.0, 12.0]
    np.testing.assert_allclose(numbers["hessian"], [[802.0, -400.0], [-400.0, 200.0]], rtol=1e-12)
    np.testing.assert_allclose(numbers["along"], [2.0, 0.0], atol=1e-9)


def test_through_a_step():
    numbers = run("through_a_step").numbers
    assert numbers["one step"] == pytest.approx(-16.0, abs=1e-5)
    for name in ("SGD", "momentum", "Adam", "RMSprop"):
        exact, difference = numbers[name]
        assert exact == pytest.approx(difference, rel=2e-3), name
    assert numbers["w.r.t. the first x"] == 4.0
    assert numbers["step by step"] == [0.0, 2.0, 4.0]
    assert numbers["after reset"] == 5.0


def test_pinn_solves_its_equation():
    numbers = run("pinn").numbers
    assert numbers["last"] < 0.01 * numbers["first"]
    assert numbers["error"] < 0.02


# ------------------------------------------------------------------ learning to learn


def test_maml_learns():
    numbers = run("maml").numbers
    assert numbers["last"] < 0.5 * numbers["first"]


def test_maml_adapts_to_a_wave_it_has_never_seen():
    fresh, learned = run("maml").numbers["waves"].values()
    error = float(np.mean((learned["after"] - 1.5 * np.sin(learned["grid"] + 0.3)) ** 2))
    assert learned["losses"][1] == pytest.approx(error)
    assert error < 0.1 * learned["losses"][0]
    assert error < 0.4 * fresh["losses"][1]


def net(params: list[tf.Tensor], x: tf.Tensor) -> tf.Tensor:
    """The model of `maml.py` as a pure function of its weights."""
    *hidden, kernel, bias = params
    for inner_kernel, inner_bias in zip(hidden[::2], hidden[1::2], strict=True):
        x = tf.tanh(x @ inner_kernel + inner_bias)
    return x @ kernel + bias


def adapted(params: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor, steps: int, rate: float) -> list[tf.Tensor]:
    for _ in range(steps):
        with tf.GradientTape() as tape:
            tape.watch(params)
            loss = tf.reduce_mean((net(params, x) - y) ** 2)
        grads = tape.gradient(loss, params)
        params = [param - rate * grad for param, grad in zip(params, grads, strict=True)]
    return params


def by_hand(params: list[tf.Tensor], x: tf.Tensor, y: tf.Tensor, steps: int, rate: float) -> tuple[Any, list]:
    """Return the meta-gradient as it has to be written without a tape that sees updates."""
    with tf.GradientTape() as outer:
        outer.watch(params)
        after = adapted(params, x[0], y[0], steps, rate)
        query_loss = tf.reduce_mean((net(after, x[1]) - y[1]) ** 2)
    return query_loss, outer.gradient(query_loss, params)


@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "function"])
def test_maml_has_the_meta_gradient_of_a_functional_version(compiled):
    maml = run("maml").module
    model, rate = maml.make_model(seed=7), 0.05
    inner = maml.keras.optimizers.SGD(rate)
    inner.build(model.trainable_variables)
    start = [tf.constant(value) for value in model.get_weights()]
    x, y = maml.sine_wave(np.random.default_rng(7))
    ask = tf.function(maml.meta_gradient) if compiled else maml.meta_gradient
    loss, grads = ask(model, inner, x, y)
    expected_loss, expected = by_hand(start, x, y, maml.INNER_STEPS, rate)
    assert float(loss) == pytest.approx(float(expected_loss), rel=1e-5)
    for got, want in zip(grads, expected, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    for now, before in zip(model.get_weights(), start, strict=True):
        np.testing.assert_array_equal(now, before)


def test_maml_meta_gradient_is_not_the_first_order_one():
    """The test above must be able to fail: without second derivatives the answer is another one."""
    maml = run("maml").module
    start = [tf.constant(value) for value in maml.make_model(seed=7).get_weights()]
    x, y = maml.sine_wave(np.random.default_rng(7))
    _, second_order = by_hand(start, x, y, maml.INNER_STEPS, 0.05)
    after = adapted(start, x[0], y[0], maml.INNER_STEPS, 0.05)
    _, first_order = by_hand(after, x, y, 0, 0.05)
    gaps = [float(tf.reduce_max(tf.abs(a - b))) for a, b in zip(first_order, second_order, strict=True)]
    assert max(gaps) > 1e-2


def test_learned_rate_finds_a_better_one():
    numbers = run("learned_rate").numbers
    assert numbers["losses"][-1] < 0.5 * numbers["losses"][0]
    assert numbers["rates"][-1] > numbers["rates"][0]


def test_learned_rate_has_the_derivative_of_a_finite_difference():
    example, rate, gap = run("learned_rate").module, 0.004, 4e-5
    _, by_rate = example.run(rate)
    difference = (example.run(rate + gap)[0] - example.run(rate - gap)[0]) / (2.0 * gap)
    assert by_rate == pytest.approx(difference, rel=1e-2)  # single precision


# ------------------------------------------------------------------ which data do harm


def test_data_weights_tell_wrong_labels_from_right_ones():
    example, numbers, _ = run("data_weights")
    assert set(numbers["order"][: len(example.WRONG)]) == set(example.WRONG)
    assert (numbers["harm"][example.WRONG] > 0.0).all()


@pytest.mark.parametrize("example", [8, 27, 0])
def test_data_weights_have_the_derivative_of_a_finite_difference(example):
    module, numbers, _ = run("data_weights")
    gap = 1e-3 * tf.one_hot(example, module.EXAMPLES, dtype=tf.float64)
    ones = tf.ones_like(gap)
    more, less = (float(module.train(ones + sign * gap)[1]) for sign in (1.0, -1.0))
    assert numbers["harm"][example] == pytest.approx((more - less) / 2e-3, rel=1e-4)


@pytest.mark.parametrize("name", [name for name in run_in(__file__) if name in PICTURES])
def test_picture(name, tmp_path):
    assert_picture(name, tmp_path)
