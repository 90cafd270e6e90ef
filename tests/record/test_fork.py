"""A fork of a trace: higher orders are recorded there, and the trace of the tape stays as it is."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

KEEPS = ("needed", "all", "leaves", "segments", "disk")


def sizes(tape):
    trace = tape._recorded().trace
    program, facts = trace.program, trace.facts
    return len(program.eqns), len(program.types), len(trace.values), len(facts.times), len(facts.backward_functions)


def tape_of_a_cube(keep):
    v = tf.Variable([1.0, -2.0, 0.5])
    with rt.Tape(keep=keep) as tape:
        v.assign(v * 2.0)
        y = tf.reduce_sum(v * v * tf.sin(v))
    return tape, v, y


QUERIES = {
    "hvp": lambda tape, y, v: tape.hvp(y, v, tf.ones(3)),
    "hessian": lambda tape, y, v: tape.hessian(y, v),
    "jvp": lambda tape, y, v: tape.jvp(y, v, tf.ones(3)),
}


@pytest.mark.parametrize("keep", KEEPS)
@pytest.mark.parametrize("name", QUERIES)
def test_a_query_records_nothing_on_the_tape(keep, name):
    tape, v, y = tape_of_a_cube(keep)
    first = tape.gradient(y, v)
    before = sizes(tape)
    once = QUERIES[name](tape, y, v)
    assert sizes(tape) == before
    twice = QUERIES[name](tape, y, v)
    np.testing.assert_array_equal(once, twice)
    np.testing.assert_array_equal(first, tape.gradient(y, v))


@pytest.mark.parametrize("keep", KEEPS)
def test_what_is_recorded_later_is_right_after_a_query(keep):
    tape, v, y = tape_of_a_cube(keep)
    tape.hvp(y, v, tf.ones(3))
    with tape:
        z = y * y + tf.reduce_sum(v**3)
    with tf.GradientTape() as stock:
        want = tf.reduce_sum(v * v * tf.sin(v)) ** 2 + tf.reduce_sum(v**3)
    np.testing.assert_allclose(tape.gradient(z, v), stock.gradient(want, v), rtol=1e-5)


def test_the_fork_and_the_trace_grow_apart():
    tape, _, y = tape_of_a_cube("needed")
    trace = tape._recorded().trace
    fork = trace.fork()
    first = len(trace.program.eqns)
    assert len(fork.program.eqns) == first
    fork.var_of(tf.constant(1.0))
    assert len(fork.program.types) == len(trace.program.types) + 1
    assert fork.tensors.find(y) == trace.tensors.find(y)
    with tape:
        y + 1.0
    assert len(tape._recorded().trace.program.eqns) == first + 1
    assert len(fork.program.eqns) == first
