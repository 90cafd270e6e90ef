"""What cannot live without its process is named, with its line and a way out; `freeze` keeps what it gave."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.trips import assert_answers, assert_same, check, trip
from retrotape.errors import NotPersistableError

X = np.array([0.3, -1.2, 2.0])
HERE = Path(__file__).name


@pytest.fixture
def x() -> tf.Tensor:
    return tf.constant(X, tf.float32)


def _table() -> Any:
    return tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer([1, 2], [3.0, 4.0]), 0.0)


def line_of(marked: str) -> int:
    """Return the line of this file that ends with a mark."""
    lines = Path(__file__).read_text().splitlines()
    (number,) = [number for number, line in enumerate(lines, 1) if line.endswith(f"# {marked}")]
    return number


def _drawing(x):
    return x * tf.random.normal([3])


def _dropping(x):
    return tf.nn.dropout(x, 0.5)


def _calling_python(x):
    return tf.py_function(lambda value: tf.sin(value) * value, [x], tf.float32)


def _calling_numpy(x):
    return x * tf.numpy_function(np.sin, [x], tf.float32)


_generator = tf.random.Generator.from_seed(1)


def _generating(x):
    return x * _generator.normal([3])


_words = _table()


def _looking_up(x):
    return x * _words.lookup(tf.constant([1, 2, 1]))


INSIDE: dict[str, tuple[Callable[[Any], Any], str]] = {
    "draws": (_drawing, "RandomStandardNormal"),
    "dropout": (_dropping, "RandomUniform"),
    "numpy": (_calling_numpy, "PyFunc"),
    "generator": (_generating, "RngReadAndSkip"),
    "table": (_looking_up, "LookupTableFindV2"),
}


@pytest.mark.parametrize("name", INSIDE)
def test_functions_that_do_not_do_the_same_again(name, x, tmp_path):
    body, op = INSIDE[name]
    function = tf.function(body)
    with rt.Tape() as tape:
        y = function(x)  # called here
        target = tf.reduce_sum(y * x)
    with pytest.raises(NotPersistableError) as caught:
        tape.save(tmp_path / "a.tape", {"x": x, "target": target})
    text = str(caught.value)
    assert op in caught.value.reason
    assert re.search(rf"{HERE}:{line_of('called here')}\b", caught.value.where)
    assert f"`tape.save(path, freeze=['{body.__name__}'])`" in text
    assert not (tmp_path / "a.tape").exists()

    loaded = trip(tape, {"x": x, "y": y, "target": target}, tmp_path, freeze=[body.__name__]).loaded
    np.testing.assert_array_equal(loaded["y"], y)
    np.testing.assert_array_equal(loaded.gradient("target", "x"), y)  # what it gave is a constant now
    assert_same(loaded.gradient("target", "y"), tape.gradient(target, y))


def test_python_code_in_a_function_is_recorded_op_by_op(x, tmp_path):
    function = tf.function(_calling_python)
    with rt.Tape() as tape:
        target = tf.reduce_sum(function(x) * x)
    loaded = trip(tape, {"x": x, "target": target}, tmp_path).loaded
    np.testing.assert_allclose(loaded.gradient("target", "x"), 2 * x * np.sin(x) + x * x * np.cos(x), rtol=1e-5)


def test_a_frozen_function_that_assigns(x, tmp_path):
    held = tf.Variable(2.0, name="held")

    @tf.function
    def stepping(x):
        held.assign(held * tf.random.uniform([]))
        return x * held

    with rt.Tape() as tape:
        target = tf.reduce_sum(stepping(x)) + held**2
    loaded = trip(tape, {"target": target}, tmp_path, freeze=["stepping"]).loaded
    assert [float(version.value) for version in loaded.versions("held")] == [2.0, float(held)]
    assert_same(loaded.gradient("target", loaded.at("held", 1)), tf.constant(2.0 * float(held)))
    with pytest.raises(rt.errors.UnseenUpdateError):
        loaded.gradient("target", "held", through_updates=True)


# ------------------------------------------------------------------ in eager code


def test_python_in_eager_code_is_the_ops_that_it_runs(x, tmp_path):
    with rt.Tape() as tape:
        target = tf.reduce_sum(_calling_python(x) * x)
    check(tape, target, {"x": x}, tmp_path, order=3)


def test_numpy_in_eager_code_is_a_constant_on_both_tapes(x, tmp_path):
    with rt.Tape() as tape:
        target = tf.reduce_sum(_calling_numpy(x))
    made = check(tape, target, {"x": x}, tmp_path)
    np.testing.assert_allclose(made.loaded.gradient("target", "x"), np.sin(X), rtol=1e-6)


def _with_table(x):
    return x * _words.lookup(tf.constant([1, 2, 1]))  # the table


def _with_mutable_table(x):
    table = tf.lookup.experimental.MutableHashTable(tf.int32, tf.float32, 0.0)
    table.insert([1, 2], [3.0, 4.0])
    return x * table.lookup(tf.constant([1, 2, 1]))  # the other table


def _with_dataset(x):
    data = tf.data.Dataset.from_tensor_slices([3.0, 4.0]).map(lambda value: 2.0 * value)
    return sum(x * value for value in data)  # the dataset


def _with_iterator(x):
    iterator = iter(tf.data.Dataset.from_tensor_slices([3.0, 4.0]))
    return x * next(iterator)  # the iterator


def _with_queue(x):
    queue = tf.queue.FIFOQueue(3, [tf.float32])
    queue.enqueue(1.0)
    return x * queue.dequeue()  # the queue


RESOURCES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "the table": (_with_table, "LookupTableFindV2"),
    "the other table": (_with_mutable_table, "LookupTableFindV2"),
    "the dataset": (_with_dataset, "IteratorGetNext"),
    "the iterator": (_with_iterator, "IteratorGetNext"),
    "the queue": (_with_queue, "QueueDequeueV2"),
}


@pytest.mark.parametrize("name", RESOURCES)
def test_tables_queues_and_iterators(name, x, tmp_path):
    run, op = RESOURCES[name]
    with rt.Tape() as tape:
        target = tf.reduce_sum(run(x) * x)
    with pytest.raises(NotPersistableError) as caught:
        tape.save(tmp_path / "a.tape", {"x": x, "target": target})
    assert caught.value.op == op
    assert re.search(rf"{HERE}:{line_of(name)}\b", caught.value.where)
    assert "a table, a queue, an iterator or the like, which has no value to write" in str(caught.value)
    advice = "Move it out of the block, or keep its result as a constant, without derivative: `tape.save(path, freeze=["
    assert f"{advice}'{op}'])`" in str(caught.value)
    check(tape, target, {"x": x}, tmp_path, freeze=[op])


def test_what_nobody_looks_at_is_left_out(x, tmp_path):
    with rt.Tape() as tape:
        for _ in tf.data.Dataset.from_tensor_slices([3.0, 4.0]):
            pass
        tf.print("to standard error")
        tf.debugging.assert_less(x, 10.0)
        _words.lookup(tf.constant([1, 2]))
        target = tf.reduce_sum(x**2)
    made = trip(tape, {"x": x, "target": target}, tmp_path)
    assert {eqn.op for eqn in made.loaded.program.eqns} <= {"Pow", "Sum", "Less", "All", "LessEqual", "StringFormat"}
    assert_answers(made, target, {"x": x})


def test_a_file_that_was_read_is_a_value(x, tmp_path):
    (tmp_path / "factor.txt").write_text("2.5")
    with rt.Tape() as tape:
        factor = tf.strings.to_number(tf.io.read_file(str(tmp_path / "factor.txt")))
        target = tf.reduce_sum(x**2) * factor
    made = check(tape, target, {"x": x}, tmp_path)
    assert "ReadFile" not in {eqn.op for eqn in made.loaded.program.eqns}
    (tmp_path / "factor.txt").unlink()
    assert_same(rt.load(made.path).gradient("target", "x"), tf.constant(5.0 * X, tf.float32))


@pytest.mark.parametrize("keep", ["needed", "leaves", "all"])
def test_any_op_can_be_frozen(keep, x, tmp_path):
    w = tf.Variable([1.0, 2.0, 3.0], name="w")
    with rt.Tape(keep=keep) as tape:
        target = tf.reduce_sum(tf.tanh(x * w) * tf.sin(x * w))
    loaded = trip(tape, {"x": x, "target": target}, tmp_path, freeze=["Tanh"]).loaded
    products = X * np.array([1.0, 2.0, 3.0])
    wanted = np.tanh(products) * np.cos(products) * np.array([1.0, 2.0, 3.0])
    np.testing.assert_allclose(loaded["target"], target, rtol=1e-6)
    np.testing.assert_allclose(loaded.gradient("target", "x"), wanted, rtol=1e-5)


def test_freeze_takes_a_list(x, tmp_path):
    with rt.Tape() as tape:
        tf.sin(x)
    with pytest.raises(TypeError, match=r"freeze= takes a list of names, got 'Sin': `freeze=\['Sin'\]`"):
        tape.save(tmp_path / "a.tape", freeze="Sin")


# ------------------------------------------------------------------ custom gradients


@tf.custom_gradient
def choosy(x):
    def back(upstream):
        return upstream * 3.0 if tf.reduce_sum(upstream) > 0.0 else upstream

    return 2.0 * x, back


@tf.custom_gradient
def broken(x):
    def back(upstream):
        raise OSError("no such printer")

    return 2.0 * x, back


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (choosy, "its backward function branches on the value of a gradient. Write that with `tf.where`"),
        (broken, "its backward function fails with OSError: no such printer"),
    ],
)
def test_backward_functions_that_are_no_programs(function, reason, x, tmp_path):
    with rt.Tape() as tape:
        target = tf.reduce_sum(function(x) * x)
    with pytest.raises(NotPersistableError) as caught:
        tape.save(tmp_path / "a.tape", {"x": x, "target": target})
    name = function.__name__
    assert reason in str(caught.value)
    assert HERE in caught.value.where
    assert caught.value.op == name
    loaded = trip(tape, {"x": x, "target": target}, tmp_path, freeze=[name]).loaded
    np.testing.assert_allclose(loaded.gradient("target", "x"), 2.0 * X, rtol=1e-6)


# ------------------------------------------------------------------ tapes


def test_tapes_without_recording(tmp_path):
    tape = rt.Tape()
    with pytest.raises(rt.errors.EmptyTapeError, match="its block was never entered"):
        tape.save(tmp_path / "a.tape")
    with tape:
        pass
    tape.save(tmp_path / "a.tape")
    assert rt.load(tmp_path / "a.tape").names == ()


def test_tapes_in_functions(x, tmp_path):
    @tf.function
    def function(x):
        with rt.Tape() as tape:
            y = x * x
        tape.save(tmp_path / "a.tape", {"y": y})
        return y

    with pytest.raises(
        rt.errors.TapeUseError,
        match=r"save works on tapes recorded in eager code; .* Run the step in",
    ):
        function(x)


def test_saving_in_the_middle_of_the_block_records_nothing(x, tmp_path):
    function = tf.function(lambda x: tf.nn.silu(x) * x)
    with rt.Tape() as tape:
        y = tf.reduce_sum(function(tf.nn.silu(x)))
        before = str(tape.program)
        tape.save(tmp_path / "a.tape", {"x": x, "y": y}, values="all")
        tape.size()
        assert str(tape.program) == before
        z = y * 2.0
    assert_same(tape.gradient(z, x), 2.0 * tape.gradient(y, x))
    assert_same(rt.load(tmp_path / "a.tape").gradient("y", "x"), tape.gradient(y, x))
