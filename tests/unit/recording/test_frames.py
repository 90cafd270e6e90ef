"""An equation knows the line of the user's code that ran it."""

from __future__ import annotations

import inspect

import keras
import tensorflow as tf

import retrotape as rt
from recording_tools import X, batch, dense_net


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
