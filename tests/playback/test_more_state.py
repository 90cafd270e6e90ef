"""State that is hard to see: on one path only, in classes, modules, tensors, threads."""

from __future__ import annotations

import os
import queue
import threading
import types
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.pool import ThreadPool
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import alike, plays

ONE, TWO, MINUS = tf.constant(1.0), tf.constant(2.0), tf.constant(-1.0)
HELD = tf.constant(2.0)
PAIR = (HELD, 1)
RATE = 1.0


def helper(x):
    return x * RATE


def test_state_that_only_one_path_reads(monkeypatch: pytest.MonkeyPatch):
    def change(state: dict[str, Any]) -> None:
        monkeypatch.setitem(globals(), "RATE", 5.0)

    step = alike(
        lambda: (lambda x: x * 2.0 if x > 0 else helper(x), {}),
        [(ONE,), (MINUS,), (ONE,), (MINUS,), change, (MINUS,), (ONE,), (MINUS,)],
        strict=True,
    )
    assert sum(plays(step)) >= 3


def test_a_failing_assertion_leaves_variables_as_eager_code_does():
    def make():
        w = tf.Variable(1.0)

        def step(x):
            tf.raw_ops.Assert(condition=x < 3.0, data=["large"], summarize=1)
            w.assign_add(1.0)
            return w * x

        return step, w

    (plain, one), (function, other) = make(), make()
    compiled = rt.compile(function)
    for x in (1.0, 2.0, 5.0, 1.0, 5.0):
        results = []
        for step in (plain, compiled):
            try:
                results.append(float(step(tf.constant(x))))
            except tf.errors.InvalidArgumentError:
                results.append("failed")
        assert results[0] == results[1]
        assert float(one) == float(other)


def test_updates_by_several_threads_are_not_lost():
    total, w = tf.Variable(0.0), tf.Variable(tf.ones([64, 64]))

    @rt.compile
    def step(x):
        y = tf.reduce_sum(tf.matmul(w, w)) * 0.0
        total.assign_add(x + y)
        return y

    step(ONE)
    step(ONE)

    def work() -> None:
        for _ in range(50):
            step(ONE)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert float(total) == 202.0


CAUGHT = {
    "a function": lambda x: tf.debugging.check_numerics(1.0 / x, "bad"),
    "gather": lambda x: tf.gather([1.0, 2.0], tf.cast(x * 5.0 - 4.0, tf.int32)),
    "a raw op": lambda x: tf.raw_ops.CheckNumerics(tensor=1.0 / x, message="bad"),
    "a tf.function": tf.function(lambda x: tf.debugging.check_numerics(1.0 / x, "bad")),
}


@pytest.mark.parametrize("name", CAUGHT)
@pytest.mark.parametrize("values", [(0.0, 1.0, 1.0), (1.0, 0.0, 1.0)])
@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_an_op_that_fails_and_is_caught(name: str, values: tuple[float, ...]):
    def step(x):
        try:
            return CAUGHT[name](x) * 1.0
        except tf.errors.InvalidArgumentError:
            return x * 0.0 - 7.0

    compiled = rt.compile(step)
    for x in values:
        assert float(compiled(tf.constant(x))) == float(step(tf.constant(x)))


TENSORS = {
    "in a tuple": lambda x: x * 10.0 + PAIR[0],
    "as a default": lambda x, more=HELD: x * 10.0 + more,
    "in a list of tuples": (lambda held: lambda x: x * 10.0 + held["a"][0][0])({"a": [(HELD, 1)]}),
}


@pytest.mark.parametrize("name", TENSORS)
def test_tensors_that_are_arguments_too(name: str):
    alike(lambda: (TENSORS[name], {}), [(HELD,), (tf.constant(5.0),), (HELD,), (tf.constant(7.0),)], strict=True)


@pytest.mark.filterwarnings("ignore:.*kinds of arguments in a row")
def test_keys_of_dictionaries():
    step = rt.compile(lambda d: next(iter(d.values())) * next(iter(d)), limit=10)
    assert [float(step({float(n): ONE})) for n in range(6)] == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_text_that_is_used_beside_a_print(capsys: pytest.CaptureFixture[str]):
    def step(x):
        text = f"{x * 1.0:.1f}"
        print(end="")
        return float(text)

    compiled = rt.compile(step)
    assert [compiled(tf.constant(k)) for k in (1.0, 2.0, 3.0, 1.0)] == [1.0, 2.0, 3.0, 1.0]


def test_a_mask_that_rides_on_an_argument():
    embed, pool = keras.layers.Embedding(5, 2, mask_zero=True), keras.layers.GlobalAveragePooling1D()
    step = rt.compile(lambda x: pool(x))
    for ids in ([[1, 2, 0]], [[1, 2, 3]], [[1, 0, 0]], [[4, 2, 0]]):
        x = embed(tf.constant(ids))
        np.testing.assert_array_equal(step(x), pool(x))


def test_an_attribute_of_an_argument():
    step = rt.compile(lambda x: x * x.weight)
    for weight in (1.0, 2.0, 2.0):
        x = tf.constant(3.0)
        x.weight = weight
        assert float(step(x)) == 3.0 * weight


POOL = ThreadPool(1)
QUEUE: queue.Queue = queue.Queue()
EXECUTOR = ThreadPoolExecutor(1)


def from_queue(x):
    QUEUE.put(x * 3.0)
    return QUEUE.get() * 1.0


ELSEWHERE = {
    "a pool": lambda x: POOL.map(lambda y: y * y + 1.0, [x])[0] * 1.0,
    "an executor": lambda x: EXECUTOR.submit(lambda: x * x).result() * 1.0,
    "a queue": from_queue,
    "a file": lambda x: x * float(len(Path(__file__).read_text())),
    "the file system": lambda x: x * float(os.path.exists(__file__)),
    "entropy": lambda x: x * 0.0 * np.random.default_rng().normal(),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_data_from_elsewhere_is_refused(name: str):
    step = rt.compile(ELSEWHERE[name])
    with pytest.warns(rt.errors.PlaybackWarning, match="it is not played back"):
        first = [float(step(tf.constant(x))) for x in (1.0, 2.0, 3.0)]
    assert first == [float(ELSEWHERE[name](tf.constant(x))) for x in (1.0, 2.0, 3.0)]


class Config:
    n = 1.0


class Slotted:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 1.0


class Derived(Slotted):
    __slots__ = ("more",)


class Table(dict):
    scale = 1.0


MODULE = types.ModuleType("settings_of_a_test")
MODULE.rate = 1.0  # type: ignore[attr-defined]
slotted, derived, table = Slotted(), Derived(), Table()
GET = {"k": 1.0}
get = GET.get


def in_module(x, module=MODULE):
    return x * module.rate


class Net(tf.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = tf.Variable(2.0)


net = Net()
OUTSIDE = {
    "a class": (lambda x: x * Config.n, lambda n: setattr(Config, "n", n)),
    "a slot": (lambda x: x * slotted.n, lambda n: setattr(slotted, "n", n)),
    "an inherited slot": (lambda x: x * derived.n, lambda n: setattr(derived, "n", n)),
    "a subclass of a dictionary": (lambda x: x * table.scale, lambda n: setattr(table, "scale", n)),
    "a module": (in_module, lambda n: setattr(MODULE, "rate", n)),
    "a method of a dictionary": (lambda x: x * get("k"), lambda n: GET.update(k=n)),
    "a module of variables": (
        lambda x: x * len(net.trainable_variables),
        lambda n: setattr(net, f"more{n}", tf.Variable(n)),
    ),
}


@pytest.mark.parametrize("name", OUTSIDE)
@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_state_that_changes_outside(name: str):
    function, change = OUTSIDE[name]
    step = rt.compile(lambda x: function(x))
    for n in (1.0, 1.0, 3.0, 3.0, 5.0):
        change(n)
        assert float(step(TWO)) == float(function(TWO))


class Counter:
    n = 0


class SlottedCounter:
    __slots__ = ("n",)

    def __init__(self) -> None:
        self.n = 0


@pytest.mark.parametrize("kind", [Counter, SlottedCounter])
def test_changes_of_classes_and_slots_by_the_step(kind: Any):
    owner = kind if kind is Counter else kind()

    def step(x):
        owner.n += 1
        return x * owner.n

    owner.n = 0
    with pytest.warns(rt.errors.PlaybackWarning, match="it changes"):
        found = [float(rt_step(ONE)) for rt_step in [rt.compile(step)] for _ in range(5)]
    assert found == [1.0, 2.0, 3.0, 4.0, 5.0]


def test_many_fits_are_recorded_once():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    model.compile("sgd", "mse", run_eagerly=True)
    rt.keras.playback(model, strict=True)
    for _ in range(10):
        model.fit(np.ones([4, 2]), np.ones([4, 1]), batch_size=2, verbose=0)
    assert len(model.train_step.recordings()) == 1


def test_a_layer_that_is_adapted():
    layer = keras.layers.Normalization()
    layer.adapt(np.array([[1.0], [3.0]]))
    step = rt.compile(lambda x: layer(x))
    x = tf.constant([[5.0]])
    for _ in range(3):
        np.testing.assert_array_equal(step(x), layer(x))
    layer.adapt(np.array([[10.0], [30.0]]))
    np.testing.assert_array_equal(step(x), layer(x))


def test_a_callable_object_and_a_model():
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1)])
    step = rt.compile(model)
    x = tf.ones([3, 2])
    for _ in range(3):
        np.testing.assert_array_equal(step(x), model(x))
    assert plays(step) == [2]


def test_a_compiled_tape_where_something_records():
    x = tf.constant(2.0)
    with rt.Tape() as tape:
        y = x * x
    function = tape.compile([x], y)
    for call in (rt.compile(lambda z: function(z)), tf.function(lambda z: function(z))):
        with pytest.raises(rt.errors.TapeUseError, match="Call it outside the tape, the step or the"):
            call(ONE)
    with rt.Tape(), pytest.raises(rt.errors.TapeUseError, match="runs in eager code where nothing records"):
        function(ONE)
    with pytest.raises(rt.errors.TapeUseError, match="Got one input twice"):
        tape.compile([x, x], y)


def test_strict_raises_each_time():
    step = rt.compile(lambda x: x * float(np.random.rand()), strict=True)
    for _ in range(3):
        with pytest.raises(rt.errors.PlaybackError, match="it draws random numbers of NumPy"):
            step(ONE)


class Empty:
    pass


empty = Empty()


def caught_attribute(x):
    try:
        return x * empty.k
    except AttributeError:
        return x * 2.0


@pytest.mark.parametrize("name", ["attribute", "environment"])
def test_what_is_missing_at_first(name: str, monkeypatch: pytest.MonkeyPatch):
    functions = {"attribute": caught_attribute, "environment": lambda x: x * float(os.getenv("RETROTAPE_K", "2"))}
    step = rt.compile(functions[name], strict=True)
    assert [float(step(ONE)) for _ in range(2)] == [2.0, 2.0]
    monkeypatch.setattr(empty, "k", 5.0, raising=False)
    monkeypatch.setenv("RETROTAPE_K", "5")
    assert [float(step(ONE)) for _ in range(2)] == [5.0, 5.0]


def test_callbacks_of_the_garbage_collector_are_not_part_of_the_step():
    import gc
    import time

    def on_collection(phase: str, info: dict[str, int]) -> None:
        time.perf_counter()

    def step(x):
        for _ in range(3000):  # enough for the collector to run
            cycle: list[Any] = []
            cycle.append(cycle)
        return x * 2.0

    gc.callbacks.append(on_collection)
    try:
        compiled = rt.compile(step, strict=True)
        assert [float(compiled(ONE)) for _ in range(3)] == [2.0, 2.0, 2.0]
    finally:
        gc.callbacks.remove(on_collection)
    assert plays(compiled) == [2]


def test_a_mask_that_rides_on_a_result():
    embed, pool = keras.layers.Embedding(5, 2, mask_zero=True), keras.layers.GlobalAveragePooling1D()
    step = rt.compile(lambda ids: embed(ids))
    for ids in ([[1, 2, 0]], [[1, 2, 3]], [[1, 0, 0]], [[4, 2, 0]]):
        np.testing.assert_array_equal(pool(step(tf.constant(ids))), pool(embed(tf.constant(ids))))
    assert sum(plays(step)) >= 2


@pytest.mark.filterwarnings("ignore::retrotape.errors.PlaybackWarning")
def test_state_that_cannot_be_compared_does_not_fail_the_call(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("retrotape.python._walk.MANY", 3)
    step = rt.compile(lambda x: x * float(len([helper, Config, Slotted, Derived, Table, Net])))
    assert [float(step(ONE)) for _ in range(3)] == [6.0, 6.0, 6.0]
    assert "its state cannot be compared: it refers to more than 3 objects" in (step.why_not_compiled() or "")


def test_a_tape_that_is_held_over_the_next_call():
    w = tf.Variable(3.0)
    step = rt.compile(lambda x: w.assign_add(x) * w * x)
    y = step(TWO)
    tape, expected = step.tape, float(y)
    step(ONE)
    step(ONE)
    assert float(tape.value(y)) == expected
