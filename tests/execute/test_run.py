"""Running a program forwards, and a forward pass over a trace."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.execute import ForwardPass, run, run_steps

X = tf.constant([0.5, -1.5])


def record(function, keep="needed"):
    with rt.Tape(keep=keep) as tape:
        y = function(X)
    trace = tape._recorded().trace
    return trace, trace.tensors.find(X), trace.tensors.find(y), y


def leaves(trace):
    program = trace.program
    return {var: trace.value(var) for var in range(len(program.types)) if program.producers[var] < 0}


@pytest.mark.parametrize(
    "function",
    [
        lambda x: tf.exp(x) * x + 2.0,
        lambda x: tf.concat(tf.split(x * x, 2), 0),
        lambda x: tf.linalg.diag(x) @ x[:, None],
    ],
)
def test_run_gives_what_the_program_gave(function):
    trace, x, y, value = record(function)
    feeds = leaves(trace)
    assert run(trace.program, feeds) is feeds
    np.testing.assert_array_equal(feeds[y], value)
    other = run(trace.program, {**leaves(trace), x: X + 1.0})
    np.testing.assert_array_equal(other[y], function(X + 1.0))


def test_only_the_equations_asked_for_run():
    trace, _, y, _ = record(lambda x: tf.sin(tf.cos(x)))
    env = run(trace.program, leaves(trace), range(1))
    assert y not in env
    assert [eqn.op for _, eqn in run_steps(trace.program, env, range(1, 2))] == ["Sin"]
    np.testing.assert_array_equal(env[y], tf.sin(tf.cos(X)))


@pytest.mark.parametrize("keep", ["needed", "all", "leaves", "segments"])
def test_a_forward_pass_knows_every_value_and_holds_few(keep):
    def chain(x):
        for _ in range(20):
            x = tf.sin(x) + x
        return x

    trace, _, y, value = record(chain, keep)
    forward = ForwardPass(trace, range(len(trace.program.eqns)), wanted={y})
    most = 0
    for passed in forward.run():
        assert all(tensor is not None for tensor in (*passed.inputs, *passed.outputs))
        want = {"Sin": tf.sin, "AddV2": tf.add}[passed.eqn.op](*passed.inputs)
        np.testing.assert_array_equal(passed.outputs[0], want)
        most = max(most, len(forward.held))
    assert most <= 3
    np.testing.assert_array_equal(forward.value(y), value)


def test_what_was_drawn_is_not_drawn_again():
    trace, _, _, _ = record(lambda x: tf.random.uniform([2]) * x, keep="leaves")
    drawn = next(eqn.outputs[0] for eqn in trace.program.eqns if eqn.op == "RandomUniform")
    lost = ForwardPass(trace, range(len(trace.program.eqns)), lost={drawn})
    found = {passed.eqn.op: passed.outputs for passed in lost.run()}
    assert found["RandomUniform"] == [None]
    assert found["Mul"] == [None]
