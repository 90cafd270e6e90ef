"""`Gradients.apply` in a loop: the same bits as `optimizer.apply`, whatever happens in between."""

from __future__ import annotations

import copy
import gc
import threading
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.playback import _updates as updates
from retrotape.record import settings

OPTIMIZERS = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "momentum": lambda: keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: keras.optimizers.Adam(0.01),
    "amsgrad": lambda: keras.optimizers.Adam(0.01, amsgrad=True),
    "adamw": lambda: keras.optimizers.AdamW(0.01, clipnorm=0.5),
    "rmsprop": lambda: keras.optimizers.RMSprop(0.01, centered=True, momentum=0.1),
    "adagrad": lambda: keras.optimizers.Adagrad(0.1),
    "adadelta": lambda: keras.optimizers.Adadelta(1.0),
    "adamax": lambda: keras.optimizers.Adamax(0.01),
    "nadam": lambda: keras.optimizers.Nadam(0.01),
    "ftrl": lambda: keras.optimizers.Ftrl(0.01),
    "lion": lambda: keras.optimizers.Lion(0.01),
    "ema": lambda: keras.optimizers.SGD(0.1, use_ema=True, ema_overwrite_frequency=3),
    "global clip": lambda: keras.optimizers.SGD(0.1, global_clipnorm=0.3),
    "accumulation": lambda: keras.optimizers.SGD(0.1, gradient_accumulation_steps=3),
    "schedule": lambda: keras.optimizers.SGD(keras.optimizers.schedules.ExponentialDecay(0.1, 3, 0.5, True)),
    "loss scale": lambda: keras.optimizers.LossScaleOptimizer(
        keras.optimizers.SGD(0.1), initial_scale=8.0, dynamic_growth_steps=4
    ),
}
STEPS = 2 * updates.AFTER


def variables(count: int = 2) -> list[keras.Variable]:
    rng = np.random.default_rng(3)
    return [keras.Variable(rng.normal(size=(3, 2)).astype("f"), name=f"v{number}") for number in range(count)]


def gradients(step: int, count: int = 2) -> list[tf.Tensor]:
    rng = np.random.default_rng(step)
    return [tf.constant(rng.normal(size=(3, 2)).astype("f")) for _ in range(count)]


def is_played_back(optimizer) -> bool:
    known = vars(optimizer).get("_retrotape_updates")
    return known is not None and known.step is not None and any(one.plays for one in known.step.recordings())


class Twins:
    """An optimizer that is used by `Gradients.apply`, and an equal one that is used directly."""

    def __init__(self, make, count: int = 2) -> None:
        self.ours, self.plain = make(), make()
        self.mine, self.theirs = variables(count), variables(count)

    def both(self, change) -> None:
        change(self.ours)
        change(self.plain)

    def step(self, grads, places=None) -> None:
        places = range(len(self.mine)) if places is None else places
        for optimizer, own in ((self.ours, self.mine), (self.plain, self.theirs)):
            if not optimizer.built:
                optimizer.build(own)
        rt.Gradients([(self.mine[place], grads[place]) for place in places]).apply(self.ours)
        self.plain.apply([grads[place] for place in places], [self.theirs[place] for place in places])

    def check(self) -> None:
        for one, other in zip(self.mine, self.theirs, strict=True):
            np.testing.assert_array_equal(one, other)
        for one, other in zip(self.ours.variables, self.plain.variables, strict=True):
            np.testing.assert_array_equal(one, other, err_msg=one.path)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_same_bits_as_the_optimizer(name):
    twins = Twins(OPTIMIZERS[name])
    for step in range(STEPS):
        twins.step(gradients(step))
        twins.check()
    assert is_played_back(twins.ours) == (settings.mode != "never")


CHANGES = {
    "learning_rate": lambda optimizer: setattr(optimizer, "learning_rate", 0.03),
    "clipnorm": lambda optimizer: setattr(optimizer, "clipnorm", 0.2),
    "weight_decay": lambda optimizer: setattr(optimizer, "weight_decay", 0.1),
    "beta_1": lambda optimizer: setattr(optimizer, "beta_1", 0.5),
    "epsilon": lambda optimizer: setattr(optimizer, "epsilon", 0.1),
    "a slot": lambda optimizer: optimizer.variables[-1].assign(tf.ones_like(optimizer.variables[-1])),
    "iterations": lambda optimizer: optimizer.iterations.assign(100),
    "a method": lambda optimizer: setattr(optimizer, "_clip_gradients", lambda grads: [2.0 * one for one in grads]),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_is_changed_in_a_loop_counts(name):
    twins = Twins(OPTIMIZERS["adam"])
    for step in range(STEPS):
        twins.step(gradients(step))
    twins.both(CHANGES[name])
    before = [tf.identity(one) for one in twins.mine]
    for step in range(4):
        twins.step(gradients(step))
        twins.check()
    assert not np.array_equal(before[0], twins.mine[0])


@pytest.mark.parametrize("seed", range(6))
def test_random_loops(seed):
    rng = np.random.default_rng(seed)
    name = rng.choice([one for one in OPTIMIZERS if one != "loss scale"])
    twins = Twins(OPTIMIZERS[name], 3)
    sets = [[0, 1, 2], [0, 2], [1]]
    for step in range(40):
        grads = gradients(100 * seed + step, 3)
        if rng.random() < 0.2:
            values, indices = tf.constant(rng.normal(size=(4, 2)).astype("f")), tf.constant([2, 0, 2, 1])
            grads[1] = tf.IndexedSlices(values, indices, tf.constant([3, 2]))
        if isinstance(grads[1], tf.IndexedSlices):  # `apply` sums duplicates first, which the optimizer does not
            grads[1] = tf.IndexedSlices(tf.gather(grads[1].values, [0, 1]), tf.constant([2, 0]), tf.constant([3, 2]))
        if rng.random() < 0.1 and name != "schedule":
            rate = float(rng.uniform(0.001, 0.1))
            twins.both(lambda optimizer, rate=rate: setattr(optimizer, "learning_rate", rate))
        if rng.random() < 0.1:
            bound = float(rng.uniform(0.1, 2.0))
            twins.both(lambda optimizer, bound=bound: setattr(optimizer, "clipvalue", bound))
        twins.step(grads, sets[0] if rng.random() < 0.7 else sets[rng.integers(3)])
        twins.check()


def clipped_to(bound: float):
    constraint = keras.constraints.MaxNorm(bound)
    return lambda variable: setattr(variable, "constraint", constraint)


VARIABLE_CHANGES = {
    "overwrite_with_gradient": lambda variable: setattr(variable, "overwrite_with_gradient", True),
    "constraint": clipped_to(0.1),
}


@pytest.mark.parametrize("name", VARIABLE_CHANGES)
def test_what_is_changed_on_variables_counts(name):
    twins = Twins(OPTIMIZERS["adam"])
    for step in range(STEPS):
        twins.step(gradients(step))
    for own in (twins.mine, twins.theirs):
        VARIABLE_CHANGES[name](own[0])
    for step in range(4):
        twins.step(gradients(step))
        twins.check()
    if name == "constraint":
        for own in (twins.mine, twins.theirs):
            own[0].constraint.max_value = 0.01
        twins.step(gradients(9))
        twins.check()
        assert np.linalg.norm(twins.mine[0], axis=0).max() < 0.011


class Counting(keras.optimizers.SGD):
    """An optimizer with state in Python."""

    count = 0

    def apply(self, grads, trainable_variables=None):
        self.count += 1
        super().apply([grad * float(self.count) for grad in grads], trainable_variables)


def test_an_optimizer_with_python_state_runs_in_eager_code():
    twins = Twins(lambda: Counting(0.01))
    for step in range(STEPS):
        twins.step(gradients(step))
        twins.check()
    assert twins.ours.count == STEPS
    assert not is_played_back(twins.ours)


def test_a_scale_that_drops_steps_with_infinite_gradients():
    twins = Twins(OPTIMIZERS["loss scale"])
    for step in range(STEPS):
        grads = gradients(step)
        if step % 5 == 4:
            grads[0] = grads[0] * np.inf
        twins.step(grads)
        twins.check()


def test_threads_that_share_an_optimizer():
    """Each counts, also after a time in which several ran at once."""
    for _ in range(3):
        own, optimizer = variables(), keras.optimizers.SGD(1.0)
        optimizer.build(own)

        def work(number, own=own, optimizer=optimizer):
            for _ in range(40):
                rt.Gradients([(own[number], tf.zeros([3, 2]))]).apply(optimizer)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        before = int(optimizer.iterations)
        for _ in range(20):
            rt.Gradients([(own[0], tf.zeros([3, 2]))]).apply(optimizer)
        assert int(optimizer.iterations) == before + 20
        assert not is_played_back(optimizer)


def test_an_update_inside_a_tape_is_recorded():
    v, optimizer = keras.Variable(2.0), keras.optimizers.SGD(0.1)
    optimizer.build([v])
    for _ in range(STEPS):
        rt.Gradients([(v, tf.constant(0.0))]).apply(optimizer)
    with rt.Tape() as tape:
        loss = v * v
        tape.backward(loss, [v]).apply(optimizer)
        after = v * 3.0
    assert float(tape.gradient(after, tape.at(v, 0))) == pytest.approx(3.0 * (1 - 0.2))


def test_compilation_can_be_switched_off():
    v, optimizer = keras.Variable(2.0), keras.optimizers.SGD(0.1)
    with rt.config(compile=False):
        for _ in range(STEPS):
            rt.Gradients([(v, tf.constant(1.0))]).apply(optimizer)
    assert not is_played_back(optimizer)


def test_a_copy_begins_anew_and_nothing_is_kept_alive():
    v, optimizer = keras.Variable(2.0), keras.optimizers.SGD(0.1)
    for _ in range(STEPS):
        rt.Gradients([(v, tf.constant(1.0))]).apply(optimizer)
    other = copy.copy(vars(optimizer)["_retrotape_updates"])
    assert other.step is None
    alive = weakref.ref(optimizer)
    del optimizer, other
    gc.collect()
    assert alive() is None


def test_gradients_are_not_kept():
    v, optimizer = keras.Variable(tf.zeros([4])), keras.optimizers.SGD(0.1)
    for _ in range(STEPS):
        grad = tf.ones([4]) * 2.0
        rt.Gradients([(v, grad)]).apply(optimizer)
    alive = weakref.ref(grad)
    del grad
    gc.collect()
    assert alive() is None


def test_the_optimizer_can_be_saved(tmp_path):
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("adam", "mse")
    x, y = tf.ones([4, 2]), tf.ones([4, 1])
    for _ in range(STEPS):
        with rt.Tape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        tape.backward(loss).apply(model.optimizer)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert int(loaded.optimizer.iterations) == STEPS
    tf.train.Checkpoint(optimizer=model.optimizer).save(str(tmp_path / "ckpt"))
