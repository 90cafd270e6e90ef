"""Values that change where the tape does not hear it, and questions from several threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import in_threads
from helpers.untouched import is_untouched


@pytest.mark.parametrize("keep", ["needed", "leaves", "all"])
def test_a_variable_assigned_on_another_thread(keep):
    v = tf.Variable(2.0)
    with rt.Tape(keep=keep) as tape:
        _ = v * 1.0
        in_threads(lambda: v.assign(5.0))
        y = v * v
    assert float(tape.gradient(y, v)) == 10.0


def test_the_hessian_of_a_function_after_an_assignment_elsewhere():
    v = tf.Variable(2.0)
    cube = tf.function(lambda: v**3)
    with rt.Tape() as tape:
        _ = v * 1.0
        in_threads(lambda: v.assign(5.0))
        y = cube() * 1.0
    assert float(tape.hessian(y, v)) == 30.0


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_a_variable_assigned_in_a_pause(keep):
    v = tf.Variable(2.0)
    with rt.Tape(keep=keep) as tape:
        _ = v * 1.0
        with tape.stop_recording():
            v.assign(5.0)
        y = v * v
    assert float(tape.gradient(y, v)) == 10.0
    assert [float(version.value) for version in tape.versions(v)] == [2.0, 5.0]
    with pytest.raises(rt.errors.UnseenUpdateError, match=r"assigned while this tape was not recording.*since=k"):
        tape.gradient(y, v, through_updates=True)
    assert float(tape.gradient(y, tape.at(v, 1))) == 10.0


def test_a_variable_assigned_between_two_blocks():
    v = tf.Variable(3.0)
    tape = rt.Tape()
    with tape:
        v.assign(v + 2.0)
    v.assign(6.0)
    with tape:
        y = v * v
    assert [float(version.value) for version in tape.versions(v)] == [3.0, 5.0, 6.0]
    assert float(tape.gradient(y, v)) == 12.0


def test_nothing_changed_between_two_blocks_is_no_gap():
    v = tf.Variable(3.0)
    tape = rt.Tape()
    with tape:
        v.assign(v * 2.0)
    with tape:
        y = v * v
    assert float(tape.gradient(y, v, through_updates=True)) == 24.0


def test_questions_from_many_threads():
    x = tf.constant(1.3, tf.float64)
    with rt.Tape() as tape:
        y = tf.sin(x) * x**3
    one = tf.constant(1.0, tf.float64)
    expected = float(tape.hvp(y, x, one))
    with ThreadPoolExecutor(6) as pool:
        found = list(pool.map(lambda _: float(tape.hvp(y, x, one)), range(60)))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_a_question_while_another_thread_records_is_refused():
    x = tf.constant(2.0)
    errors = []

    def ask():
        try:
            tape.gradient(y, x)
        except rt.errors.TapeUseError as error:
            errors.append(str(error))

    with rt.Tape() as tape:
        y = x * x
        in_threads(ask)
    assert errors == ["This tape is recording on another thread. Query it there, or when its block is left."]
    assert float(tape.gradient(y, x)) == 4.0


def test_a_block_left_on_another_thread_takes_its_hooks_away():
    x = tf.constant(2.0)
    tape = rt.Tape()
    tape.__enter__()
    y = x * x
    in_threads(lambda: tape.__exit__(None, None, None))
    assert is_untouched()
    assert float(tape.gradient(y, x)) == 4.0


def test_a_version_of_another_tape_is_refused():
    v = tf.Variable(2.0)
    with rt.Tape() as first:
        _ = v * v
    with rt.Tape() as second:
        y = v * v
    with pytest.raises(rt.errors.TapeUseError, match=r"belongs to another tape.*tape.at\(variable, k\)"):
        second.gradient(y, first.at(v, 0))


def test_an_answer_in_a_pause_is_a_constant_as_on_the_stock_tape():
    x = tf.constant(2.0)

    def ask(make_tape):
        with make_tape(persistent=True) as tape:
            tape.watch(x)
            y = x**3
            with tape.stop_recording():
                slope = tape.gradient(y, x)
            z = slope * x
        return tape.gradient(z, x)

    assert float(ask(rt.Tape)) == float(ask(tf.GradientTape)) == 12.0
    assert float(tf.function(lambda: ask(rt.Tape))()) == 12.0


def test_a_stop_gradient_of_the_users_own_is_respected():
    x = tf.constant([1.0, 2.0, 4.0])
    with tf.GradientTape() as stock, rt.Tape() as tape:
        stock.watch(x)
        center = tf.stop_gradient(tf.reduce_mean(x))
        y = tf.reduce_sum(tf.math.squared_difference(x, center)) + center * center
    np.testing.assert_array_equal(tape.gradient(y, x), stock.gradient(y, x))


def test_a_variable_made_inside_the_block():
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        v = tf.Variable(x * 2.0)
        y = v * v
    assert float(tape.gradient(y, v, through_updates=True)) == 12.0
    assert float(tape.gradient(y, x, through_updates=True)) == 24.0
    assert tape.gradient(y, x) is None


def test_a_python_function_after_one_that_failed():
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        with pytest.raises(tf.errors.OpError):
            tf.py_function(lambda a: None, [x], tf.float32)
        y = tf.py_function(lambda a: a * a, [x], tf.float32)
    assert float(tape.gradient(y, x)) == 6.0


def test_a_python_function_of_a_variable():
    v = tf.Variable(3.0)
    with rt.Tape() as tape:
        y = tf.py_function(lambda a: a * a, [v], tf.float32)
    assert float(tape.gradient(y, v)) == 6.0


def test_complex_products_with_vectors():
    z = tf.constant([1.0 + 2.0j], tf.complex128)
    tangent = tf.constant([0.5 - 1.0j], tf.complex128)
    with rt.Tape() as tape:
        w = z**3
        size = tf.reduce_sum(tf.abs(w) ** 2)
    np.testing.assert_allclose(tape.jvp(w, z, tangent), 3 * z**2 * tangent)
    step = 1e-5

    def slope(at):
        with rt.Tape() as probe:
            value = tf.reduce_sum(tf.abs(at**3) ** 2)
        return probe.gradient(value, at)

    expected = (slope(z + step * tangent) - slope(z - step * tangent)) / (2 * step)
    np.testing.assert_allclose(tape.hvp(size, z, tangent), expected, rtol=1e-6)


def test_asked_inside_the_block_through_a_function_that_assigns():
    v = tf.Variable(3.0)
    square = tf.function(lambda: v.assign(v * v))
    with rt.Tape() as tape:
        square()
        y = v * 1.0
        assert float(tape.gradient(y, v, through_updates=True)) == 6.0
    assert float(tape.gradient(y, v, through_updates=True)) == 6.0
    assert float(tape.hvp(y, v, tf.constant(1.0), through_updates=True)) == 2.0


@pytest.mark.parametrize("keep", ["needed", "leaves", "all", "segments"])
@pytest.mark.parametrize("way", ["tape", "function", "op"])
def test_an_update_on_another_thread_is_counted(keep, way):
    v = tf.Variable(2.0)
    setter = tf.function(lambda: v.assign(10.0))

    def update():
        if way == "tape":
            with rt.Tape():
                v.assign(10.0)
        else:
            setter() if way == "function" else v.assign(10.0)

    with rt.Tape(keep=keep) as tape:
        y = v * v
        in_threads(update)
        z = v * y
    assert float(tape.gradient(z, v)) == 44.0
    assert [float(version.value) for version in tape.versions(v)] == [2.0, 10.0]
    with pytest.raises(rt.errors.UnseenUpdateError):
        tape.gradient(z, v, through_updates=True)


def test_no_false_alarm_where_another_thread_only_records():
    with ThreadPoolExecutor(1) as pool:
        other = rt.Tape()
        pool.submit(other.__enter__).result()
        v = tf.Variable(2.0)
        with rt.Tape() as tape:
            y = v * v
            v.assign(y)
            z = v * 3.0
        pool.submit(other.__exit__, None, None, None).result()
    assert float(tape.gradient(z, v, through_updates=True)) == 12.0
    assert [float(version.value) for version in tape.versions(v)] == [2.0, 4.0]


def test_no_false_alarm_for_a_variable_made_in_a_pause_or_on_another_thread():
    made = []
    with rt.Tape() as tape:
        with tape.stop_recording():
            made.append(tf.Variable(2.0))
        in_threads(lambda: made.append(tf.Variable(3.0)))
        y = made[0] * made[1]
    assert [float(g) for g in tape.gradient(y, made, through_updates=True)] == [3.0, 2.0]


def test_the_same_bits_assigned_between_two_blocks():
    v, x, tape = tf.Variable(1.0), tf.constant(3.0), rt.Tape()
    with tape:
        y = v * x
    v.assign(v * v * v)
    with tape:
        z = v * 5.0 + y
    assert float(tape.gradient(z, v)) == 8.0
    with pytest.raises(rt.errors.UnseenUpdateError):
        tape.gradient(z, v, through_updates=True)


@pytest.mark.parametrize("scattered", [False, True])
def test_no_false_alarm_between_two_blocks(scattered):
    v, tape = tf.Variable([1.0, 2.0]), rt.Tape()
    with tape:
        if scattered:  # from then on TensorFlow hands out copies of the variable
            v.scatter_update(tf.IndexedSlices([5.0], [0]))
        v.assign(v * v)
    with tape:
        z = tf.reduce_sum(v * v)
    expected = [0.0, 32.0] if scattered else [4.0, 32.0]
    assert tape.gradient(z, v, through_updates=True).numpy().tolist() == expected


def test_a_variable_first_seen_after_an_update_in_a_pause():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        with tape.stop_recording():
            v.assign(v * 3.0)
        y = v * 5.0
    assert float(tape.gradient(y, v)) == 5.0
    with pytest.raises(rt.errors.UnseenUpdateError):
        tape.gradient(y, v, through_updates=True)  # 15 by its value on entry, which nobody saw


@pytest.mark.parametrize("keep", ["needed", "leaves", "all", "segments"])
def test_a_function_that_assigns_and_then_fails(keep):
    v = tf.Variable([1.0, 2.0])

    @tf.function
    def bad(a):
        with tf.control_dependencies([v.assign(v * 2.0)]):
            tf.debugging.assert_less(a, 0.5)
        return v * a

    with rt.Tape(keep=keep) as tape:
        y = v * 1.0
        with pytest.raises(tf.errors.InvalidArgumentError):
            bad(tf.constant(1.0))
        z = tf.reduce_sum(v * v * 3.0 + y)
    assert tape.gradient(z, v).numpy().tolist() == [13.0, 25.0]
    with pytest.raises(rt.errors.UnseenUpdateError):
        tape.gradient(z, v, through_updates=True)


def test_a_custom_gradient_before_a_pause():
    u, x = tf.Variable(2.0), tf.constant(1.0)

    @tf.custom_gradient
    def f(z):
        return z * 1.0, lambda g: g * u

    with rt.Tape() as tape:
        y = f(x) + 0.0 * u
        with tape.stop_recording():
            u.assign(5.0)
        _ = u * 1.0
    assert float(tape.gradient(y, x)) == 2.0


def test_a_copy_of_a_handle_is_the_same_variable():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        handle = tf.identity(v.handle)
        tf.raw_ops.AssignVariableOp(resource=handle, value=v * 3.0)
        z = v * 5.0
        r = tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32) * 7.0
    assert float(tape.gradient(z, v, through_updates=True)) == 15.0
    assert float(tape.gradient(r, v)) == 7.0
    assert len(tape.versions(v)) == 2
