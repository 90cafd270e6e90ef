"""Methods that draw random numbers: what they draw, and that it can be drawn again."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from aggregate.making import rows_of_matrix
from aggregate.problems import rows_of
from retrotape import aggregate as ag

GRAMIAN = tf.constant([[1.0, -0.5, 0.2], [-0.5, 1.0, -0.7], [0.2, -0.7, 1.0]], tf.float64)
MATRIX = rows_of("conflicting", 3, np.random.default_rng(1))
METHODS = [ag.Random, ag.PCGrad, ag.GradVac]


def results(method, number: int = 5) -> np.ndarray:
    return np.stack([method.weights(GRAMIAN).numpy() for _ in range(number)])


@pytest.mark.parametrize("kind", METHODS)
def test_a_seed_makes_a_sequence_that_can_be_drawn_again(kind):
    first, again, other = results(kind(seed=1)), results(kind(seed=1)), results(kind(seed=2))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert len(np.unique(first, axis=0)) > 1  # the draws of a sequence differ


@pytest.mark.parametrize("kind", METHODS)
def test_without_a_seed_draws_are_those_of_tensorflow(kind):
    tf.random.set_seed(4)
    first = results(kind())
    tf.random.set_seed(4)
    again = results(kind())
    np.testing.assert_array_equal(first, again)
    assert len(np.unique(first, axis=0)) > 1


@pytest.mark.parametrize("seed", [None, 3])
def test_graddrop_draws_anew_at_each_call_and_for_each_variable(seed):
    rows = rows_of_matrix(np.concatenate([MATRIX, MATRIX], 1), parts=2)
    method = ag.GradDrop(seed=seed)
    first, second = method(rows), method(rows)
    left, right = first.values()
    assert not np.array_equal(left, right)
    assert not np.array_equal(left, next(iter(second.values())))
    if seed is not None:
        np.testing.assert_array_equal(left, next(iter(ag.GradDrop(seed=seed)(rows).values())))


def test_graddrop_keeps_one_sign_in_each_coordinate_as_often_as_it_has_weight():
    rows = rows_of_matrix(MATRIX)
    positive, negative = np.maximum(MATRIX, 0.0).sum(0), np.minimum(MATRIX, 0.0).sum(0)
    method, kept = ag.GradDrop(seed=0), []
    for _ in range(300):
        (found,) = method(rows).values()
        is_positive = np.isclose(found, positive)
        assert np.all(is_positive | np.isclose(found, negative))
        kept.append(is_positive)
    wanted = positive / (positive - negative)
    assert np.abs(np.mean(kept, 0) - wanted).max() < 5.0 * np.sqrt(0.25 / 300)


def test_orders_are_permutations_that_occur_equally_often():
    from retrotape.aggregate._random import orders

    drawn = np.concatenate([orders(tf.constant([1, place], tf.int64), 3).numpy() for place in range(200)])
    assert np.all(np.sort(drawn, 1) == [0, 1, 2])
    counts = np.unique(drawn, axis=0, return_counts=True)[1]
    assert len(counts) == 6
    assert np.abs(counts - 100).max() < 45


def test_random_weights_are_on_the_simplex_and_equal_on_average():
    found = results(ag.Random(seed=5), 400)
    np.testing.assert_allclose(found.sum(1), 1.0)
    assert found.min() > 0.0
    assert np.abs(found.mean(0) - 1 / 3).max() < 0.05


def test_the_place_in_a_sequence_is_a_variable():
    method = ag.PCGrad(seed=1)
    assert method.variables == ()
    first = results(method, 3)
    (counter,) = method.variables
    assert int(counter) == 3
    counter.assign(0)
    np.testing.assert_array_equal(results(method, 3), first)
    assert ag.PCGrad().variables == ()


def test_methods_with_equal_seeds_are_equal_and_count_apart():
    one, two = ag.Random(seed=1), ag.Random(seed=1)
    assert one == two
    assert hash(one) == hash(two)
    first = results(one)
    np.testing.assert_array_equal(results(two), first)


@pytest.mark.parametrize("method", [ag.Random(seed=2), ag.PCGrad(seed=2), ag.GradDrop(seed=2)], ids=str)
def test_inside_a_function_draws_are_the_same(method):
    rows = rows_of_matrix(MATRIX)
    (variable,) = rows[0].keys()

    @tf.function(autograph=False)
    def step(values):
        given = [rt.Gradients([(variable, one)]) for one in tf.unstack(values)]
        return method(given)[variable]

    inside = np.stack([step(tf.constant(MATRIX)) for _ in range(3)])
    apart = type(method)(seed=2)
    np.testing.assert_allclose(inside, np.stack([apart(rows)[variable] for _ in range(3)]), atol=1e-12)
    assert len(np.unique(inside, axis=0)) > 1


def test_a_seed_that_is_no_number():
    with pytest.raises(TypeError, match=r"seed= takes an integer or None, got 'one'\."):
        ag.Random(seed="one")
    with pytest.raises(TypeError, match=r"seed= takes an integer or None, got 1\.5\."):
        ag.GradVac(seed=1.5)
