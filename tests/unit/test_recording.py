from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.eager import context
from tensorflow.python.framework import op_callbacks

import retrotape as rt
from retrotape import _hooks, errors

X = tf.constant(1.7)


def hooked() -> list[Any]:
    """Return everything of TensorFlow that recording may replace, as it is now."""
    return [owner.__dict__[name] for owner, name, _ in _hooks._HOOKS]


UNTOUCHED = hooked()


def is_untouched() -> bool:
    return (
        all(now is then for now, then in zip(hooked(), UNTOUCHED, strict=True)) and not context.context().op_callbacks
    )


@pytest.fixture(autouse=True)
def _leaves_tensorflow_as_it_was():
    assert is_untouched()
    yield
    assert is_untouched()


def dense(value: Any) -> Any:
    if value is None:
        return None
    return tf.convert_to_tensor(value).numpy()


def assert_close(ours: Any, theirs: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    ours, theirs = tf.nest.flatten(ours), tf.nest.flatten(theirs)
    assert len(ours) == len(theirs)
    for one, other in zip(ours, theirs, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            assert dense(one).shape == dense(other).shape
            np.testing.assert_allclose(dense(one), dense(other), rtol=rtol, atol=atol)


def stock_gradient(f: Callable, sources: Any, **options: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch([s for s in tf.nest.flatten(sources) if isinstance(s, tf.Tensor)])
        target = f()
    return tape.gradient(target, sources, **options)


def dense_net(width: int = 4, activation: str = "tanh") -> keras.Model:
    keras.utils.set_random_seed(1)
    net = keras.Sequential(
        [keras.layers.Dense(width, activation), keras.layers.Dense(width, activation), keras.layers.Dense(1)]
    )
    net.build((None, 3))
    return net


def batch(rows: int = 5, columns: int = 3) -> tf.Tensor:
    return tf.constant(np.random.default_rng(0).normal(size=(rows, columns)).astype("float32"))


# ------------------------------------------------------------------ nesting


def test_ours_in_ours():
    with rt.Tape() as outer:
        with rt.Tape() as inner:
            y = X**3
        g = inner.gradient(y, X)
    assert_close(g, 3 * X**2)
    assert_close(outer.gradient(g, X), 6 * X)
    assert_close(outer.gradient(y, X), 3 * X**2)


def test_stock_in_ours():
    with rt.Tape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(X)
            y = X**3
        g = inner.gradient(y, X)
    assert_close(g, 3 * X**2)
    assert_close(outer.gradient(g, X), 6 * X)


def test_ours_in_stock():
    with tf.GradientTape(persistent=True) as outer:
        outer.watch(X)
        with rt.Tape() as inner:
            y = X**3
        g = inner.gradient(y, X)
    assert_close(g, 3 * X**2)
    assert_close(outer.gradient(g, X), 6 * X)
    assert_close(outer.gradient(y, X), 3 * X**2)


@pytest.mark.parametrize("kinds", ["oos", "oso", "soo", "sso", "sos", "oss", "ooo"])
def test_three_deep(kinds):
    make = {"o": rt.Tape, "s": tf.GradientTape}
    tapes = [make[kind]() for kind in kinds]
    with tapes[0]:
        tapes[0].watch(X)
        with tapes[1]:
            tapes[1].watch(X)
            with tapes[2]:
                tapes[2].watch(X)
                y = tf.sin(X)
            first = tapes[2].gradient(y, X)
        second = tapes[1].gradient(first, X)
    assert_close([first, second], [tf.cos(X), -tf.sin(X)])
    assert_close(tapes[0].gradient(second, X), -tf.cos(X))


@pytest.mark.parametrize("outer", [rt.Tape, tf.GradientTape])
@pytest.mark.parametrize("inner", [rt.Tape, tf.GradientTape])
def test_second_order_by_variables_of_a_model(outer, inner):
    net, data = dense_net(), batch()

    def second(outer_kind, inner_kind):
        with outer_kind() as o:
            with inner_kind() as i:
                i.watch(data)
                out = tf.reduce_sum(net(data))
            penalty = tf.reduce_sum(tf.norm(i.gradient(out, data), axis=1))
        return o.gradient(penalty, net.trainable_variables)

    assert_close(second(outer, inner), second(tf.GradientTape, tf.GradientTape))


def test_a_question_to_the_inner_tape_outside_its_outer_block_is_the_same():
    with rt.Tape() as outer:
        with rt.Tape() as inner:
            y = tf.exp(X)
        z = y * X
    assert_close(inner.gradient(y, X), tf.exp(X))
    assert_close(outer.gradient(z, X), tf.exp(X) * (X + 1))
    with pytest.raises(errors.NotRecordedError, match="after recording ended"):
        inner.gradient(z, X)


# ------------------------------------------------------------------ what belongs to a tape


def test_stop_recording_leaves_out():
    with rt.Tape() as tape:
        with tape.stop_recording():
            scale = X * 2.0
        y = X * scale
    assert_close(tape.gradient(y, X), scale)
    assert_close(tape.gradient(y, scale), X)
    assert [eqn.op for eqn in tape.program.eqns] == ["Mul"]


def test_stop_recording_of_one_tape_does_not_pause_another():
    with rt.Tape() as outer, rt.Tape() as inner, inner.stop_recording():
        y = X**2
    assert_close(outer.gradient(y, X), 2 * X)
    with pytest.raises(errors.NotRecordedError, match="while recording was paused"):
        inner.gradient(y, X)


def test_stop_recording_ends_with_an_exception():
    with rt.Tape() as tape:
        with pytest.raises(KeyError), tape.stop_recording():
            raise KeyError
        y = X**2
    assert_close(tape.gradient(y, X), 2 * X)


def test_stop_recording_inside_a_function():
    @tf.function
    def f(a):
        with rt.Tape() as tape:
            with tape.stop_recording():
                scale = a * 2.0
            y = a * scale
        return tape.gradient(y, a)

    assert_close(f(X), 2 * X)


def test_one_tape_entered_several_times_is_one_recording():
    tape = rt.Tape()
    y = X
    for _ in range(3):
        with tape:
            y = y * X
    assert_close(tape.gradient(y, X), 4 * X**3)


def test_what_runs_between_two_blocks_is_a_leaf():
    tape = rt.Tape()
    with tape:
        y = X * X
    between = y * 3.0
    with tape:
        z = between * y
    assert_close(tape.gradient(z, y), between)
    assert_close(tape.gradient(z, X), between * 2 * X)


def test_reset_inside_forgets_what_was_before():
    with rt.Tape() as tape:
        y = X * X
        tape.reset()
        z = y * X
    assert_close(tape.gradient(z, X), y)
    assert [eqn.op for eqn in tape.program.eqns] == ["Mul"]


def test_reset_outside_makes_the_tape_new():
    tape = rt.Tape()
    with tape:
        y = X * X
    tape.gradient(y, X)
    tape.reset()
    with tape:
        z = y * X
    assert_close(tape.gradient(z, X), y)


def test_reset_inside_a_function():
    @tf.function
    def f(a):
        with rt.Tape() as tape:
            y = a * a
            tape.reset()
            z = y * a
        return tape.gradient(z, a)

    assert_close(f(X), X * X)


def test_a_tape_that_was_left_hears_nothing():
    with rt.Tape() as tape:
        y = X * X
    before = len(tape.program.eqns)
    tf.reshape(y * 2.0, [1])
    assert len(tape.program.eqns) == before


# ------------------------------------------------------------------ TensorFlow afterwards


def test_hooks_are_in_place_while_recording_and_gone_after():
    with rt.Tape():
        assert not is_untouched()
    assert is_untouched()


def test_an_exception_inside_the_block_leaves_nothing_behind():
    with pytest.raises(ZeroDivisionError), rt.Tape() as tape:  # noqa: PT012
        y = X * X
        raise ZeroDivisionError
    assert is_untouched()
    assert_close(tape.gradient(y, X), 2 * X)


def test_an_op_that_fails_inside_the_block_leaves_nothing_behind():
    with pytest.raises(tf.errors.InvalidArgumentError), rt.Tape() as tape:  # noqa: PT012
        y = X * X
        tf.reshape(tf.ones(3), [2])
    assert is_untouched()
    assert_close(tape.gradient(y, X), 2 * X)


def test_an_exception_inside_a_function_or_a_custom_gradient_leaves_nothing_behind():
    @tf.function
    def fails(a):
        tf.debugging.assert_less(a, 0.0)
        return a

    @tf.custom_gradient
    def breaks(a):
        raise KeyError

    with rt.Tape() as tape:
        with pytest.raises(tf.errors.InvalidArgumentError):
            fails(X)
        with pytest.raises(KeyError):
            breaks(X)
        y = tf.reshape(X * X, [1])
    assert is_untouched()
    assert_close(tape.gradient(y, X), 2 * X)


def test_an_exception_while_a_question_is_answered_leaves_nothing_behind():
    v = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        def backward(upstream):
            raise KeyError("backward")

        return tf.identity(a), backward

    with rt.Tape() as tape:
        y = v * X + f(X)
    with pytest.raises(KeyError, match="backward"):
        tape.gradient(y, X)
    assert is_untouched()
    assert_close(tape.gradient(y, v), X)


def test_nested_blocks_left_by_one_exception():
    with pytest.raises(ZeroDivisionError), rt.Tape() as outer, rt.Tape() as inner:  # noqa: PT012
        y = X * X
        with inner.stop_recording():
            raise ZeroDivisionError
    assert is_untouched()
    assert_close([outer.gradient(y, X), inner.gradient(y, X)], [2 * X, 2 * X])


def test_blocks_may_be_left_in_any_order():
    first, second, third = rt.Tape(), rt.Tape(), rt.Tape()
    first.__enter__()
    second.__enter__()
    third.__enter__()
    y = X * X
    second.__exit__(None, None, None)
    z = y * X
    first.__exit__(None, None, None)
    w = tf.reshape(z * X, [1])
    third.__exit__(None, None, None)
    assert is_untouched()
    assert_close(third.gradient(w, X), 4 * X**3)
    assert_close(first.gradient(z, X), 3 * X**2)
    assert_close(second.gradient(y, X), 2 * X)
    with pytest.raises(errors.NotRecordedError):
        second.gradient(z, X)


def test_leaving_a_block_that_was_never_entered_is_harmless():
    rt.Tape().__exit__(None, None, None)


def test_asking_leaves_nothing_behind():
    with rt.Tape() as tape:
        y = X**4
    first = tape.gradient(y, X)
    assert is_untouched()
    tape.gradient(first, X)
    tape.jacobian(y, X)
    assert is_untouched()


# ------------------------------------------------------------------ somebody else's callbacks


def test_check_numerics_around_the_block():
    tf.debugging.enable_check_numerics()
    try:
        with rt.Tape() as tape:
            y = tf.reshape(X * X, [1])
            with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
                tf.math.log(X * -1.0)
        assert_close(tape.gradient(y, X), 2 * X)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
            tf.math.log(X * -1.0)
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
            tf.raw_ops.Reshape(tensor=tf.math.log(X * -1.0), shape=[1])
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isnan(tf.math.log(X * -1.0))


def test_check_numerics_switched_on_inside_and_off_outside():
    with rt.Tape() as tape:
        tf.debugging.enable_check_numerics()
        y = X * X
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"NaN|Inf"):
            tf.math.log(X * -1.0)
        assert_close(tape.gradient(y, X), 2 * X)
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isnan(tf.math.log(X * -1.0))


def test_check_numerics_switched_off_inside():
    tf.debugging.enable_check_numerics()
    with rt.Tape() as tape:
        tf.debugging.disable_check_numerics()
        y = tf.reshape(X * X, [1])
        assert np.isnan(tf.math.log(X * -1.0))
    assert_close(tape.gradient(y, X), 2 * X)


def test_a_callback_of_the_user_hears_the_same_as_without_us():
    def heard() -> list[str]:
        ops: list[str] = []

        def callback(op, inputs, attrs, outputs, op_name=None, graph=None):
            ops.append(op if isinstance(op, str) else op.decode())

        op_callbacks.add_op_callback(callback)
        try:
            tf.reshape(tf.sin(X * X), [1])
        finally:
            op_callbacks.remove_op_callback(callback)
        return ops

    alone = heard()
    with rt.Tape():
        beside = heard()
    assert alone == beside
    assert {"Sin", "Reshape"} <= set(alone)


# ------------------------------------------------------------------ threads


def in_threads(*work: Callable[[], None]) -> None:
    failed: list[BaseException] = []

    def guarded(step: Callable[[], None]) -> None:
        try:
            step()
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=guarded, args=(step,)) for step in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if failed:
        raise failed[0]


def test_four_threads_record_at_once_and_each_its_own():
    barrier = threading.Barrier(4, timeout=60)
    cube = tf.function(lambda a: a * a * a)
    cube(X)

    def worker(number: int) -> Callable[[], None]:
        def work() -> None:
            x = tf.constant(float(number + 1))
            for _ in range(5):
                barrier.wait()
                with rt.Tape() as tape:
                    y = tf.reshape(cube(x), [1])
                    for _ in range(number):
                        y = tf.negative(y)
                    barrier.wait()
                    z = tf.reshape(y, []) * x
                sign = (-1) ** number
                assert_close(tape.gradient(z, x), sign * 4 * x**3)
                assert sum(eqn.op == "Neg" for eqn in tape.program.eqns) == number

        return work

    in_threads(*(worker(number) for number in range(4)))


def test_leaving_one_block_does_not_blind_another_thread():
    entered, left = threading.Event(), threading.Event()
    square = tf.function(lambda a: a * a)
    square(X)

    def short() -> None:
        with rt.Tape():
            entered.set()
            square(X)
        left.set()

    def long() -> None:
        with rt.Tape() as tape:
            entered.wait(60)
            left.wait(60)
            y = tf.reshape(square(X), [1])
            z = tf.reshape(y, []) * X
        assert_close(tape.gradient(z, X), 3 * X**2)

    in_threads(long, short)


def test_an_op_of_another_thread_is_not_recorded():
    made = []
    with rt.Tape() as tape:
        y = X * X
        in_threads(lambda: made.append(tf.reshape(tf.sin(X), [1])))
    assert [eqn.op for eqn in tape.program.eqns] == ["Mul"]
    assert_close(tape.gradient(y, X), 2 * X)


def test_a_tape_may_be_asked_in_another_thread():
    found = []
    with rt.Tape() as tape:
        y = X**3
    in_threads(lambda: found.append(tape.gradient(y, X)))
    in_threads(lambda: found.append(tape.gradient(found[0], X)))
    assert_close(found, [3 * X**2, 6 * X])


# ------------------------------------------------------------------ asking later


def test_asking_again_gives_the_same():
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        loss = tf.reduce_mean(net(data) ** 2)
    first = tape.gradient(loss, net.trainable_variables)
    for _ in range(3):
        for one, other in zip(first, tape.gradient(loss, net.trainable_variables), strict=True):
            np.testing.assert_array_equal(one, other)


def test_several_sources_are_each_on_its_own():
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        loss = tf.reduce_mean(net(data) ** 2)
    sources = [*net.trainable_variables, data]
    for one, source in zip(tape.gradient(loss, sources), sources, strict=True):
        np.testing.assert_array_equal(one, tape.gradient(loss, source))


@pytest.mark.parametrize("compiled", [False, True])
def test_training_on_does_not_change_the_answer(compiled):
    net, data = dense_net(), batch()

    def forward(a):
        return tf.reduce_mean(net(a) ** 2)

    forward = tf.function(forward) if compiled else forward
    expected = stock_gradient(lambda: forward(data), net.trainable_variables)
    with rt.Tape() as tape:
        loss = forward(data)
    for weight in net.trainable_variables:
        weight.assign(weight + 1.0)
    assert_close(tape.gradient(loss, net.trainable_variables), expected)
    assert_close(tape.gradient(loss, net.trainable_variables), expected)


def test_second_order_after_the_variables_changed():
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        y = w**3 * X
    w.assign(100.0)
    first = tape.gradient(y, w)
    assert_close(first, 12 * X)
    w.assign(50.0)
    assert_close(tape.gradient(first, w), 12 * X)
    assert_close(tape.gradient(first, X), 12.0)


def test_an_assignment_in_the_block_ends_the_path_as_in_tensorflow():
    def steps(w):
        y = w * w
        w.assign(y * X)
        return y + w * w

    w = tf.Variable(3.0)
    expected = stock_gradient(lambda: steps(w), [w, X])
    w.assign(3.0)
    with rt.Tape() as tape:
        out = steps(w)
    assert_close(tape.gradient(out, [w, X]), expected)


@pytest.mark.parametrize("update", ["assign", "assign_add", "assign_sub"])
def test_an_update_of_a_variable_that_was_not_read_before(update):
    w = tf.Variable(3.0)
    with rt.Tape() as tape:
        getattr(w, update)(1.0)
        y = w * w
    assert_close(tape.gradient(y, w), 2 * w.numpy())


# ------------------------------------------------------------------ watching


def test_watch_takes_tensors_variables_keras_variables_and_nests():
    v, k, t = tf.Variable(1.0), keras.Variable(2.0), tf.constant(3.0)
    with rt.Tape(watch_accessed_variables=False) as tape:
        tape.watch({"a": [v, k], "b": t})
        y = v * k * t
    assert [id(w) for w in tape.watched_variables()] == [id(v), id(k.value)]
    assert_close(tape.gradient(y, [v, k, t]), [6.0, 3.0, 2.0])


def test_a_watched_tensor_that_took_no_part_is_none():
    other = tf.constant(1.0)
    with rt.Tape() as tape:
        tape.watch(other)
        y = X * X
    assert tape.gradient(y, other) is None
    assert_close(tape.gradient(y, other, unconnected_gradients="zero"), 0.0)
    assert_close(tape.gradient(other, other), 1.0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("accessed", [True, False])
def test_watched_variables_are_those_of_the_stock_tape(accessed, compiled):
    net, data = dense_net(), batch()
    fixed, free, unread = tf.Variable(1.0, trainable=False), tf.Variable(2.0), tf.Variable(3.0)

    def forward():
        return tf.reduce_sum(net(data)) * fixed * free

    if compiled:
        forward = tf.function(forward)

    def watched(kind):
        with kind(watch_accessed_variables=accessed) as tape:
            tape.watch(unread)
            tape.watch(fixed)
            forward()
        return {id(variable) for variable in tape.watched_variables()}

    theirs = watched(tf.GradientTape)
    assert watched(rt.Tape) == theirs
    assert len(theirs) == (9 if accessed else 2)


def test_keras_variables_are_sources_and_targets():
    k = keras.Variable([1.0, 2.0])
    with rt.Tape() as tape:
        y = tf.reduce_sum(k.value**2)
    assert_close(tape.gradient(y, {"k": k}), {"k": tf.constant([2.0, 4.0])})
    assert_close(tape.gradient(k, k), tf.ones(2))


# ------------------------------------------------------------------ Jacobians

W = tf.constant(np.random.default_rng(1).normal(size=(6, 7)).astype("float32"))
FUNCTIONS = {
    "square": lambda a: a * a,
    "softmax": tf.nn.softmax,
    "matmul": lambda a: tf.tanh(a @ W),
    "sum": tf.reduce_sum,
    "rows": lambda a: tf.reduce_sum(a**3, axis=1),
    "concat": lambda a: tf.concat([a, tf.sin(a)], axis=1),
    "gather": lambda a: tf.gather(a**2, [0, 2, 0], axis=1),
    "cumsum": lambda a: tf.cumsum(a, axis=1) ** 2,
    "transpose": lambda a: tf.transpose(a) @ a,
    "function": tf.function(lambda a: tf.sin(a) * a),
}


def both_jacobians(f: Callable, a: tf.Tensor, **options: Any) -> tuple[Any, Any]:
    with tf.GradientTape(persistent=True) as stock:
        stock.watch(a)
        y = f(a)
    with rt.Tape() as tape:
        z = f(a)
    return tape.jacobian(z, a, **options), stock.jacobian(y, a, **options)


@pytest.mark.parametrize(("rows", "pfor"), [(1, True), (1, False), (2, True), (4, True), (4, False)])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_jacobian_is_that_of_the_stock_tape(name, rows, pfor):
    ours, theirs = both_jacobians(FUNCTIONS[name], batch(rows, 6), experimental_use_pfor=pfor)
    assert_close(ours, theirs)


@pytest.mark.parametrize("rows", [1, 5])
@pytest.mark.parametrize("name", ["square", "softmax", "matmul", "concat", "gather", "cumsum", "function"])
def test_batch_jacobian_is_that_of_the_stock_tape(name, rows):
    a, f = batch(rows, 6), FUNCTIONS[name]
    with tf.GradientTape() as stock:
        stock.watch(a)
        y = f(a)
    with rt.Tape() as tape:
        z = f(a)
    ours = tape.batch_jacobian(z, a)
    assert_close(ours, stock.batch_jacobian(y, a))
    full = tape.jacobian(z, a)
    assert_close(ours, tf.stack([full[row, :, row] for row in range(rows)]))


def test_batch_jacobian_of_a_wide_target():
    a = batch(3, 20)
    with tf.GradientTape() as stock:
        stock.watch(a)
        y = tf.cumsum(a, axis=1) ** 2
    with rt.Tape() as tape:
        z = tf.cumsum(a, axis=1) ** 2
    theirs = stock.batch_jacobian(y, a)
    assert_close(tape.batch_jacobian(z, a), theirs)
    assert_close(tape.batch_jacobian(z, a, experimental_use_pfor=False), theirs)


def test_jacobian_agrees_with_finite_differences():
    a = tf.cast(batch(3, 2), tf.float64)

    def f(t):
        return tf.sin(t) @ tf.transpose(t) * tf.exp(t[:, :1])

    with rt.Tape() as tape:
        y = f(a)
    found = tape.jacobian(y, a).numpy()
    step = 1e-6
    for row in range(3):
        for column in range(2):
            bump = np.zeros((3, 2))
            bump[row, column] = step
            slope = (f(a + bump) - f(a - bump)) / (2 * step)
            np.testing.assert_allclose(found[:, :, row, column], slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("size", [3, 20])
def test_jacobian_by_variables_and_nests(size):
    net, data = dense_net(), batch(size)
    with tf.GradientTape() as stock:
        y = tf.squeeze(net(data))
    with rt.Tape() as tape:
        z = tf.squeeze(net(data))
    theirs = stock.jacobian(y, net.trainable_variables)
    ours = tape.jacobian(z, {"all": net.trainable_variables, "data": data})
    assert_close(ours["all"], theirs)
    assert ours["data"].shape == (size, size, 3)


@pytest.mark.parametrize("size", [3, 20])
@pytest.mark.parametrize("compiled", [False, True])
def test_jacobian_by_rows_that_were_looked_up(size, compiled):
    table = tf.Variable(batch(6, 2))
    at = [index % 6 for index in range(size // 2 + 1)]

    def look():
        return tf.gather(table, at) ** 2

    look = tf.function(look) if compiled else look
    with tf.GradientTape() as stock:
        y = look()
    with rt.Tape() as tape:
        z = look()
    assert_close(tape.jacobian(z, table), stock.jacobian(y, table))


@pytest.mark.parametrize("size", [3, 20])
def test_jacobian_by_a_source_without_path(size):
    a, b = tf.ones(size), tf.ones((2, 2))
    with rt.Tape() as tape:
        y = a * 2.0
        b * 3.0
    mixed = tape.jacobian(y, [b, a])
    assert mixed[0] is None
    assert_close(mixed[1], 2 * tf.eye(size))
    assert tape.jacobian(y, b) is None
    assert_close(tape.jacobian(y, [b, a], unconnected_gradients="zero"), [tf.zeros((size, 2, 2)), 2 * tf.eye(size)])


def test_batch_jacobian_by_a_source_without_path_is_that_of_the_stock_tape():
    a, b = tf.ones((2, 3)), tf.ones((2, 4))
    with tf.GradientTape() as stock:
        stock.watch([a, b])
        y = a * 2.0
    with rt.Tape() as tape:
        z = a * 2.0
        b * 1.0
    assert_close(tape.batch_jacobian(z, b), stock.batch_jacobian(y, b))


@pytest.mark.parametrize("size", [3, 20])
def test_jacobian_through_a_custom_gradient_and_a_loop(size):
    @tf.custom_gradient
    def triple(a):
        return a * a, lambda upstream: upstream * 3.0 * a

    @tf.function
    def loop(a):
        for _ in tf.range(3):
            a = a * tf.sin(a)
        return a

    a = tf.linspace(0.1, 1.0, size)
    ours, theirs = both_jacobians(lambda t: loop(triple(t)), a)
    assert_close(ours, theirs)


def test_jacobian_inside_a_function_is_that_outside():
    a = batch(2, 3)

    @tf.function
    def inside(t):
        with rt.Tape() as tape:
            y = tf.nn.softmax(t)
        return tape.jacobian(y, t), tape.batch_jacobian(y, t)

    with rt.Tape() as tape:
        y = tf.nn.softmax(a)
    assert_close(inside(a), (tape.jacobian(y, a), tape.batch_jacobian(y, a)))


def test_a_hessian_by_asking_again():
    a = tf.constant([0.5, 1.5, 2.5])
    with rt.Tape() as tape:
        y = tf.reduce_sum(a**3) + a[0] * a[1] * a[2]
    gradient = tape.gradient(y, a)
    a0, a1, a2 = a.numpy()
    expected = [[6 * a0, a2, a1], [a2, 6 * a1, a0], [a1, a0, 6 * a2]]
    assert_close(tape.jacobian(gradient, a), np.array(expected, "float32"))


def test_ragged_sources_are_answered_as_by_the_stock_tape():
    ragged = tf.ragged.constant([[1.0, 2.0], [3.0]])
    values = ragged.values
    with tf.GradientTape(persistent=True) as stock:
        stock.watch(ragged)
        y = tf.reduce_sum(ragged * ragged, axis=1)
    with rt.Tape() as tape:
        z = tf.reduce_sum(ragged * ragged, axis=1)
    ours, theirs = tape.gradient(z, ragged), stock.gradient(y, ragged)
    assert isinstance(ours, tf.RaggedTensor)
    assert ours.to_list() == theirs.to_list() == [[2.0, 4.0], [6.0]]
    assert_close(tape.jacobian(z, values), tf.constant([[2.0, 4.0, 0.0], [0.0, 0.0, 6.0]]))


# ------------------------------------------------------------------ higher order


def test_third_derivative_by_asking_again():
    with rt.Tape() as tape:
        y = X**4
    first = tape.gradient(y, X)
    second = tape.gradient(first, X)
    third = tape.gradient(second, X)
    assert_close([first, second, third], [4 * X**3, 12 * X**2, 24 * X])
    assert_close(tape.gradient(third, X), 24.0)


def test_third_derivative_agrees_with_finite_differences():
    a = tf.constant(0.8, tf.float64)

    def f(t):
        return tf.sin(t) * tf.exp(t) / (1 + t**2)

    def second(t):
        with rt.Tape() as tape:
            y = f(t)
        return tape, tape.gradient(tape.gradient(y, t), t)

    tape, found = second(a)
    step = 1e-5
    slope = (second(a + step)[1] - second(a - step)[1]) / (2 * step)
    assert_close(tape.gradient(found, a), slope, rtol=1e-7)


def test_mixed_partials_are_equal():
    a, b = tf.constant(0.3), tf.constant(1.4)
    with rt.Tape() as tape:
        y = tf.sin(a) * b**2
    by_a, by_b = tape.gradient(y, [a, b])
    expected = tf.cos(a) * 2 * b
    assert_close([tape.gradient(by_a, b), tape.gradient(by_b, a)], [expected, expected])
    assert_close([tape.gradient(by_a, a), tape.gradient(by_b, b)], [-tf.sin(a) * b**2, tf.sin(a) * 2])


def test_what_was_asked_is_a_new_target_only_for_the_tape_that_answered():
    with rt.Tape() as one, rt.Tape() as other:
        y = X**3
    g = one.gradient(y, X)
    assert_close(one.gradient(g, X), 6 * X)
    with pytest.raises(errors.NotRecordedError, match="after recording ended"):
        other.gradient(g, X)


def test_the_gradient_by_output_gradients_that_were_given():
    """The answer is linear in what flows in, so that its derivative by that is the first derivative."""
    weight = tf.constant(0.7)
    with rt.Tape() as tape:
        y = X**3
    g = tape.gradient(y, X, output_gradients=weight)
    assert_close(tape.gradient(g, weight), 3 * X**2)
    assert_close(tape.gradient(g, X), 6 * X * weight)


@pytest.mark.parametrize("compiled", [False, True])
def test_the_gradient_of_a_gradient_through_keras(compiled):
    net, data = dense_net(), batch()
    call = tf.function(net) if compiled else net
    with tf.GradientTape() as outer:
        with tf.GradientTape() as inner:
            inner.watch(data)
            out = tf.reduce_sum(call(data))
        penalty = tf.reduce_sum(inner.gradient(out, data) ** 2)
    expected = outer.gradient(penalty, net.trainable_variables)

    with rt.Tape() as tape:
        out = tf.reduce_sum(call(data))
    slope = tape.gradient(out, data)
    seed = 2.0 * slope  # d(sum g²)/dg
    # The output depends on the last bias, its slope does not: zero where the stock tape says None.
    zeros = [tf.zeros_like(v) if e is None else e for v, e in zip(net.trainable_variables, expected, strict=True)]
    second = tape.gradient(slope, net.trainable_variables, output_gradients=seed)
    assert_close(second, expected if compiled else zeros)

    with tape:
        penalty = tf.reduce_sum(tape.gradient(out, data) ** 2)
    assert_close(tape.gradient(penalty, net.trainable_variables), expected)


@tf.function
def power(a, n):
    result = tf.ones_like(a)
    for _ in tf.range(n):
        result = result * a
    return result


@tf.function
def branch(a, n):
    return tf.sin(a) * a if a > 0 else tf.exp(a)


@tf.function
def straight(a, n):
    return tf.sin(a) * a**2


@tf.function
def while_tensor_array(a, n):
    rows = tf.TensorArray(tf.float32, size=n)
    for index in tf.range(n):
        rows = rows.write(index, tf.sin(a) * tf.cast(index + 1, tf.float32))
    return tf.reduce_sum(rows.stack() ** 2)


@pytest.mark.parametrize("f", [power, branch, straight, while_tensor_array], ids=["while", "if", "plain", "array"])
def test_orders_through_a_function(f):
    n = tf.constant(5)
    tapes = [tf.GradientTape() for _ in range(3)]
    with tapes[2] as t3:
        t3.watch(X)
        with tapes[1] as t2:
            t2.watch(X)
            with tapes[0] as t1:
                t1.watch(X)
                y = f(X, n)
            g1 = t1.gradient(y, X)
        g2 = t2.gradient(g1, X)
    g3 = t3.gradient(g2, X)

    with rt.Tape() as tape:
        y = f(X, n)
    first = tape.gradient(y, X)
    second = tape.gradient(first, X)
    third = tape.gradient(second, X)
    assert_close([first, second, third], [g1, g2, g3], rtol=1e-4)


def test_second_order_inside_a_function():
    @tf.function
    def inside(a):
        with rt.Tape() as tape:
            y = a**3
        g = tape.gradient(y, a)
        return g, tape.gradient(g, a), tape.gradient(tape.gradient(g, a), a)

    assert_close(inside(X), (3 * X**2, 6 * X, 6.0))


def test_second_order_of_a_loop_inside_a_function():
    @tf.function
    def inside(a):
        with rt.Tape() as tape:
            y = tf.ones_like(a)
            for _ in tf.range(4):
                y = y * a
        g = tape.gradient(y, a)
        return g, tape.gradient(g, a)

    assert_close(inside(X), (4 * X**3, 12 * X**2))


def test_a_gradient_asked_inside_the_block_is_part_of_it():
    with rt.Tape() as tape:
        y = X**2
        g = tape.gradient(y, X)
        z = g * g
    assert_close(g, 2 * X)
    assert_close(tape.gradient(z, X), 8 * X)


def test_a_gradient_used_in_a_block_that_is_entered_again():
    tape = rt.Tape()
    with tape:
        y = tf.sin(X)
    g = tape.gradient(y, X)
    with tape:
        z = g * g * X
    # What was asked outside of the block is a constant in it, as on the stock tape; what is asked inside is not.
    assert_close(tape.gradient(z, X), tf.cos(X) ** 2)
    with tape:
        g = tape.gradient(y, X)
        z = g * g * X
    assert_close(tape.gradient(z, X), tf.cos(X) ** 2 - 2 * X * tf.cos(X) * tf.sin(X))


def test_a_sparse_gradient_is_a_target_too():
    table = tf.Variable(batch(4, 2))
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.gather(table, [1, 1, 3]) ** 3)
    g = tape.gradient(y, table)
    assert isinstance(g, tf.IndexedSlices)
    again = tape.gradient(g.values, table)
    counts = np.array([0, 2, 0, 1])[:, None]
    assert_close(again, 6 * table.numpy() * counts)


# ------------------------------------------------------------------ what is kept


def dropout_net() -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = keras.layers
    net = keras.Sequential([layers.Dense(6, "gelu"), layers.BatchNormalization(), layers.Dropout(0.5), layers.Dense(2)])
    net.build((None, 3))
    return net


@pytest.mark.parametrize("compiled", [False, True])
def test_whatever_is_kept_the_gradients_are_identical(compiled):
    net, data = dropout_net(), batch(8)

    def head(a):
        return tf.reduce_logsumexp(a, axis=1)

    head = tf.function(head) if compiled else head
    tapes = {keep: rt.Tape(keep=keep) for keep in ("needed", "all", "leaves")}
    with tapes["needed"], tapes["all"], tapes["leaves"]:
        loss = tf.reduce_sum(head(net(data, training=True)) ** 2)
    sources = [*net.trainable_variables, data]
    found = {keep: tape.gradient(loss, sources) for keep, tape in tapes.items()}
    second = {keep: tape.gradient(found[keep][-1], data) for keep, tape in tapes.items()}
    for keep in ("all", "leaves"):
        for one, other in zip([*found["needed"], second["needed"]], [*found[keep], second[keep]], strict=True):
            np.testing.assert_array_equal(one, other)


def test_less_is_held_where_less_is_kept():
    held = {}
    for keep in ("needed", "all", "leaves"):
        with rt.Tape(keep=keep) as tape:
            y = batch(100)
            for _ in range(5):
                y = tf.sin(y) + 1.0
        held[keep] = tape.memory().bytes
    assert held["leaves"] < held["needed"] < held["all"]


def test_recompute_grad_uses_the_recorded_draw():
    @tf.recompute_grad
    def block(a):
        return tf.nn.dropout(a, 0.5) * 2.0

    a = tf.ones(50) * 3.0
    with rt.Tape() as tape:
        y = block(a)
    g = tape.gradient(y, a)
    assert 0 < np.count_nonzero(y) < 50
    np.testing.assert_array_equal(g * a, y)


def test_recompute_grad_uses_the_recorded_value_of_a_variable():
    v = tf.Variable(2.0)

    @tf.recompute_grad
    def block(a):
        return a * a * v

    with rt.Tape() as tape:
        y = block(X)
    v.assign(10.0)
    assert_close(tape.gradient(y, [X, v]), [2 * X * 2.0, X * X])


def test_recompute_grad_holds_no_intermediate_values():
    def deep(a):
        for _ in range(20):
            a = tf.sin(a)
        return a

    def held(f):
        with rt.Tape() as tape:
            y = f(tf.ones(1000))
        return tape, y

    plain, _ = held(deep)
    frugal, _ = held(tf.recompute_grad(deep))
    assert frugal.memory().bytes < plain.memory().bytes / 4
    assert sum(eqn.op == "Sin" for eqn in frugal.program.eqns) == 20


def test_recompute_grad_of_a_keras_block_is_that_of_the_stock_tape():
    net, data = dense_net(), batch()

    @tf.recompute_grad
    def block(a):
        return net(a)

    expected = stock_gradient(lambda: tf.reduce_sum(net(data) ** 2), net.trainable_variables)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(block(data) ** 2)
    assert_close(tape.gradient(loss, net.trainable_variables), expected)


# ------------------------------------------------------------------ custom gradients


@pytest.mark.parametrize("read", ["before", "after", "never"])
def test_a_custom_gradient_sees_variables_as_they_were(read):
    v = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        return tf.identity(a), lambda upstream: upstream * v.read_value()

    with rt.Tape() as tape:
        if read == "before":
            v.read_value()
        y = f(X)
        if read == "after":
            v.read_value()
    v.assign(10.0)
    assert float(tape.gradient(y, X)) == 2.0
    assert float(v) == 10.0


def test_a_custom_gradient_sees_each_value_of_a_variable_in_its_time():
    v = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        return tf.identity(a), lambda upstream: upstream * v.read_value()

    with rt.Tape() as tape:
        v.read_value()
        y = f(X)
        v.assign(5.0)
        z = f(X)
    v.assign(10.0)
    assert float(tape.gradient(y, X)) == 2.0
    assert float(tape.gradient(z, X)) == 5.0


def test_a_custom_gradient_with_variables_is_that_of_the_stock_tape():
    w = tf.Variable(2.0)

    @tf.custom_gradient
    def f(a):
        y = a * w

        def backward(upstream, variables=None):
            return upstream * 7.0, [upstream * 11.0 for _ in variables]

        return y, backward

    expected = stock_gradient(lambda: f(X) * 3.0, [X, w])
    with rt.Tape() as tape:
        y = f(X) * 3.0
    assert_close(tape.gradient(y, [X, w]), expected)
    assert_close(expected, [21.0, 33.0])


def test_a_custom_gradient_has_a_derivative_too():
    @tf.custom_gradient
    def f(a):
        return tf.math.log1p(tf.exp(a)), lambda upstream: upstream * (1.0 - 1.0 / (1.0 + tf.exp(a)))

    with rt.Tape() as tape:
        y = f(X)
    first = tape.gradient(y, X)
    sigmoid = tf.sigmoid(X)
    assert_close(first, sigmoid)
    assert_close(tape.gradient(first, X), sigmoid * (1 - sigmoid))


def test_clipping_gradients_by_a_custom_gradient():
    @tf.custom_gradient
    def clip(a):
        return tf.identity(a), lambda upstream: tf.clip_by_value(upstream, -1.0, 1.0)

    with rt.Tape() as tape:
        inner = X * 2.0
        y = clip(inner) * 100.0
    assert_close(tape.gradient(y, [X, inner]), [2.0, 1.0])


# ------------------------------------------------------------------ frames


def line_of(tape: rt.Tape, op: str) -> tuple[str, int, str]:
    program = tape.program
    (frame,) = {program.frame_of(eqn) for eqn in program.eqns if eqn.op == op}
    return frame.file, frame.line, frame.function


def test_an_equation_knows_the_line_that_ran_it():
    with rt.Tape() as tape:
        here = inspect.currentframe().f_lineno
        tf.sin(X)
        tf.reshape(X, [1])
    function = inspect.currentframe().f_code.co_name
    assert line_of(tape, "Sin") == (__file__, here + 1, function)
    assert line_of(tape, "Reshape") == (__file__, here + 2, function)


def test_the_line_is_the_users_also_deep_inside_keras():
    net, data = dense_net(), batch()
    with rt.Tape() as tape:
        here = inspect.currentframe().f_lineno
        net(data)
    assert line_of(tape, "MatMul") == (__file__, here + 1, inspect.currentframe().f_code.co_name)


def test_the_line_is_the_users_in_a_layer_of_his_own():
    class Mine(keras.layers.Layer):
        def call(self, a):
            return tf.sin(a)

    line = inspect.getsourcelines(Mine.call)[1] + 1
    layer = Mine()
    with rt.Tape() as tape:
        layer(batch())
    assert line_of(tape, "Sin") == (__file__, line, "call")


def test_the_line_inside_a_function_is_where_the_op_was_added():
    found = []

    @tf.function
    def f(a):
        with rt.Tape() as tape:
            y = tf.sin(a)
        found.append(line_of(tape, "Sin"))
        return y

    f(X)
    _, start = inspect.getsourcelines(f.python_function)
    assert found[0][:2] == (__file__, start + 3)


# ------------------------------------------------------------------ these tests can fail


def test_a_wrong_rule_is_noticed(monkeypatch):
    from retrotape.rules import Rule, _lookup

    monkeypatch.setitem(_lookup._rules, "Sin", Rule(lambda op, grad: grad * 2.0))
    with rt.Tape() as tape:
        y = tf.sin(X)
    with pytest.raises(AssertionError):
        assert_close(tape.gradient(y, X), tf.cos(X))


def test_a_hook_left_behind_is_noticed(monkeypatch):
    owner, name, hook = _hooks._HOOKS[1]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, hook)
        assert not is_untouched()
    assert is_untouched()
