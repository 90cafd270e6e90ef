from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.aggregate import DPSGD
from retrotape.errors import NonfiniteRowError, TapeUseError


def recorded(count: int = 30):
    rng = np.random.default_rng(1)
    w, b = tf.Variable(rng.normal(size=(4, 2)).astype("f"), name="w"), tf.Variable(tf.zeros([2]), name="b")
    x, y = rng.normal(size=(count, 4)).astype("f"), rng.normal(size=(count, 2)).astype("f")
    with rt.Tape() as tape:
        losses = tf.reduce_sum((tf.tanh(x @ w + b) - y) ** 2, 1)
    return tape, losses, [w, b]


def flat(grads, variables):
    return np.concatenate([np.ravel(grads[variable]) for variable in variables])


@pytest.mark.parametrize("clip", [0.5, 2.0, 100.0])
def test_without_noise_it_is_the_sum_of_clipped_gradients(clip):
    tape, losses, variables = recorded()
    combined = DPSGD(clip, 0.0, 25)(tape.backward_each(losses))
    total, clipped = np.zeros(10), 0
    for number in range(30):
        alone = tape.backward(losses, variables, output_gradients=tf.one_hot(number, 30))
        clipped += float(alone.norm()) > clip
        total += flat(alone.clip(global_norm=clip), variables)
    np.testing.assert_allclose(flat(combined, variables), total / 25, rtol=1e-4, atol=1e-6)
    assert float(combined.details["clipped"]) == pytest.approx(clipped / 30)


def test_the_noise_has_the_promised_size():
    tape, losses, variables = recorded()
    rows = tape.backward_each(losses)
    quiet = flat(DPSGD(2.0, 0.0, 25)(rows), variables)
    method = DPSGD(2.0, 1.5, 25, seed=3)
    noise = np.array([flat(method(rows), variables) - quiet for _ in range(600)])
    assert noise.std() == pytest.approx(1.5 * 2.0 / 25, rel=0.05)
    assert np.abs(noise.mean(0)).max() < 5 * 0.12 / np.sqrt(600)
    correlations = np.corrcoef(noise.T) - np.eye(10)
    assert np.abs(correlations).max() < 0.2


def test_a_seed_makes_a_sequence_that_can_be_repeated():
    tape, losses, variables = recorded()
    rows = tape.backward_each(losses)
    one, other = DPSGD(1.0, 1.0, 30, seed=7), DPSGD(1.0, 1.0, 30, seed=7)
    first = [flat(one(rows), variables) for _ in range(3)]
    np.testing.assert_array_equal(first, [flat(other(rows), variables) for _ in range(3)])
    assert not np.array_equal(first[0], first[1])


def test_rows_of_a_list_are_clipped_over_all_variables():
    shared, own = tf.Variable([3.0, 0.0]), tf.Variable(4.0)
    with rt.Tape() as tape:
        losses = [shared[0] * 3.0 + own * 4.0, shared[1] * 0.5]
    rows = tape.backward_each(losses)
    with pytest.raises(rt.errors.TapeUseError, match="It is not known whether these examples depend on each other"):
        DPSGD(1.0, 0.0, 1)(rows)
    combined = DPSGD(1.0, 0.0, 1)(rt.Rows(list(rows), mixed_by=None))
    np.testing.assert_allclose(combined[shared], [0.6, 0.5], rtol=1e-6)
    assert float(combined[own]) == pytest.approx(0.8)


def test_an_empty_sample_is_noise_alone():
    tape, losses, variables = recorded()
    stacked = [grads[:0] for grads in tape.per_example(losses, variables)]
    combined = DPSGD(1.0, 1.0, 10, seed=1)(rt.Rows.from_stacked(variables, stacked, mixed_by=None))
    assert 0.02 < flat(combined, variables).std() < 0.5
    assert float(combined.details["clipped"]) == 0.0


def test_inside_a_function():
    tape, losses, variables = recorded()
    stacked = tape.per_example(losses, variables)
    method = DPSGD(1.0, 1.0, 30, seed=7)
    eager = flat(DPSGD(1.0, 1.0, 30, seed=7)(rt.Rows.from_stacked(variables, stacked, mixed_by=None)), variables)
    run = tf.function(lambda: method(rt.Rows.from_stacked(variables, stacked, mixed_by=None)).flatten())
    np.testing.assert_allclose(run(), eager, rtol=1e-5, atol=1e-6)
    assert not np.array_equal(run(), run())


def batch_normalized(training: bool, name: str, count: int) -> tuple[rt.Tape, tf.Tensor]:
    model = keras.Sequential([keras.Input([3]), keras.layers.BatchNormalization(name=name), keras.layers.Dense(1)])
    x = tf.constant(np.random.default_rng(0).normal(size=(count, 3)), tf.float32)
    with rt.Tape() as tape:
        losses = model(x, training=training)[:, 0] ** 2
    return tape, losses


@pytest.mark.parametrize("count", [4, 20])
def test_batch_normalization_is_refused(count):
    tape, losses = batch_normalized(True, "first", count)
    text = r"depend on other examples: .*first/moving_mean was updated, so a BatchNormalization.*Use GroupNormalization"
    with pytest.raises(TapeUseError, match=text):
        DPSGD(1.0, 1.0, 20)(tape.backward_each(losses))
    tape, losses = batch_normalized(False, "second", count)
    assert DPSGD(1.0, 1.0, 20)(tape.backward_each(losses)).is_finite()


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"clip": 0.0}, r"clip= takes a number, more than zero; got 0\.0"),
        ({"clip": np.inf}, "clip= takes a number, more than zero; got inf"),
        ({"noise_multiplier": -1.0}, r"noise_multiplier= takes a number, zero or more; got -1\.0"),
        ({"expected_batch_size": 0}, "expected_batch_size= takes a number, more than zero; got 0"),
        ({"clip": "1"}, "clip= takes a number, more than zero; got '1'"),
    ],
)
def test_parameters(given, text):
    with pytest.raises(ValueError, match=text):
        DPSGD(**{"clip": 1.0, "noise_multiplier": 1.0, "expected_batch_size": 10, **given})


def test_what_it_does_not_take():
    tape, losses, variables = recorded()
    rows = tape.backward_each(losses)
    with pytest.raises(TypeError, match="DPSGD takes no shared=: the norm of an example is that of all variables"):
        DPSGD(1.0, 1.0, 30)(rows, shared=variables)
    stacked = [
        tf.tensor_scatter_nd_update(one, [[4]], [one[0] * np.nan]) for one in tape.per_example(losses, variables)
    ]
    with pytest.raises(NonfiniteRowError, match="The gradient of the loss 4 is not finite"):
        DPSGD(1.0, 1.0, 30)(rt.Rows.from_stacked(variables, stacked, mixed_by=None))


def test_noise_is_on_everything():
    table, idle = tf.Variable(tf.zeros([50, 2]), name="table"), tf.Variable([1.0, 2.0], name="idle")
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(tf.gather(table, [3])), tf.reduce_sum(tf.gather(table, [7]))]
    combined = DPSGD(1.0, 1.0, 2, seed=1)(rt.Rows(list(tape.backward_each(losses, [table, idle])), mixed_by=None))
    assert np.all(np.asarray(tf.convert_to_tensor(combined[table])) != 0.0)
    assert np.all(combined[idle].numpy() != 0.0)
    z = tf.Variable([1.0 + 1.0j])
    with rt.Tape() as tape:
        losses = [tf.math.real(z[0]), tf.math.imag(z[0])]
    with pytest.raises(TapeUseError, match="DPSGD adds real noise, and a variable is complex"):
        DPSGD(1.0, 1.0, 2)(rt.Rows(list(tape.backward_each(losses)), mixed_by=None))


def test_a_part_of_rows_knows_that_examples_are_mixed():
    tape, losses = batch_normalized(True, "third", 20)
    with pytest.raises(TapeUseError, match="depend on other examples"):
        DPSGD(1.0, 1.0, 20)(tape.backward_each(losses)[:3])
