"""Values and derivatives of every kind of update, against central differences."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from rules.updates.kinds import TRIPLE, UPDATES, Update, check_update, slices
from rules.updates.tools import START, Arrays, read_out


@pytest.mark.parametrize("keep", ["needed", "leaves"])
@pytest.mark.parametrize("name", UPDATES)
def test_value_and_derivative_of_an_update(name: str, keep: str):
    check_update(UPDATES[name], UPDATES[name].apply, keep)


@pytest.mark.parametrize("keep", ["needed", "leaves"])
def test_repeated_rows_of_a_scatter_update(keep: str):
    # The last row written is the one that stays, so the first has no part in the new value.
    update = Update(lambda v, x: v.scatter_update(slices(x, [2, 0, 2])), TRIPLE)
    check_update(update, update.apply, keep)


@pytest.mark.parametrize("name", ["assign_add", "scatter_mul_repeated", "slice_of_itself"])
def test_second_derivative_through_an_update(name: str):
    update = UPDATES[name]
    variable, x = tf.Variable(START), tf.constant(update.operand, tf.float64)
    with rt.Tape() as tape:
        update.apply(variable, x)
        y = read_out(variable)
    hessian = tape.hessian(y, x, through_updates=True).numpy()

    def first(values: Arrays) -> np.ndarray:
        inner, moved = tf.Variable(START), tf.constant(values["x"])
        with rt.Tape() as again:
            update.apply(inner, moved)
            out = read_out(inner)
        return again.gradient(out, moved, through_updates=True).numpy()

    step = 1e-6
    for index in np.ndindex(tuple(x.shape)):
        ends = [np.array(update.operand) for _ in range(2)]
        ends[0][index] += step
        ends[1][index] -= step
        wanted = (first({"x": ends[0]}) - first({"x": ends[1]})) / (2 * step)
        np.testing.assert_allclose(hessian[index], wanted, rtol=1e-6, atol=1e-7)
