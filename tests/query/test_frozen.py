"""Frozen layers: what Keras says is not to be trained is no default source, and no step changes it."""

from __future__ import annotations

import gc
import json
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from click.testing import CliRunner

import retrotape as rt
from retrotape.cli import main
from retrotape.tf import hook_table, keras_api

X = tf.constant([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]])


class Net:
    """A base that is frozen and a head that is not."""

    def __init__(self) -> None:
        keras.utils.set_random_seed(1)
        self.base, self.head = keras.layers.Dense(4, name="base"), keras.layers.Dense(1, name="head")
        self(X)
        self.base.trainable = False

    def __call__(self, x: Any) -> tf.Tensor:
        return tf.reduce_mean((self.head(self.base(x)) - 5.0) ** 2)

    def weights(self, *layers: str) -> list[int]:
        """Return the identities of the variables of these layers, in the order of their reads."""
        return [id(v._value) for name in layers for v in getattr(self, name).variables]


@pytest.fixture
def net() -> Net:
    return Net()


def inner(keys: Any) -> list[int]:
    return sorted(id(getattr(key, "_value", key)) for key in keys)


def test_a_frozen_layer_is_no_default_source_and_no_step_changes_it(net: Net) -> None:
    with rt.Tape() as tape:
        loss = net(X)
    grads = tape.backward(loss)
    assert inner(grads.keys()) == sorted(net.weights("head"))
    before = [v.numpy() for v in net.base.variables]
    kernel = net.head.kernel.numpy()
    grads.apply(keras.optimizers.SGD(0.1))
    assert all((v.numpy() == old).all() for v, old in zip(net.base.variables, before, strict=True))
    assert (net.head.kernel.numpy() != kernel).any()


def test_every_query_with_default_sources_leaves_it_out(net: Net) -> None:
    with rt.Tape() as tape:
        loss = net(X)
        other = 2.0 * loss
    wanted = sorted(net.weights("head"))
    assert [inner(row.keys()) for row in tape.backward_each([loss, other])] == [wanted, wanted]
    assert inner(source for source, _ in tape.stream(loss)) == wanted
    assert inner(rt.accumulate(net, [X]).gradients.keys()) == wanted
    assert [inner(one.keys()) for one in rt.backward_all([tape], [loss])] == [wanted]
    assert inner(rt.join(tape).backward(loss).keys()) == wanted
    assert inner(tape.replay([(X, 2.0 * X)]).backward(loss).keys()) == wanted


def test_named_sources_have_gradients_and_are_trained_as_by_the_optimizer_itself(net: Net) -> None:
    with rt.Tape() as tape, tf.GradientTape() as stock:
        loss = net(X)
    variables = [*net.base.variables, *net.head.variables]
    grads = tape.backward(loss, variables)
    expected = stock.gradient(loss, [v.value for v in variables])
    for variable, want in zip(variables, expected, strict=True):
        np.testing.assert_allclose(grads[variable], want, rtol=1e-6)
    before = net.base.kernel.numpy()
    grads.apply(keras.optimizers.SGD(0.1))  # `optimizer.apply` takes what it is given, frozen or not
    np.testing.assert_allclose(net.base.kernel.numpy(), before - 0.1 * expected[0].numpy(), rtol=1e-5, atol=1e-6)


def test_what_counts_is_what_keras_says_at_the_time_of_the_query(net: Net) -> None:
    with rt.Tape() as tape:
        loss = net(X)
    net.base.trainable = True
    assert inner(tape.backward(loss).keys()) == sorted(net.weights("base", "head"))
    net.head.trainable = False
    assert inner(tape.backward(loss).keys()) == sorted(net.weights("base"))


def test_a_layer_that_was_frozen_before_it_had_weights() -> None:
    layer = keras.layers.Dense(2, trainable=False)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(X))
    assert tape.backward(loss).keys() == []


def test_a_variable_of_its_own() -> None:
    first, second = keras.Variable(2.0), keras.Variable(3.0)
    first.trainable = False
    with rt.Tape() as tape:
        loss = first * second
    assert inner(tape.backward(loss).keys()) == [id(second._value)]


def test_a_model_that_is_gone(net: Net) -> None:
    wanted = sorted(net.weights("head"))
    with rt.Tape() as tape:
        loss = net(X)
    del net
    gc.collect()
    assert inner(tape.backward(loss).keys()) == wanted


def test_inside_a_function(net: Net) -> None:
    found = []

    @tf.function
    def step(x: tf.Tensor) -> list[tf.Tensor]:
        with rt.Tape() as tape:
            loss = net(x)
        grads = tape.backward(loss)
        found.append(inner(grads.keys()))
        return grads.values()

    values = step(X)
    assert found == [sorted(net.weights("head"))]
    assert len(values) == 2


@pytest.mark.parametrize("inside", [False, True], ids=["eager", "in a function"])
def test_a_function_that_was_traced_before_the_tape(net: Net, inside: bool) -> None:
    known = tf.function(lambda x: net(x))
    known(X)
    found = []

    def step(x: tf.Tensor) -> tf.Tensor:
        with rt.Tape() as tape:
            loss = known(x)
        found.append(inner(tape.backward(loss).keys()))
        return loss

    (tf.function(step) if inside else step)(X)
    assert found == [sorted(net.weights("head"))]


def test_a_compiled_model_that_was_traced_before_the_tape() -> None:
    model = keras.Sequential([keras.layers.Dense(4), keras.layers.Dense(1)])
    model(X)
    model.layers[0].trainable = False
    model.compile("sgd", "mse")
    model.fit(X, tf.ones([2, 1]), verbose=0)
    with rt.Tape() as tape:
        model.fit(X, tf.ones([2, 1]), verbose=0)
        loss = tf.reduce_sum(model.layers[1](tf.ones([1, 4])))
    assert inner(tape.backward(loss).keys()) == inner(model.trainable_variables)


class Frozen(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = keras.layers.Dense(4), keras.layers.Dense(1)

    def call(self, x: tf.Tensor) -> tf.Tensor:
        return self.head(self.base(x))

    def train_step(self, data: Any) -> dict[str, tf.Tensor]:
        x, y = data
        with rt.Tape() as tape:
            loss = self.compute_loss(x, y, self(x, training=True))
        tape.backward(loss).apply(self.optimizer)
        return {"loss": loss}


@pytest.mark.parametrize("eagerly", [False, True])
def test_a_train_step_in_fit(eagerly: bool) -> None:
    model = Frozen()
    model(X)
    model.base.trainable = False
    model.compile("sgd", "mse", run_eagerly=eagerly)
    frozen, trained = model.base.kernel.numpy(), model.head.kernel.numpy()
    model.fit(X, tf.ones([2, 1]), verbose=0)
    assert (model.base.kernel.numpy() == frozen).all()
    assert (model.head.kernel.numpy() != trained).any()


# ------------------------------------------------------------------ what is said


def test_the_summary_says_what_is_frozen(net: Net) -> None:
    with rt.Tape() as tape:
        net(X)
    assert tape.summary().frozen == ("base/kernel", "base/bias")
    assert str(tape.summary()).endswith("\nfrozen: base/kernel, base/bias")
    assert tape.summary().to_json()["frozen"] == ["base/kernel", "base/bias"]
    net.base.trainable = True
    assert tape.summary().frozen == ()
    assert "\nfrozen:" not in str(tape.summary())


def test_what_was_never_meant_to_be_trained_is_not_called_frozen() -> None:
    layer = keras.layers.BatchNormalization()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(X))
    assert tape.summary().frozen == ()
    assert inner(tape.backward(loss).keys()) == inner([layer.gamma, layer.beta])


def test_many_frozen_variables_are_counted() -> None:
    layers = [keras.layers.Dense(3, trainable=False) for _ in range(5)]
    with rt.Tape() as tape:
        keras.Sequential(layers)(X)
    assert str(tape.summary()).endswith(", … 4 more")
    assert len(tape.summary().frozen) == 10


def test_a_file_says_what_was_frozen_when_it_was_saved(net: Net, tmp_path: Any) -> None:
    path = str(tmp_path / "net.tape")
    with rt.Tape() as tape:
        loss = net(X)
    tape.save(path, {"loss": loss})
    net.base.trainable = True
    loaded = rt.load(path)
    assert [key.name for key in loaded.backward("loss").keys()] == ["head/kernel", "head/bias"]
    assert loaded.summary().frozen == ("base/kernel", "base/bias")
    assert {v.name: (v.trainable, v.frozen) for v in loaded.variables}["base/kernel"] == (False, True)
    loaded.save(path, {"loss": loaded["loss"]})  # and says so again
    assert rt.load(path).summary().frozen == ("base/kernel", "base/bias")

    shown = CliRunner().invoke(main, ["show", path]).output
    assert "variable, frozen" in next(line for line in shown.split("\n") if "base/kernel" in line)
    assert "variable, trainable" in next(line for line in shown.split("\n") if "head/kernel" in line)
    names = json.loads(CliRunner().invoke(main, ["show", path, "--json"]).output)["names"]
    assert {row["name"]: row.get("frozen") for row in names} == {
        "loss": None,
        "base/kernel": True,
        "base/bias": True,
        "head/kernel": False,
        "head/bias": False,
    }
    by_default = CliRunner().invoke(main, ["grad", path, "loss"]).output
    assert "head/kernel" in by_default
    assert "base/kernel" not in by_default


# ------------------------------------------------------------------ how it is known


def test_keras_is_left_exactly_as_it_was(net: Net) -> None:
    (owner,) = [cls for cls in keras.Variable.__mro__ if "value" in vars(cls)]

    def parts() -> list[Any]:
        call = vars(keras.Layer)["__call__"]
        return [vars(owner)["value"], call, *(cell.cell_contents for cell in call.__closure__)]

    before = parts()
    with rt.Tape():
        assert parts()[0] is not before[0]
        assert parts()[1:] != before[1:]
        with rt.Tape():
            net(X)
    assert parts() == before
    with pytest.raises(ValueError, match="incompatible"), rt.Tape():
        net.base(tf.ones([2, 7]))
    assert parts() == before


def test_layer_calls_are_recorded_if_nothing_wraps_call(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = vars(keras.Layer)["__call__"].__wrapped__
    monkeypatch.setattr(keras.Layer, "__call__", plain)
    monkeypatch.setattr(keras_api, "_hooked", None)
    monkeypatch.setattr(hook_table, "hooks", [hook for hook in hook_table.hooks if hook.name != "function"])
    with rt.Tape() as tape:
        assert vars(keras.Layer)["__call__"] is not plain
        net(X)
    assert vars(keras.Layer)["__call__"] is plain
    assert {"base", "head"} <= {row.layer for row in tape.summary().rows}


def test_what_somebody_else_puts_there_meanwhile_stays(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    before = vars(keras.Layer)["__call__"]
    with rt.Tape() as tape:
        ours = vars(keras.Layer)["__call__"]

        def theirs(self: Any, *args: Any, **kwargs: Any) -> Any:
            return ours(self, *args, **kwargs)

        keras.Layer.__call__ = theirs
        loss = net(X)
    assert vars(keras.Layer)["__call__"] is theirs
    assert float(net(X)) == float(loss)
    assert len(tape.backward(loss)) == 2
    keras.Layer.__call__ = before


def test_the_heap_is_not_walked(net: Net, monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    def refuse(*_: Any) -> Any:
        raise AssertionError("the heap was walked")

    for name in ("get_objects", "get_referrers", "get_referents"):
        monkeypatch.setattr(gc, name, refuse)
    with rt.Tape() as tape:
        loss = net(X)
    assert len(tape.backward(loss)) == 2
    tape.save(tmp_path / "net.tape", {"loss": loss})
    assert "base/kernel" in rt.load(tmp_path / "net.tape").names
