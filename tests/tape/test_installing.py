"""This tape in the place of `tf.GradientTape`: where it is put, that it is taken back, and that others run on it."""

from __future__ import annotations

import threading

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow.compat.v1 as tf1
import tensorflow.compat.v2 as tf2
from tensorflow import GradientTape as TAKEN_BEFORE

import retrotape as rt
from retrotape.tf import core

PLACES = (tf, tf.autodiff, tf.compat.v1, tf.compat.v2, tf.compat.v2.autodiff, tf1, tf2, tf2.autodiff)


def everywhere() -> set[type]:
    return {place.GradientTape for place in PLACES}


@pytest.fixture(autouse=True)
def nothing_is_left():
    assert everywhere() == {TAKEN_BEFORE}
    yield
    rt.uninstall()
    assert everywhere() == {TAKEN_BEFORE}


# ------------------------------------------------------------------ put there and taken back


def test_every_public_place_and_none_of_tensorflows_own():
    rt.install()
    assert everywhere() == {rt.Tape}
    assert core.backprop.GradientTape is TAKEN_BEFORE
    rt.uninstall()
    assert everywhere() == {TAKEN_BEFORE}


def test_twice_is_once():
    rt.install()
    rt.install()
    rt.uninstall()
    assert everywhere() == {TAKEN_BEFORE}
    rt.uninstall()


def test_blocks_within_blocks_and_errors():
    with rt.installed():
        with pytest.raises(ZeroDivisionError), rt.installed():
            raise ZeroDivisionError
        assert everywhere() == {rt.Tape}
    assert everywhere() == {TAKEN_BEFORE}


def test_a_block_does_not_undo_what_was_installed_for_good():
    rt.install()
    with rt.installed():
        pass
    assert everywhere() == {rt.Tape}
    with rt.installed():
        rt.uninstall()
        assert everywhere() == {rt.Tape}
    assert everywhere() == {TAKEN_BEFORE}


def test_blocks_on_several_threads_end_with_the_last_one():
    inside, leave = threading.Event(), threading.Event()

    def other():
        with rt.installed():
            inside.set()
            leave.wait()

    worker = threading.Thread(target=other, daemon=True)
    with rt.installed():
        worker.start()
        inside.wait()
    assert everywhere() == {rt.Tape}
    leave.set()
    worker.join()
    assert everywhere() == {TAKEN_BEFORE}


def test_what_somebody_else_put_there_is_left_alone():
    class Theirs(TAKEN_BEFORE):
        pass

    try:
        tf.GradientTape = Theirs
        with rt.installed():
            assert tf.GradientTape is Theirs
            assert tf2.GradientTape is rt.Tape
        assert tf.GradientTape is Theirs
        tf.GradientTape = TAKEN_BEFORE
        with rt.installed():
            tf.GradientTape = Theirs
        assert tf.GradientTape is Theirs
    finally:
        tf.GradientTape = TAKEN_BEFORE


def test_isinstance_holds_for_both_kinds_while_installed():
    before = tf.GradientTape()
    assert not isinstance(before, rt.Tape)
    with rt.installed():
        ours = tf.GradientTape()
        assert type(ours) is rt.Tape
        assert isinstance(ours, tf.GradientTape)
        assert isinstance(before, tf.GradientTape)
        assert not isinstance(3.0, tf.GradientTape)
        with pytest.raises(rt.errors.TapeUseError, match="join takes tapes, got GradientTape"):
            rt.join(before)
    assert not isinstance(before, rt.Tape)
    assert not isinstance(ours, tf.GradientTape)
    assert isinstance(ours, rt.Tape)


def test_what_was_taken_before_stays_stock():
    with rt.installed(), TAKEN_BEFORE() as tape:
        pass
    assert type(tape) is core.StockTape


# ------------------------------------------------------------------ our own need of the stock tape


@pytest.mark.parametrize("how", ["installed", "assigned by hand"])
def test_functions_updates_and_higher_orders_work_under_it(how, monkeypatch):
    if how == "installed":
        rt.install()
    else:
        monkeypatch.setattr(tf, "GradientTape", rt.Tape)
    v, x = tf.Variable(3.0), tf.constant(2.0)
    cube = tf.function(lambda a: a * a * v)
    with tf.GradientTape() as tape:
        y = cube(x) + cube(v)
        v.assign(v * y)
        table = tf.Variable([1.0, 2.0])
        table.scatter_nd_update([[0]], [v])
        z = tf.reduce_sum(table)
    by_v = tape.gradient(y, v)
    assert float(by_v) == 4.0 + 27.0
    assert float(tape.gradient(by_v, v)) == 18.0
    assert float(tape.gradient(z, v, through_updates=True)) == 39.0 + 3.0 * 31.0
    with tf.GradientTape() as tape:
        _ = tf.constant(60000.0, tf.float16) * tf.cast(x, tf.float16)
    assert tape.first_nonfinite().cause is rt.Cause.HALF_OVERFLOW
    monkeypatch.undo()


def test_the_check_of_an_untried_tensorflow_compares_with_the_stock_tape():
    from retrotape.tf.selftest import check

    with rt.installed():
        check(rt.Tape)


# ------------------------------------------------------------------ other people's code


def trained(compiled: bool) -> list[np.ndarray]:
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile("adam", "mse", run_eagerly=not compiled)
    x = np.random.default_rng(0).normal(size=(32, 4)).astype("float32")
    model.fit(x, x[:, :1], epochs=2, batch_size=8, verbose=0, shuffle=False)
    return model.get_weights()


@pytest.mark.parametrize("compiled", [True, False])
def test_fit_of_keras_trains_the_same(compiled, monkeypatch):
    expected = trained(compiled)
    entered = []
    enter = rt.Tape.__enter__
    monkeypatch.setattr(rt.Tape, "__enter__", lambda self: (entered.append(self), enter(self))[1])
    with rt.installed():
        found = trained(compiled)
    assert entered
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)


def sonnet():
    return pytest.importorskip("sonnet", reason="it is among the requirements of development, not of the oldest ones")


def test_gradients_of_sonnet():
    snt = sonnet()
    net = snt.nets.MLP([5, 1], activation=tf.tanh)
    x = tf.constant(np.linspace(-1.0, 1.0, 6, dtype="float32").reshape(2, 3))
    net(x)

    def loss(data):
        return tf.reduce_sum(net(data) ** 2)

    expected = snt.functional.value_and_grad(loss)(x)
    curved = snt.functional.grad(lambda a: tf.reduce_sum(snt.functional.grad(loss)(a) ** 2))(x)
    with rt.installed():
        value, slope = snt.functional.value_and_grad(loss)(x)
        np.testing.assert_allclose(value, expected[0], rtol=1e-6)
        np.testing.assert_allclose(slope, expected[1], rtol=1e-5)
        second = snt.functional.grad(lambda a: tf.reduce_sum(snt.functional.grad(loss)(a) ** 2))(x)
    np.testing.assert_allclose(second, curved, rtol=1e-5)


def test_a_step_of_sonnets_optimizer():
    snt = sonnet()

    def run() -> list[np.ndarray]:
        tf.random.set_seed(1)
        net = snt.nets.MLP([5, 1])
        optimizer = snt.optimizers.Adam(0.1)
        x = tf.reshape(tf.range(6.0), [2, 3]) / 6.0
        for _ in range(3):
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(net(x) ** 2)
            variables = net.trainable_variables
            optimizer.apply(tape.gradient(loss, variables), variables)
        return [variable.numpy() for variable in net.trainable_variables]

    expected = run()
    with rt.installed():
        found = run()
    for ours, theirs in zip(found, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
