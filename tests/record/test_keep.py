"""What a tape keeps changes its memory and nothing else."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import dense, set_segment

KEEPS = ["needed", "all", "leaves", "segments", "disk"]


@pytest.fixture(autouse=True)
def many_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    set_segment(monkeypatch, 50)


def same(found: Any, wanted: Any) -> None:
    found, wanted = tf.nest.flatten(found), tf.nest.flatten(wanted)
    for one, other in zip(found, wanted, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            np.testing.assert_array_equal(dense(one), dense(other))


def answers(keep: str, program: Callable[[rt.Tape], Callable[[], Any]]) -> Any:
    """Run a program under a tape of its own, and then ask what the program wants to know."""
    tf.random.set_seed(5)
    keras.utils.set_random_seed(5)
    tape = rt.Tape(keep=keep)
    return program(tape)()


def check(program: Callable[[rt.Tape], Callable[[], Any]]) -> None:
    wanted = answers("all", program)
    assert any(item is not None for item in tf.nest.flatten(wanted))
    for keep in ("needed", "leaves", "segments", "disk"):
        same(answers(keep, program), wanted)


# ------------------------------------------------------------------ the same answers


def chain(tape: rt.Tape) -> Callable[[], Any]:
    x, v = tf.constant([0.3, -0.8]), tf.Variable([1.0, 2.0])
    with tape:
        hidden = tf.tanh(x * v)
        y = tf.reduce_sum(tf.exp(hidden) * tf.nn.softmax(hidden) * v)
    return lambda: [tape.gradient(y, [x, v, hidden]), tape.hessian(y, x), tape.hvp(y, v, x), tape.gradient(y, x)]


def model(tape: rt.Tape) -> Callable[[], Any]:
    layers = [
        keras.layers.Dense(8, activation="gelu"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.5, seed=3),
        keras.layers.Dense(3),
    ]
    net = keras.Sequential([keras.Input([5]), *layers])
    x = tf.random.stateless_normal([6, 5], [1, 2])
    with tape:
        loss = tf.reduce_mean(net(x, training=True) ** 2)
    return lambda: [tape.gradient(loss, net.trainable_variables), tape.gradient(loss, x)]


def draws(tape: rt.Tape) -> Callable[[], Any]:
    x = tf.ones([50])
    with tape:
        noisy = tf.nn.dropout(x, 0.5) * tf.random.normal([50]) + tf.random.uniform([50]) * x
        y = tf.reduce_sum(tf.sin(noisy))
    return lambda: [tape.gradient(y, x), tape.gradient(y, noisy), tape.hvp(y, x, x)]


def updates(tape: rt.Tape) -> Callable[[], Any]:
    v, x = tf.Variable([1.0, 2.0, 3.0]), tf.constant([0.5, 0.7, -0.2])
    with tape:
        for _ in range(3):
            v.assign_sub(0.1 * tf.tanh(v * x))
            v.scatter_mul(tf.IndexedSlices(x[:1], tf.constant([1])))
            v[2:].assign(v[:1] * x[:1])
        y = tf.reduce_sum(v * v)

    def ask() -> Any:
        v.assign([100.0, 100.0, 100.0])
        return [tape.gradient(y, [v, x], through_updates=True), tape.gradient(y, [tape.at(v, k) for k in range(9)])]

    return ask


def optimizer(tape: rt.Tape) -> Callable[[], Any]:
    w, x = keras.Variable([1.0, 2.0]), tf.constant([0.5, 0.7])
    adam = keras.optimizers.Adam(0.1)
    adam.build([w])
    with tape:
        for _ in range(2):
            adam.apply([tape.gradient(tf.reduce_sum(tf.cos(w * x)), w)], [w])
        y = tf.reduce_sum(w**2)

    def ask() -> Any:
        w.assign([0.0, 0.0])
        adam.learning_rate.assign(7.0)
        return tape.gradient(y, [w, x, adam.learning_rate], through_updates=True)

    return ask


def functions(tape: rt.Tape) -> Callable[[], Any]:
    v, x = tf.Variable([1.0, 2.0]), tf.constant([0.5, 0.7])
    f = tf.function(lambda x: tf.nn.silu(x * v) * tf.random.uniform([2]))
    g = tf.function(lambda x: v.assign_add(x * v))
    with tape:
        hidden = f(tf.sin(x))
        g(hidden * x)
        y = tf.reduce_sum(v * hidden)

    def ask() -> Any:
        v.assign([100.0, 100.0])
        return [tape.gradient(y, [v, x]), tape.gradient(y, [v, x], through_updates=True)]

    return ask


def stateful(tape: rt.Tape) -> Callable[[], Any]:
    generator = tf.random.Generator.from_seed(4)
    x = tf.ones([5])
    with tape:
        y = tf.reduce_sum(tf.exp(generator.normal([5]) * x) * generator.uniform([5]))
    generator.normal([5])  # moves on: the state that was is gone
    return lambda: tape.gradient(y, x)


def between_updates(tape: rt.Tape) -> Callable[[], Any]:
    v, w = tf.Variable(tf.linspace(0.5, 1.0, 20)), tf.Variable(tf.linspace(1.0, 0.2, 20))
    x = tf.linspace(0.2, 0.7, 20)
    with tape:
        early = tf.sin(x)  # of the first segment, used in every one
        for step in range(3):
            v.assign(tf.tanh(v * w) + early)
            w.assign_add(0.1 * float(step) * tf.exp(-v))
            v.scatter_update(tf.IndexedSlices(early[:2] * w[3:5], tf.constant([1, 7])))
        y = tf.reduce_sum(v * w * early)

    def ask() -> Any:
        v.assign(tf.zeros([20]))
        return [
            tape.gradient(y, [v, w, x, early], through_updates=True),
            tape.gradient(y, [v, w, x, early]),
            tape.gradient(y, [v, w], through_updates=True, since=-2),
            tape.gradient(y, [tape.at(v, 3), tape.at(w, -1), tape.at(v, 0)]),
            tape.hvp(y, [v, x], [x, x], through_updates=True),
            tape.jvp(y, [w], [x], through_updates=True),
            [version.value for variable in (v, w) for version in tape.versions(variable)],
        ]

    return ask


def trained(tape: rt.Tape) -> Callable[[], Any]:
    w, x = tf.Variable(tf.linspace(0.5, 1.0, 12)), tf.linspace(0.2, 0.7, 12)
    rate = tf.constant(0.1)
    with tape:
        for _ in range(4):
            loss = tf.reduce_sum(tf.sin(w * x) ** 2)
            w.assign_sub(rate * tape.gradient(loss, w))  # asked while the tape records, and recorded itself
        last = tf.reduce_sum(tf.sin(w * x) ** 2)
    return lambda: [
        tape.gradient(last, [w, x, rate], through_updates=True),
        tape.gradient(last, rate, through_updates=True, since=-2),
        tape.hvp(last, rate, tf.constant(1.0), through_updates=True),
    ]


PROGRAMS = {
    f.__name__: f for f in (chain, model, draws, updates, optimizer, functions, stateful, between_updates, trained)
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_do_not_depend_on_what_is_kept(name: str):
    check(PROGRAMS[name])


# ------------------------------------------------------------------ recorded draws


@pytest.mark.parametrize("keep", KEEPS)
def test_dropout_mask_is_the_recorded_one(keep: str):
    x = tf.ones([1000])
    layer = keras.layers.Dropout(0.5)
    with rt.Tape(keep=keep) as tape:
        dropped = layer(x, training=True)
        again = tf.nn.dropout(dropped, 0.5)
        y = tf.reduce_sum(again * again)
    layer(x, training=True)  # draws anew and moves the state
    wanted = 2 * again.numpy() * again.numpy()  # x is one: the slope is the factor, 4 or 0
    np.testing.assert_array_equal(tape.gradient(y, x), wanted)
    assert 0 < np.count_nonzero(wanted) < 1000
    np.testing.assert_array_equal(tape.gradient(y, x), wanted)  # and the same when asked again


@pytest.mark.parametrize("keep", KEEPS)
def test_changed_variables_change_no_answer(keep: str):
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape(keep=keep) as tape:
        y = tf.exp(v * x / 4.0) * v
    v.assign(50.0)
    wanted = np.exp(1.5) * (1 + 2.0 * 3.0 / 4.0)
    np.testing.assert_allclose(float(tape.gradient(y, v)), wanted, rtol=1e-6)
    assert float(tape.versions(v)[0].value) == 2.0


@pytest.mark.parametrize("keep", KEEPS)
def test_versions_are_computed_again(keep: str):
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape(keep=keep) as tape:
        for _ in range(4):
            v.assign(tf.sqrt(v * x))
    v.assign(0.0)
    values = [2.0]
    for _ in range(4):
        values.append(np.sqrt(values[-1] * 3.0))
    np.testing.assert_allclose([float(version.value) for version in tape.versions(v)], values, rtol=1e-6)


# ------------------------------------------------------------------ memory


def held(keep: str, program: Callable[[], Any]) -> int:
    with rt.Tape(keep=keep) as tape:
        result = program()
    size = tape.memory().bytes
    del result
    return size


def deep() -> tf.Tensor:
    x = tf.ones([100, 100])
    for _ in range(20):
        x = tf.tanh(x @ x) + tf.exp(-x)
    return tf.reduce_sum(x)


def unrolled() -> tf.Tensor:
    v = tf.Variable(tf.ones([100, 100]))
    for _ in range(20):
        v.assign_sub(0.1 * tf.tanh(v * v))
    return tf.reduce_sum(v)


def test_leaves_are_few():
    size = 100 * 100 * 4
    assert held("leaves", deep) < 2 * size
    assert held("needed", deep) > 20 * size
    assert held("all", deep) > 60 * size
    assert held("leaves", deep) < held("needed", deep) < held("all", deep)


def test_leaves_are_few_through_updates():
    # The increments are what the values are computed from: they stay, or can be computed again.
    assert held("leaves", unrolled) < held("all", unrolled) / 2


def test_draws_are_leaves():
    def program() -> tf.Tensor:
        x = tf.ones([100, 100])
        for _ in range(5):
            x = tf.tanh(tf.nn.dropout(x, 0.3))
        return tf.reduce_sum(x)

    size = 100 * 100 * 4
    assert 5 * size <= held("leaves", program) < 8 * size


def test_segments_are_between_leaves_and_needed():
    assert held("leaves", deep) < held("segments", deep) < held("needed", deep) / 1.5


def test_disk_holds_little_and_loses_nothing():
    size = 100 * 100 * 4
    x = tf.ones([100, 100])
    with rt.Tape(keep="disk") as tape:
        for _ in range(20):
            x = tf.tanh(0.01 * x)
    memory = tape.memory()
    assert memory.bytes < 3 * size
    assert memory.away == 20 * size


def test_asking_keeps_nothing():
    with rt.Tape(keep="leaves") as tape:
        x = tf.ones([100, 100])
        y = tf.reduce_sum(tf.tanh(tf.tanh(tf.tanh(x))))
    before = tape.memory().bytes
    tape.gradient(y, x)
    tape.hvp(y, x, x)
    assert tape.memory().bytes <= before + 100 * 100 * 4


def test_unknown_keep():
    with pytest.raises(
        ValueError, match="keep must be one of 'needed', 'all', 'leaves', 'segments', 'disk', got 'some'"
    ):
        rt.Tape(keep="some")


@pytest.mark.parametrize("keep", KEEPS)
def test_a_function_that_uses_what_was_assigned_before_it(keep: str):
    # The assigned value is looked at only when the block ends; it must still lead back to where it came from.
    a, b, x = tf.Variable(2.0), tf.Variable(3.0), tf.constant(0.5)
    update = tf.function(lambda d: a.assign(a * d + b))
    with rt.Tape(keep=keep) as tape:
        b.assign(x * 4.0)
        update(x)
        y = a * a
    # a = 2 x + 4 x = 3, dy/dx = 2 · 3 · 6
    assert float(tape.gradient(y, x, through_updates=True)) == 36.0
    assert float(tape.hvp(y, x, tf.constant(1.0), through_updates=True)) == 72.0


@pytest.mark.parametrize("keep", KEEPS)
def test_an_outer_tape_knows_what_an_inner_one_looked_at_last(keep: str):
    v, x = tf.Variable(1.0), tf.constant(3.0)
    with rt.Tape() as outer:
        with rt.Tape(keep=keep) as inner:
            v.assign(x * 2.0)
            y = v**3 * x
        direct = inner.gradient(y, x)  # v³ = 8 x³
        total = inner.gradient(y, x, through_updates=True)  # d(8 x⁴)/dx = 32 x³
    assert (float(direct), float(total)) == (216.0, 864.0)
    assert float(outer.gradient(direct, x, through_updates=True)) == 216.0
    assert float(outer.gradient(total, x, through_updates=True)) == 864.0
