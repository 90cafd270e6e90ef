"""Fused steps of optimizers, against central differences; and steps that have no rule."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.record._traits import traits
from retrotape.rules import FORWARD
from rules.updates.fused import BENT, DENSE, REPEATED, SPARSE, UNIQUE, check_apply
from rules.updates.tools import START, WHOLE, read_out

# ------------------------------------------------------------------ fused optimizer steps


@pytest.mark.parametrize("name", DENSE)
def test_fused_step(name: str):
    check_apply(DENSE[name])


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_fused_step(name: str):
    check_apply(SPARSE[name]._replace(rows=UNIQUE))


@pytest.mark.parametrize("name", SPARSE)
def test_sparse_fused_step_on_a_row_twice(name: str):
    # The kernels go row by row, so the second visit of a row starts from what the first one left.
    check_apply(SPARSE[name]._replace(rows=REPEATED))


@pytest.mark.parametrize("name", ["momentum_nesterov", "adam"])
def test_fused_step_inside_a_function(name: str):
    check_apply(DENSE[name], tf.function)


@pytest.mark.parametrize("name", BENT)
def test_fused_step_with_signs_thresholds_and_powers(name: str):
    check_apply(BENT[name])


# ------------------------------------------------------------------ updates without a rule


@pytest.fixture
def opaque(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Return an update of a variable which is certain to have no rule."""
    step = BENT["ftrl"]
    monkeypatch.delitem(FORWARD, step.op, raising=False)
    traits.cache_clear()

    def update(variable: tf.Variable, grad: tf.Tensor) -> None:
        variables, tensors = step.split(step.values())
        step.call(variables | {"var": variable}, tensors | {"grad": grad})

    yield update
    traits.cache_clear()


def test_opaque_update_is_refused_where_a_question_depends_on_it(opaque: Callable):
    variable, x = tf.Variable(START, name="kernel"), tf.constant(WHOLE)
    with rt.Tape() as tape:
        opaque(variable, x * x)
        y = read_out(variable)
    for source in (x, tape.at(variable, 0)):
        with pytest.raises(errors.OpaqueUpdateError, match=r"runs through ResourceApplyFtrl .*changes 'kernel:0'"):
            tape.gradient(y, source, through_updates=True)


def test_a_loaded_tape_knows_opaque_updates_by_their_ops(opaque: Callable, tmp_path: Path):
    variable, x = tf.Variable(START, name="kernel"), tf.constant(WHOLE)
    with rt.Tape() as tape:
        opaque(variable, x * x)
        y = read_out(variable)
    tape.save(tmp_path / "a.tape", x=x, y=y)
    with pytest.raises(errors.OpaqueUpdateError, match=r"runs through ResourceApplyFtrl .*changes 'kernel'"):
        rt.load(tmp_path / "a.tape").gradient("y", "x", through_updates=True)


def test_opaque_update_does_not_matter_elsewhere(opaque: Callable):
    variable, x, z = tf.Variable(START), tf.constant(WHOLE), tf.constant(WHOLE)
    with rt.Tape() as tape:
        before = tf.reduce_sum(variable * x)
        opaque(variable, x * x)
        y = tf.reduce_sum(variable * z)
        mixed = before + y
    np.testing.assert_array_equal(tape.gradient(before, x, through_updates=True), START)
    np.testing.assert_array_equal(tape.gradient(y, z, through_updates=True), variable.numpy())
    np.testing.assert_array_equal(tape.gradient(y, tape.at(variable, -1)), WHOLE)
    np.testing.assert_array_equal(tape.gradient(mixed, variable), 2 * WHOLE)  # TensorFlow's meaning
    np.testing.assert_array_equal(tape.gradient(mixed, x), START)
    np.testing.assert_array_equal(tape.gradient(mixed, z, through_updates=True), variable.numpy())
    np.testing.assert_array_equal(tape.gradient(y, variable, through_updates=True, since=1), WHOLE)
