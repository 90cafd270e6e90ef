"""A fork of a trace: higher orders are recorded there, and the trace of the tape stays as it is."""

from __future__ import annotations

import gc

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.record import Recorder

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


@pytest.mark.parametrize("keep", KEEPS)
def test_they_share_nothing_that_changes(keep):
    tape, _, _ = tape_of_a_cube(keep)
    trace = tape._recorded().trace
    fork = trace.fork()
    assert vars(fork).keys() == vars(trace).keys()
    shared = {name for name, value in vars(trace).items() if value is vars(fork)[name] and not _is_immutable(value)}
    assert shared <= {"_dtype_of", "_shape_of", "guard", "token"}


def _is_immutable(value):
    return value is None or isinstance(value, (bool, int, float, str, tuple, frozenset))


@pytest.mark.parametrize("name", QUERIES)
def test_a_fork_is_freed_without_the_garbage_collector(name):
    @tf.function
    def energy(v):
        return tf.reduce_sum(v * v * tf.sin(v))

    x = tf.constant([1.0, -2.0, 0.5])
    with rt.Tape() as tape:
        y = energy(x * 2.0)
    gc.collect()
    gc.disable()
    try:
        before = sum(isinstance(each, Recorder) for each in gc.get_objects())
        for _ in range(3):
            QUERIES[name](tape, y, x)
        assert sum(isinstance(each, Recorder) for each in gc.get_objects()) == before
    finally:
        gc.enable()


def test_queries_do_not_fill_the_disk(tmp_path):
    x = tf.random.stateless_normal([2000], [1, 2])
    with rt.Tape(keep="disk", directory=str(tmp_path)) as tape:
        y = x
        tape._recorded().trace.segments.size = 1000
        for _ in range(20):
            y = tf.sin(y) * x
        y = tf.reduce_sum(y)
    offload = tape._recorded().trace._offload
    first = tape.hvp(y, x, tf.ones_like(x))
    size = offload._end
    assert size
    np.testing.assert_array_equal(first, tape.hvp(y, x, tf.ones_like(x)))
    assert offload._end == size
