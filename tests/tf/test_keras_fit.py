"""What is observed of `fit`, and put back."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

from retrotape.errors import IncompatibleTensorFlowError
from retrotape.tf import keras_fit, private_names
from retrotape.tf.keras_fit import callbacks_around, check_fit, is_running, make_train_function, observed_losses


def small(**options):
    model = keras.Sequential([keras.Input([3]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", **options)
    return model


@pytest.mark.parametrize(
    "options", [{}, {"run_eagerly": True}, {"steps_per_execution": 3}, {"jit_compile": True}], ids=str
)
def test_every_batch_passes_once_and_before_its_step(options):
    model, seen = small(**options), []

    def on_batch(data):
        def see(x):
            time.sleep(0.01)  # the step would overtake it
            seen.append((float(x[0, 0]), int(model.optimizer.iterations.numpy())))

        noted = tf.py_function(see, [data[0]], [])
        return [] if tf.executing_eagerly() else [noted]

    function = make_train_function(model, on_batch)
    assert model.train_function is None
    assert not {"_autoconvert_optionals", "make_train_function"} & vars(model).keys()
    x = np.repeat(np.arange(7, dtype="f4"), 3).reshape(7, 3)
    data = iter(tf.data.Dataset.from_tensor_slices((x, np.ones([7, 1], "f4"))).batch(1))
    while len(seen) < 7:
        function(data)
    assert seen == [(number, number) for number in range(7)]


def test_a_missing_name_is_reported_with_the_version_of_keras(monkeypatch):
    monkeypatch.setitem(private_names.FIT, "keras:Model._not_there_any_more(self)", "a test")
    with pytest.raises(
        IncompatibleTensorFlowError, match=rf"Keras {keras.__version__}.*there is no keras.Model._not_there"
    ):
        check_fit(keras)


def test_this_keras_has_what_is_needed():
    check_fit(keras)


def test_losses_and_targets_are_observed_and_the_methods_put_back():
    model, losses, targets = small(), [], []
    gradient = tf.GradientTape.gradient
    with observed_losses(model, losses.append, targets.append):
        model.train_step((tf.ones([2, 3]), tf.ones([2, 1])))
    assert len(losses) == len(targets) == 1
    assert "compute_loss" not in vars(model)
    assert tf.GradientTape.gradient is gradient
    with pytest.raises(ZeroDivisionError), observed_losses(model, losses.append, targets.append):
        raise ZeroDivisionError
    assert tf.GradientTape.gradient is gradient
    assert "compute_loss" not in vars(model)


def test_two_threads_that_observe_at_once_put_the_method_back():
    gradient, seen = tf.GradientTape.gradient, []
    first, second = (observed_losses(small(), print, seen.append) for _ in range(2))
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)  # before the second, which began later
    x = tf.Variable(2.0)
    with tf.GradientTape() as tape:
        y = x * x
    assert float(tape.gradient(y, x)) == 4.0
    second.__exit__(None, None, None)
    assert seen == [y]
    assert tf.GradientTape.gradient is gradient


def test_a_fit_is_running_until_it_returns_or_raises():
    model, lists, seen = small(), [], []

    class Look(keras.callbacks.Callback):
        def on_train_begin(self, logs=None):
            lists.append(callbacks_around())

        def on_train_batch_end(self, batch, logs=None):
            seen.append(is_running(lists[-1]))
            with ThreadPoolExecutor() as other:
                seen.append(other.submit(is_running, lists[-1]).result())

        def on_epoch_end(self, epoch, logs=None):
            if len(lists) == 2:
                raise ZeroDivisionError

    data = np.ones([2, 3]), np.ones([2, 1])
    model.fit(*data, verbose=0, callbacks=[Look()])
    with pytest.raises(ZeroDivisionError) as held:
        model.fit(*data, verbose=0, callbacks=[Look()])
    assert seen == [True] * 4
    assert [is_running(callbacks) for callbacks in lists] == [False, False]
    del held


def test_a_model_with_a_function_of_its_own_is_recognized():
    class Own(keras.Model):
        def make_train_function(self, force=False):
            self.train_function = len

    model = Own()
    assert make_train_function(model, print) is None
    assert not keras_fit.is_of_keras(len)
    assert keras_fit.is_of_keras(None)
