"""Laws of derivatives through updates: paths add up, recorded values stay, and every question can be asked."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import dense
from retrotape import errors


def test_sources_together_and_one_by_one():
    v, w, x = tf.Variable(2.0), tf.Variable([1.0, 4.0]), tf.constant([3.0, 0.5])
    with rt.Tape() as tape:
        inside = v * x
        v.assign_add(tf.reduce_sum(inside * w))
        w.scatter_mul(tf.IndexedSlices(v * x[:1], tf.constant([1])))
        y = tf.reduce_sum(w * inside) * v
    sources = [v, tape.at(v, 0), x, tape.at(w, 0), w, inside, tape.at(v, -1), tape.at(w, 1), v, x]
    for options in ({}, {"through_updates": True}, {"through_updates": True, "since": 1}):
        together = tape.gradient(y, sources, **options)
        for source, grad in zip(sources, together, strict=True):
            alone = tape.gradient(y, source, **options)
            assert (alone is None) == (grad is None)
            if grad is not None:
                np.testing.assert_array_equal(dense(alone), dense(grad))
    # The plain and the versioned source of one variable are different questions: the law must tell them apart.
    plain, entry = tape.gradient(y, [v, tape.at(v, 0)])
    assert float(plain) != float(entry)


def test_entry_value_is_the_sum_over_all_paths():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape() as tape:
        early = v * v
        v.assign(v * x)
        y = early + v * v * v
    # y = v² + v³ x³
    assert float(tape.gradient(y, tape.at(v, 0))) == 2 * 2 + 3 * 4 * 27
    assert float(tape.gradient(y, v)) == 2 * 2 + 3 * 36
    assert float(tape.gradient(y, tape.at(v, 1))) == 3 * 36
    assert float(tape.gradient(y, x, through_updates=True)) == 3 * 8 * 9
    assert tape.gradient(y, x) is None


@pytest.mark.parametrize("keep", ["needed", "all", "leaves"])
def test_values_are_those_recorded(keep: str):
    v, x = tf.Variable([2.0, 5.0]), tf.constant([3.0, 7.0])
    f = tf.function(lambda x: v.assign(tf.nn.silu(v) * x))
    with rt.Tape(keep=keep) as tape:
        v.assign(tf.sin(v) * x)
        f(x)
        y = tf.reduce_sum(v * v * x)

    def answers() -> list:
        sources = [v, tape.at(v, 0), tape.at(v, 1), x]
        return [dense(g) for g in tape.gradient(y, sources)] + [tape.hvp(y, x, x, through_updates=True).numpy()]

    first = answers()
    v.assign([100.0, -100.0])
    for before, after in zip(first, answers(), strict=True):
        np.testing.assert_array_equal(before, after)
    assert [version.number for version in tape.versions(v)] == [0, 1, 2]


def test_values_are_those_recorded_where_nobody_asked_before():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    with rt.Tape(keep="leaves") as tape:
        v.assign_add(v * x)
        y = v * v
    v.assign(1000.0)
    assert float(tape.gradient(y, tape.at(v, 0))) == 2 * 8 * 4
    assert [float(version.value) for version in tape.versions(v)] == [2.0, 8.0]


def test_updates_on_a_tape_entered_again():
    v, x = tf.Variable(2.0), tf.constant(3.0)
    tape = rt.Tape()
    with tape:
        v.assign(v * x)
    with tape:
        y = v * v
    assert float(tape.gradient(y, tape.at(v, 0))) == 2 * 6 * 3


def test_update_outside_the_block_is_not_hidden():
    # Between the blocks the value changed without the tape: what follows does not depend on what was before.
    v = tf.Variable(2.0)
    tape = rt.Tape()
    with tape:
        early = v * 3.0
    v.assign(10.0)
    with tape:
        y = v * v
    assert float(tape.gradient(early, v)) == 3.0
    assert float(tape.gradient(y, v)) == 20.0
    with pytest.raises(errors.UnseenUpdateError, match="assigned while this tape was not recording"):
        tape.gradient(y, v, through_updates=True)


def test_updates_inside_a_function():
    v = tf.Variable(2.0)

    @tf.function
    def f(x: tf.Tensor) -> list:
        with rt.Tape() as tape:
            v.assign(v * x)
            v.assign_add(x)
            y = v * v
        sources = [tape.at(v, 0), x, tape.at(v, 1)]
        return tape.gradient(y, sources, through_updates=True), tape.gradient(y, v)

    (by_entry, by_x, by_middle), plain = f(tf.constant(3.0))
    # y = (v x + x)²
    assert [float(by_entry), float(by_x), float(by_middle), float(plain)] == [2 * 9 * 3, 2 * 9 * 3, 18.0, 18.0]


def test_jacobian_and_jvp_through_updates():
    v, x = tf.Variable([2.0, 5.0]), tf.constant([3.0, 7.0])
    with rt.Tape() as tape:
        v.assign(v * x)
        y = v * v[::-1]
    jacobian = tape.jacobian(y, x, through_updates=True).numpy()
    # y₀ = y₁ = 10 x₀ x₁
    np.testing.assert_allclose(jacobian, [[70.0, 30.0], [70.0, 30.0]])
    tangent = tf.constant([0.5, -2.0])
    np.testing.assert_allclose(tape.jvp(y, x, tangent, through_updates=True), jacobian @ tangent.numpy())
