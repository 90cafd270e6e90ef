"""What changes between queries on one tape, or after them, and what backward functions change."""

from __future__ import annotations

import functools
import threading
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import retrotape as rt
from helpers.warm import reasons, refused
from lower.custom import X, step
from retrotape.lower import _closures as closures
from retrotape.record import settings

SCALE = 1.0


def test_a_global_that_changes_between_queries_on_one_tape(monkeypatch: pytest.MonkeyPatch):
    @tf.custom_gradient
    def scaled(a):
        return tf.identity(a), lambda dy: dy * SCALE

    x = tf.Variable(3.0)
    with rt.Tape() as tape:
        y = scaled(x * 1.0)
    found, compiled = [], []
    for number in range(6):
        monkeypatch.setitem(globals(), "SCALE", 1.0 if number < 3 else 5.0)
        found.append(float(tape.gradient(y, [x])[0]))
        compiled.append(tape.why_not_compiled() is None)
    assert found == [1.0, 1.0, 1.0, 5.0, 5.0, 5.0]
    assert compiled == [False, False, True] * 2


@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_sources_that_the_caller_changes_after_the_query(kind: type):
    a, b = tf.Variable(2.0), tf.Variable(3.0)
    for _ in range(5):
        with rt.Tape() as tape:
            y = a**3 * b
        sources: Any = {"a": a, "b": b} if kind is dict else kind([a, b])
        first = tape.gradient(y, sources)
        if kind is list:
            sources.reverse()
        elif kind is dict:
            sources.update(a=b, b=a)
        assert float(tape.gradient(tf.nest.flatten(first)[0], [a])[0]) == 36.0  # 6 a b


def test_losses_that_the_caller_changes_after_the_query():
    a = tf.Variable(2.0)
    for _ in range(5):
        with rt.Tape() as tape:
            losses = [a**2, a**3]
        first, second = tape.backward_each(losses, [a])
        losses.reverse()
        assert float(tape.gradient(first[a], [a])[0]) == 2.0
        assert float(tape.gradient(second[a], [a])[0]) == 12.0


def scaled(*args, s=1.0):
    return args[-1] * (s if len(args) == 1 else 3.0)


def test_partials_with_the_same_words_in_other_places():
    cases = [functools.partial(scaled, s=2.0), functools.partial(scaled, "s", 2.0)]
    found = reasons(lambda case: step(lambda dy: case(dy)), *[case for case in cases for _ in range(4)])
    assert found[3] is found[7] is None


class Odd(np.ndarray):
    """An array that multiplies in its own way."""


@pytest.mark.parametrize("array", [np.ma.masked_array([1.0, 2.0, 3.0], [0, 1, 0]), np.ones(3).view(Odd)])
def test_other_classes_of_arrays_are_refused(array):
    assert "which may change between steps" in refused(lambda _: step(lambda dy: dy * tf.constant(array, tf.float32)))


def test_functions_of_keras_read_its_settings():
    def by_epsilon(dy):
        return ops.normalize(dy * 0.001)

    before = keras.config.epsilon()
    try:
        for epsilon in (1e-7, 0.5):
            keras.config.set_epsilon(epsilon)
            assert "'keras.ops', which may change between steps" in refused(lambda _: step(by_epsilon))
    finally:
        keras.config.set_epsilon(before)


def filled(array):
    def backward(dy):
        array.fill(1.0)
        return dy

    return backward


def added(array):
    def backward(dy):
        same = array
        same += 1.0
        return dy

    return backward


@pytest.mark.parametrize("make", [filled, added])
def test_a_backward_function_that_changes_an_array_runs_each_time(make):
    array, seen = np.zeros(2, "float32"), []
    for _ in range(6):
        array[:] = 0.0
        tape, _ = step(make(array))
        seen.append(array[0])
    assert seen == [1.0] * 6
    assert "changes something" in tape.why_not_compiled()


def test_a_large_tensor_of_a_closure_is_not_copied():
    large, small = (tf.ones([size]) for size in (400_000, 4))
    assert "it uses a large tensor" in refused(lambda _: step(lambda dy: dy * tf.reduce_sum(large)))
    assert reasons(lambda _: step(lambda dy: dy * tf.reduce_sum(small)), *[None] * 4)[-1] is None


@pytest.mark.parametrize("query", ["gradient", "jacobian"])
def test_an_op_that_fails_is_named_as_it_is_op_by_op(query: str):
    def ask(index: int, compile: bool) -> str:
        @tf.custom_gradient
        def custom(a):
            return a * 1.0, lambda dy: tf.scatter_nd(index_of[:, None], dy, tf.shape(dy))

        index_of = tf.constant([0, 1, index])
        with rt.config(compile=compile):
            with rt.Tape() as tape:
                y = custom(X * tf.cast(index_of, tf.float32))
            getattr(tape, query)(y, X)
        return tape.why_not_compiled()

    for _ in range(4):
        ask(2, True)
    texts = []
    for compile in (True, False):
        with pytest.raises(tf.errors.InvalidArgumentError) as caught:
            ask(40, compile)
        texts.append(caught.value.message)
    assert texts[0] == texts[1]


def test_an_op_that_fails_runs_though_nothing_uses_its_result():
    def ask(matrix: tf.Tensor, query: str = "gradient") -> Any:
        @tf.custom_gradient
        def checked(a, m):
            def backward(dy):
                tf.linalg.inv(m)
                return dy * 2.0, None

            return a * 1.0, backward

        with rt.Tape() as tape:
            y = checked(X, matrix) ** 2
        getattr(tape, query)(y, X)
        return tape.why_not_compiled()

    found = [ask(tf.eye(2)) for _ in range(4)]
    assert found[-1] is None
    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        ask(tf.zeros([2, 2]))
    rows = [ask(tf.eye(2), "jacobian") for _ in range(4)]
    assert rows[-1] is None or "an op that may fail" in rows[-1]
    with pytest.raises(tf.errors.InvalidArgumentError, match="not invertible"):
        ask(tf.zeros([2, 2]), "jacobian")


@pytest.mark.parametrize("compile", [True, False])
def test_which_tensor_a_result_is(compile: bool):
    a, b, seed = tf.constant([1.0, 2.0]), tf.constant([3.0, 4.0]), tf.constant([3.0, 4.0])
    for _ in range(5):
        with rt.config(compile=compile):
            with rt.Tape() as tape:
                same, total = tf.identity(a), tf.sin(a + b)
                twice = a * b + a * b
            (passed,) = tape.gradient(same, [a], output_gradients=seed)
            first, second = tape.gradient(total, [a, b])
            left, right = tape.gradient(twice, [a, b])
        assert passed is seed
        assert first is second
        assert left is not right
    assert (tape.why_not_compiled() is None) == compile


def test_a_function_of_tensorflow_that_is_replaced(monkeypatch: pytest.MonkeyPatch):
    def once(patched: bool):
        with monkeypatch.context() as patch:
            if patched:
                patch.setattr(tf, "cos", tf.sin)
                patch.setattr(tf.math, "square", tf.math.sqrt)
            return step(lambda dy: tf.cos(dy) + tf.math.square(dy * dy))

    assert reasons(once, *[False] * 4, *[True] * 4, False)[-1] is None


def test_an_op_that_only_nested_code_uses_is_replaced(monkeypatch: pytest.MonkeyPatch):
    def backward(dy):
        def inner():
            return tf.cos(dy)

        return inner()

    def once(patched: bool):
        with monkeypatch.context() as patch:
            if patched:
                patch.setattr(tf, "cos", tf.sin)
            return step(backward)

    assert reasons(once, *[False] * 4, *[True] * 4, False)[-1] is None


def test_a_function_that_user_code_adds_to_tensorflow(monkeypatch: pytest.MonkeyPatch):
    factors = [2.0]
    monkeypatch.setattr(tf, "scaled_by_users", lambda x: x * factors[0], raising=False)
    closures._public.cache_clear()  # as if nothing had been compiled before
    assert "which may change between steps" in refused(lambda _: step(lambda dy: tf.scaled_by_users(dy)))
    monkeypatch.undo()
    closures._public.cache_clear()


def test_a_tensor_of_a_closure_that_shares_the_memory_of_an_array():
    raw = np.zeros(512, np.uint8)
    begin = -raw.ctypes.data % 64  # TensorFlow takes aligned memory only
    array = raw[begin : begin + 12].view(np.float32)
    shared = tf.experimental.dlpack.from_dlpack(array.__dlpack__())

    def once(value: float):
        array[:] = value
        return step(lambda dy: dy * shared)

    assert reasons(once, *[1.0] * 4, *[7.0] * 4)[3] is None


class Disguised(functools.partial):
    """Multiplies by something that is not compared."""

    factor = 1.0

    def __call__(self, dy):
        return dy * self.factor


def test_a_subclass_of_partial_is_refused():
    function = Disguised(abs)
    assert "which may change between steps" in refused(lambda _: step(lambda dy: function(dy)))


def test_blocks_on_many_threads_leave_the_setting():
    before = settings.mode

    def work():
        for _ in range(500):
            with rt.config(compile=False), rt.config(compile="always"):
                assert settings.mode == "always"

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert settings.mode == before


def test_a_block_can_be_entered_again():
    before, block = settings.mode, rt.config(compile=False)
    with block, block:
        assert settings.mode == "never"
    assert settings.mode == before
