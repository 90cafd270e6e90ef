"""Every value that a variable had, by its number, and derivatives since one of them."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors

# ------------------------------------------------------------------ versions and at


def powers(count: int, factor: float = 2.0, start: float = 3.0) -> tuple[rt.Tape, tf.Variable, tf.Tensor, tf.Tensor]:
    """Record v ← a v, `count` times, and y = v²."""
    variable, a = tf.Variable(start, dtype=tf.float64), tf.constant(factor, tf.float64)
    with rt.Tape() as tape:
        for _ in range(count):
            variable.assign(a * variable)
        y = variable * variable
    return tape, variable, a, y


def test_versions_are_all_values_in_order():
    tape, variable, _, _ = powers(4)
    versions = tape.versions(variable)
    assert [float(version.value) for version in versions] == [3.0, 6.0, 12.0, 24.0, 48.0]
    assert [version.number for version in versions] == [0, 1, 2, 3, 4]
    assert all(version.variable is variable and version.count == 5 for version in versions)
    assert versions[0].dtype == tf.float64
    assert versions[0].shape == []
    assert repr(versions[2]).startswith(f"<{variable.name}, value 2 of 5: float")
    assert repr((versions[0], versions[4])).count(" (on entry): ") == repr(versions).count(" (the last): ") == 1


@pytest.mark.parametrize("k", range(-5, 5))
def test_at_counts_from_either_end(k: int):
    tape, variable, _, y = powers(4)
    version = tape.at(variable, k)
    number = k % 5
    assert version.number == number
    assert float(version.value) == 3.0 * 2.0**number
    # y = (a^(4 - k) v_k)²
    assert float(tape.gradient(y, version)) == 2 * 2.0 ** (2 * (4 - number)) * 3.0 * 2.0**number


@pytest.mark.parametrize("k", [5, -6, 100])
def test_at_out_of_range(k: int):
    tape, variable, _, _ = powers(4)
    with pytest.raises(IndexError, match=rf"had 5 values on this tape, numbered 0 to 4; got {k}\."):
        tape.at(variable, k)


def test_versions_of_a_variable_that_took_no_part():
    tape, _, _, _ = powers(1)
    with pytest.raises(errors.NotRecordedError, match=r"'other:0'.*no op read or assigned it while recording"):
        tape.versions(tf.Variable(1.0, name="other"))
    with pytest.raises(TypeError, match=r"Only a variable has versions, got EagerTensor; a tensor has one value\."):
        tape.at(tf.constant(1.0), 0)


@pytest.mark.parametrize("keep", ["needed", "all", "leaves"])
def test_value_that_nobody_read_before_it_was_changed(keep: str):
    variable, x = tf.Variable(3.0), tf.constant(5.0)
    with rt.Tape(keep=keep) as tape:
        variable.assign(x * x)
        variable.assign_add(x)
        y = variable * variable
    assert [float(version.value) for version in tape.versions(variable)] == [3.0, 25.0, 30.0]
    assert float(tape.gradient(y, x, through_updates=True)) == 2 * 30 * 11


# ------------------------------------------------------------------ since


@pytest.mark.parametrize("since", range(5))
def test_since_cuts_what_came_before(since: int):
    tape, variable, a, y = powers(4)
    by_v, by_a = tape.gradient(y, [variable, a], through_updates=True, since=since)
    left, start = 4 - since, 3.0 * 2.0**since
    # From value number `since` on: y = a^(2 left) start²
    assert float(by_v) == 2 * 2.0 ** (2 * left) * start
    if left:
        assert float(by_a) == 2 * left * 2.0 ** (2 * left - 1) * start**2
    else:
        assert by_a is None  # nothing is left of the path


@pytest.mark.parametrize("since", [-1, -2, -4])
def test_since_from_the_end_counts_updates(since: int):
    tape, variable, a, y = powers(4)
    found = tape.gradient(y, [variable, a], through_updates=True, since=since)
    wanted = tape.gradient(y, [variable, a], through_updates=True, since=4 + since)
    assert [float(g) for g in found] == [float(w) for w in wanted]


def test_since_beyond_either_end_is_the_end():
    tape, variable, a, y = powers(4)
    all_of_it = tape.gradient(y, [variable, a], through_updates=True)
    assert [float(g) for g in tape.gradient(y, [variable, a], through_updates=True, since=-50)] == [
        float(g) for g in all_of_it
    ]
    assert float(tape.gradient(y, variable, through_updates=True, since=50)) == 2 * 48.0


def test_since_without_through_updates():
    tape, variable, _, y = powers(2)
    with pytest.raises(ValueError, match=r"give through_updates=True with it"):
        tape.gradient(y, variable, since=1)


def test_since_holds_for_each_variable():
    v, w = tf.Variable(2.0), tf.Variable(3.0)
    with rt.Tape() as tape:
        for _ in range(3):
            v.assign(v * w)
            w.assign(w * w)
        y = v * w
    # From the second values on: v₁ = 6, w₁ = 9; y = (v₁ w₁ w₁²) (w₁⁴) = v₁ w₁⁷
    by_v, by_w = tape.gradient(y, [v, w], through_updates=True, since=1)
    np.testing.assert_allclose([float(by_v), float(by_w)], [9.0**7, 6.0 * 7 * 9.0**6], rtol=1e-6)
