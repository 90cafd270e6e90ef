"""Steps that cannot be played back faithfully stay eager, or raise, and say why and where."""

from __future__ import annotations

import datetime
import itertools
import logging
import random
import sys
import threading
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import alike, plays

ONE = tf.constant(1.0)
PAIR = tf.constant([1.0, 2.0])


class Counting:
    def __init__(self) -> None:
        self.n, self.w, self.log, self.last = 0, tf.Variable(1.0), [], None

    def count(self, x):
        self.n += 1
        return self.w * self.n * x

    def append(self, x):
        self.log.append(x)
        return self.w.assign_add(x) * 1.0

    def remember(self, x):
        self.last = self.w * x
        return self.last


def counting(name: str):
    def make():
        owner = Counting()
        return getattr(owner, name), {"vars": [owner.w]}

    return make


def with_closure(make_step):
    return lambda: (make_step(), {})


def nonlocal_counter():
    n = 0

    def step(x):
        nonlocal n
        n += 1
        return x * n

    return step


def generator():
    numbers = (float(n) for n in itertools.count(1))

    def step(x):
        return x * next(numbers)

    return step


def iterator():
    numbers = itertools.count(1)
    return lambda x: x * next(numbers)


def numpy_generator():
    rng = np.random.default_rng(1)
    return lambda x: x * 0.0 * rng.normal()


def started_thread(x):
    threading.Thread(target=lambda: None).start()
    return x * 2.0


def created(x):
    return tf.Variable(x) * 2.0


def file_written(x, path="/dev/null"):
    with open(path, "w") as file:
        file.write("x")
    return x * 2.0


REFUSED: dict[str, tuple[Any, str]] = {
    "an attribute": (counting("count"), r"it changes self\.n at .*test_refused\.py:\d+"),
    "a list": (counting("append"), r"it changes what self\.log contains"),
    "an attribute that is only assigned": (counting("remember"), r"it changes self\.last at .*test_refused\.py:\d+"),
    "a closure": (with_closure(nonlocal_counter), r"it changes 'n' in the closure of 'step'"),
    "a generator": (with_closure(generator), r"it depends on 'numbers' in the closure of 'step', an iterator"),
    "an iterator": (with_closure(iterator), r"an iterator: pass what it yields instead"),
    "random numbers of NumPy": (with_closure(numpy_generator), r"it draws random numbers of NumPy"),
    "global random numbers": (with_closure(lambda: lambda x: x * 0.0 * np.random.rand()), r"random numbers of NumPy"),
    "random": (with_closure(lambda: lambda x: x * 0.0 * random.random()), r"random numbers of Python's `random`"),
    "the clock": (with_closure(lambda: lambda x: x * 0.0 * time.time()), r"it reads the clock at .*test_refused"),
    "the date": (with_closure(lambda: lambda x: x * 0.0 * datetime.datetime.now().year), r"it reads the clock"),
    "a thread": (with_closure(lambda: started_thread), r"it starts a thread at .*test_refused"),
    "a file": (with_closure(lambda: file_written), r"it calls `open` at .*test_refused"),
    "new variables": (with_closure(lambda: created), r"it creates variables"),
    "memory": (with_closure(lambda: lambda x: x * memoryview(PAIR)[0]), r"it may read the memory of tensors"),
    "a variable of any shape": (
        with_closure(lambda: (lambda v: lambda x: v.assign(x) * 1.0)(tf.Variable(PAIR, shape=[None]))),
        r"whose shape may change",
    ),
    "a table": (
        with_closure(
            lambda: (lambda t: lambda x: x * tf.cast(t.lookup(tf.constant(1)), tf.float32))(
                tf.lookup.experimental.MutableHashTable(tf.int32, tf.int32, 5)
            )
        ),
        r"it runs LookupTableFindV2.*test_refused",
    ),
    "a seed of an op": (with_closure(lambda: lambda x: x * tf.random.normal([2], seed=3)), r"with a seed"),
}


def called(step: rt.CompiledStep, x: tf.Tensor) -> None:
    for _ in range(7):
        step(x)


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_played_back(name: str):
    make, reason = REFUSED[name]
    x = PAIR if "shape" in name or "seed" in name else ONE
    random.seed(1)
    step = rt.compile(make()[0])
    with pytest.warns(rt.errors.PlaybackWarning, match=reason):
        called(step, x)
    assert plays(step) == []
    strict = rt.compile(make()[0], strict=True)
    with pytest.raises(rt.errors.PlaybackError, match=reason):
        called(strict, x)


@pytest.mark.parametrize("name", ["an attribute", "a list", "an attribute that is only assigned", "a closure"])
def test_it_computes_what_eager_code_computes(name: str):
    with pytest.warns(rt.errors.PlaybackWarning):
        alike(REFUSED[name][0], [(ONE,)] * 5)


def test_objects_that_cannot_be_taken_apart():
    step = rt.compile(lambda x: {"a": x, "b": threading.Lock()}, strict=True)
    with pytest.raises(rt.errors.PlaybackError, match=r"it returns an object of type _thread.lock; return tensors"):
        step(ONE)


# ------------------------------------------------------------------ what only happens once


def test_print_is_noted_once(capsys: pytest.CaptureFixture[str]):
    def step(x):
        print("recording")
        tf.print("playing", output_stream="file:///dev/null")
        return x * 2.0

    compiled = rt.compile(step)
    with pytest.warns(rt.errors.PlaybackWarning, match=r"While 'step' was recorded, `print` ran at .*use `tf.print`"):
        compiled(ONE)
    compiled(ONE)
    assert capsys.readouterr().out == "recording\n"
    assert plays(compiled) == [1]


def test_logging_is_noted(caplog: pytest.LogCaptureFixture):
    def step(x):
        logging.getLogger("step").warning("once")
        return x * 2.0

    compiled = rt.compile(step)
    with pytest.warns(rt.errors.PlaybackWarning, match="a message was logged"):
        compiled(ONE)
    compiled(ONE)
    assert [record.message for record in caplog.records] == ["once"]


def test_tf_print_runs_each_time(tmp_path):
    path = tmp_path / "out.txt"

    @rt.compile
    def step(x):
        tf.print("first", x, output_stream=f"file://{path}")
        y = x * 2.0
        tf.print("second", y, output_stream=f"file://{path}")
        return y

    for n in range(3):
        step(tf.constant(float(n)))
    assert path.read_text().splitlines() == ["first 0", "second 0", "first 1", "second 2", "first 2", "second 4"]


# ------------------------------------------------------------------ errors


def test_an_error_is_that_of_eager_code_and_leaves_variables_alone():
    w = tf.Variable(1.0)

    @rt.compile
    def step(x):
        w.assign_add(1.0)
        tf.debugging.assert_less(x, 3.0, message="too large")
        return tf.debugging.check_numerics(x / (x - 2.0), "not finite") + w

    for x in (1.0, 0.0):
        step(tf.constant(x))
    before = float(w)
    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite") as caught:
        step(tf.constant(2.0))
    assert any("test_refused.py" in str(entry.path) for entry in caught.traceback)
    assert float(w) == before + 1.0  # eager code has assigned before it raised
    with pytest.raises(tf.errors.InvalidArgumentError, match="too large"):
        step(tf.constant(5.0))
    assert float(step(tf.constant(1.0))) == -1.0 + before + 3.0
    assert step.why_not_compiled() is None


@pytest.mark.filterwarnings("ignore:.*kinds of arguments in a row")
def test_too_many_kinds_of_arguments():
    step = rt.compile(lambda x, n: x * n, limit=1)
    with pytest.warns(rt.errors.PlaybackWarning, match=r"more than 8 kinds of arguments; pass numbers that change"):
        found = [float(step(ONE, n)) for n in range(12)]
    assert found == list(range(12))
    assert len(step.recordings()) == 8


def test_a_number_that_is_another_each_time():
    step = rt.compile(lambda x, n: x * n)
    expected = (
        r"4 kinds of arguments in a row, and none came again: \(float32\[\], 2\), then \(float32\[\], 3\). Pass what"
    )
    with pytest.warns(rt.errors.PlaybackWarning, match=expected):
        assert [float(step(ONE, n)) for n in range(20)] == list(range(20))
    assert len(step.recordings()) == 8
    assert step.why_not_compiled() == "its arguments are of another kind each time"
    for _ in range(3):  # it comes again: recorded, then played back
        assert float(step(ONE, 12)) == 12.0
    assert step.why_not_compiled() is None


def test_a_function_that_draws_by_a_seed():
    def draws(wrap):
        tf.random.set_seed(5)
        draw = tf.function(lambda x: x * tf.random.uniform([]))
        step = wrap(lambda x: draw(x))
        return [float(step(ONE)) for _ in range(5)]

    with pytest.warns(rt.errors.PlaybackWarning, match="a tf.function that it calls cannot be repeated"):
        assert draws(rt.compile) == draws(lambda step: step)


def test_a_profiler_is_left_alone():
    import cProfile

    step = rt.compile(lambda x: x * 2.0)
    with cProfile.Profile():
        assert float(step(ONE)) == 2.0
    if hasattr(sys, "monitoring"):  # it has room for several tools
        assert step.why_not_compiled() is None
    else:
        assert step.why_not_compiled() == "a profiler is active"
        assert plays(step) == []


@pytest.mark.parametrize("bad", [0, -1])
def test_a_limit_that_is_none(bad: int):
    with pytest.raises(ValueError, match=f"limit must be at least 1, got {bad}"):
        rt.compile(lambda x: x, limit=bad)


def test_something_that_is_no_function():
    with pytest.raises(TypeError, match=r"rt.compile takes a function, got int: `rt.compile\(step\)`"):
        rt.compile(3)  # type: ignore[call-overload]


# ------------------------------------------------------------------ where something else records


def test_under_tapes_and_in_graphs_it_runs_as_it_is():
    w = tf.Variable(3.0)
    step = rt.compile(lambda x: w * x)
    for _ in range(3):
        step(ONE)
    with rt.Tape() as tape:
        y = step(ONE)
    assert float(tape.gradient(y, w)) == 1.0
    with tf.GradientTape() as stock:
        y = step(ONE)
    assert float(stock.gradient(y, w)) == 1.0
    with tf.autodiff.ForwardAccumulator(ONE, ONE) as accumulator:
        y = step(ONE)
    assert float(accumulator.jvp(y)) == 3.0
    assert float(tf.function(step)(ONE)) == 3.0
    assert plays(step) == [2]


def test_one_compiled_step_in_another():
    w = tf.Variable(1.0)
    inner = rt.compile(lambda x: w.assign_add(x) * 1.0)
    outer = rt.compile(lambda x: inner(x) + inner(x * 2.0))
    assert [float(outer(ONE)) for _ in range(4)] == [6.0, 12.0, 18.0, 24.0]
    assert plays(outer) == [3]


def test_a_keras_model_is_built_by_the_first_call():
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.layers.Dense(2), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.001)

    @rt.compile
    def step(x):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(model(x) ** 2)
        optimizer.apply(tape.gradient(loss, model.trainable_variables), model.trainable_variables)
        return loss

    losses = [float(step(tf.ones([2, 3]))) for _ in range(5)]
    assert sorted(losses, reverse=True) == losses
    assert sum(plays(step)) >= 2
