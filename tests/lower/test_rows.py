"""Jacobians and Hessians of a structure that comes again: few rows, many rows, chunks."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import FIRST, refused
from retrotape.execute import FEW
from retrotape.lower import _rows

W = tf.Variable(tf.linspace(0.1, 1.0, 6), name="w")
MATRIX = tf.constant(np.random.default_rng(0).normal(size=(50, 6)).astype("float32"))


def check(step, *cases) -> list[str | None]:
    """Run a step for each case; check that it gives what op by op gives, but for rounding; return why not compiled."""
    found = []
    for case in cases:
        tape, ours = step(case)
        found.append(tape.why_not_compiled())
        with rt.config(compile=False):
            _, theirs = step(case)
        for one, other in zip(tf.nest.flatten(ours), tf.nest.flatten(theirs), strict=True):
            assert (one is None) == (other is None)
            if one is not None:
                np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    return found


def jacobian_step(rows: int, **options):
    def step(scale):
        with rt.Tape() as tape:
            y = tf.sin(tf.linalg.matvec(MATRIX[:rows], W) * scale)
        return tape, tape.jacobian(y, [W], **options)

    return step


@pytest.fixture
def kinds(monkeypatch) -> list[str]:
    """List the kinds of functions that are compiled."""
    found: list[str] = []
    for kind in (_rows.Vectorized, _rows._RowByRow):
        first = kind.__init__

        def init(self, *args, first=first, kind=kind):
            found.append(kind.__name__)
            first(self, *args)

        monkeypatch.setattr(kind, "__init__", init)
    return found


@pytest.mark.parametrize("rows", [1, FEW, FEW + 1, 50])
def test_a_jacobian_with_few_rows_and_with_many(rows: int, kinds):
    assert check(jacobian_step(rows), 1.0, 1.5, 2.0, 2.5) == [FIRST, FIRST, None, None]
    assert kinds == ["_RowByRow" if rows <= FEW else "Vectorized"]


@pytest.mark.parametrize("chunk", [1, 7, 25, 49])
def test_a_jacobian_in_chunks(chunk: int):
    found = check(jacobian_step(50, chunk=chunk), 1.0, 1.5, 2.0, 2.5, 3.0, 3.5)
    assert found[-1] is None


def test_a_jacobian_without_rows():
    check(jacobian_step(0), 1.0, 1.5, 2.0, 2.5)


def test_a_jacobian_with_respect_to_what_is_not_connected():
    other = tf.Variable([1.0, 2.0])

    def step(scale):
        with rt.Tape() as tape:
            y = tf.sin(W * scale)
        return tape, tape.jacobian(y, [W, other])

    check(step, 1.0, 1.5, 2.0, 2.5)
    assert step(1.0)[0].why_not_compiled() == "a source is not connected to the target"


def test_a_jacobian_with_sparse_rows_is_dense():
    table = tf.Variable(tf.reshape(tf.range(12.0), (4, 3)))

    def step(rows):
        with rt.Tape() as tape:
            y = tf.reduce_sum(tf.gather(table, rows) ** 2, 1)
        return tape, tape.jacobian(y, [table])

    assert check(step, [0, 1], [1, 1], [3, 2], [0, 3])[2:] == [None, None]


def test_an_axis_that_changes_is_noticed():
    square = tf.Variable(tf.reshape(tf.range(9.0), (3, 3)) / 3.0)

    def step(axis):
        with rt.Tape() as tape:
            y = tf.reduce_prod(square, axis)
        return tape, tape.jacobian(y, [square])

    check(step, 0, 0, 0, 1, 1, 1, 0, 1)


def test_a_hessian_of_one_and_of_several():
    other = tf.Variable([0.5, -0.5])

    def step(scale):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sin(W * scale) ** 2) * tf.reduce_prod(other) ** 2
        return tape, [tape.hessian(loss, W), tape.hessian(loss, [W, other])]

    assert check(step, 1.0, 1.5, 2.0, 2.5)[-1] is None


def test_a_hessian_with_infinities_in_it_is_computed_alone():
    """Zero times infinity is NaN: each gradient is differentiated alone, compiled or not."""
    x = tf.Variable([0.0, 1.0])

    def step(scale):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.sqrt(x) * scale)
        return tape, tape.hessian(loss, x)

    check(step, 1.0, 1.5, 2.0, 2.5)


def test_a_batch_jacobian():
    def step(scale):
        x = MATRIX * scale
        with rt.Tape() as tape:
            y = tf.sin(x * W)
        return tape, tape.batch_jacobian(y, x)

    check(step, 1.0, 1.5, 2.0, 2.5)


def test_without_vectorizing_rows_are_not_compiled():
    check(jacobian_step(20, experimental_use_pfor=False), 1.0, 1.5, 2.0, 2.5)


def test_a_row_that_cannot_be_observed_says_why():
    @tf.custom_gradient
    def printing(a):
        return a * 1.0, lambda dy: (tf.raw_ops.Assert(condition=True, data=[dy]), dy * 2.0)[1]

    def step(_):
        with rt.Tape() as tape:
            y = printing(W)
        return tape, [tf.round(tape.jacobian(y, W))]

    assert "which has an effect" in refused(step)


def test_rows_leave_nothing_behind_when_they_are_refused():
    def step(scale):
        with rt.Tape() as tape:
            y = tf.cumsum(tf.boolean_mask(W, W > 0.5)) * scale
        return tape, tape.jacobian(y, [W])

    check(step, 1.0, 1.5, 2.0, 2.5, 3.0)
