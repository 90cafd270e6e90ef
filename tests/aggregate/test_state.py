"""Methods with state, beside plain NumPy versions of what their papers say, over many calls."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from aggregate.making import rows_of_matrix
from aggregate.reference import stored
from retrotape import aggregate as ag

STEPS = 40


def sequence(seed: int, count: int = 3, size: int = 6) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Return gradients, and losses that fall."""
    draw = np.random.default_rng(seed)
    base = draw.normal(size=(count, size))
    rates = draw.uniform(0.9, 0.99, count)
    for step in range(STEPS):
        noise = draw.normal(size=(count, size))
        yield base + 0.3 * noise, draw.uniform(0.9, 1.1, count) * (1.0 + np.arange(count)) * rates**step


def combined_vectors(method, seed: int) -> list[np.ndarray]:
    found = []
    for matrix, losses in sequence(seed):
        rows = rows_of_matrix(matrix, losses=tf.constant(losses))
        (grad,) = method(rows).only(*rows[0].keys()).values()
        found.append(grad.numpy())
    return found


# ------------------------------------------------------------------ GradNorm


def gradnorm(seed: int, alpha: float, rate: float) -> tuple[list[np.ndarray], np.ndarray]:
    weights, first, found = np.ones(3), None, []
    for matrix, losses in sequence(seed):
        first = losses if first is None else first
        found.append(weights @ matrix)
        norms = np.linalg.norm(matrix, axis=1)
        relative = (losses / first) / np.mean(losses / first)
        wanted = np.mean(weights * norms) * relative**alpha
        slope = np.where(weights * norms > wanted, norms, -norms)  # of the sum of distances to what is wanted
        weights = np.maximum(weights - rate * slope, 0.0)
        weights = 3 * weights / weights.sum()
    return found, weights


@pytest.mark.parametrize(("alpha", "rate"), [(1.5, 0.025), (0.12, 0.2)])
def test_gradnorm(alpha: float, rate: float):
    method = ag.GradNorm(alpha, rate)
    wanted, weights = gradnorm(1, alpha, rate)
    np.testing.assert_allclose(combined_vectors(method, 1), wanted, rtol=1e-10)
    np.testing.assert_allclose(method.loss_weights, weights, rtol=1e-10)
    assert np.abs(weights - 1.0).max() > 0.2  # they have changed


def test_gradnorm_gives_losses_that_learn_slowly_longer_gradients():
    method, gramian = ag.GradNorm(alpha=1.0, learning_rate=0.01), tf.eye(2, dtype=tf.float64)
    for step in range(30):
        weights = method.weights(gramian, losses=[1.0, 0.95**step])
    assert weights[0] > weights[1]


def test_the_weight_of_gradnorm_does_not_get_negative():
    method = ag.GradNorm(learning_rate=10.0)
    for _ in range(5):
        weights = method.weights(tf.constant([[1.0, 0.0], [0.0, 9.0]]), losses=[1.0, 1.0])
        assert weights.numpy().min() >= 0.0
        assert weights.numpy().sum() == pytest.approx(2.0)


# ------------------------------------------------------------------ MoCo


def on_simplex(vector: np.ndarray) -> np.ndarray:
    """Return the closest weights, by bisection of what is subtracted."""
    low, high = vector.min() - 1.0, vector.max()
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if np.maximum(vector - middle, 0.0).sum() > 1.0 else (low, middle)
    return np.maximum(vector - low, 0.0)


@pytest.mark.parametrize("decay", [0.0, 0.5])
@pytest.mark.parametrize("rho", [0.0, 0.3])
def test_moco(decay: float, rho: float):
    method = ag.MoCo(beta=0.3, gamma=0.05, rho=rho, decay=decay)
    weights, tracked, wanted = np.full(3, 1 / 3), None, []
    for step, (matrix, _) in enumerate(sequence(2), 1):
        tracked = matrix if tracked is None else tracked - 0.3 / step**decay * (tracked - matrix)
        slope = (tracked @ tracked.T + rho * np.eye(3)) @ weights
        weights = on_simplex(weights - 0.05 / step**decay * slope)
        wanted.append(weights @ tracked)
    rows_keys, found = None, []
    for matrix, _ in sequence(2):
        rows = rows_of_matrix(matrix, parts=2)
        rows_keys = rows_keys or list(rows[0].keys())
        same = [rt.Gradients(zip(rows_keys, row.values(), strict=True)) for row in rows]
        found.append(np.concatenate([grad.numpy() for grad in method(same).values()]))
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(method.loss_weights, weights, rtol=1e-9)


def test_moco_converges_to_the_shortest_combination():
    matrix = np.random.default_rng(0).normal(size=(3, 6))
    rows, method = rows_of_matrix(matrix), ag.MoCo(gamma=0.05)
    for _ in range(300):
        (grad,) = method(rows).values()
    shortest = ag.MGDA().weights(tf.constant(matrix @ matrix.T)).numpy() @ matrix
    np.testing.assert_allclose(grad, shortest, atol=1e-6)


def test_moco_tracks_sparse_gradients_as_dense_ones():
    table = tf.Variable(tf.zeros([4, 2], tf.float64))

    def rows(*places: int) -> list[rt.Gradients]:
        grads = [
            tf.IndexedSlices(tf.ones([1, 2], tf.float64), tf.constant([place]), tf.constant([4, 2])) for place in places
        ]
        return [rt.Gradients([(table, grad)]) for grad in grads]

    sparse, dense = ag.MoCo(), ag.MoCo()
    for places in ((0, 1), (1, 3), (2, 2)):
        given = rows(*places)
        full = [rt.Gradients([(table, tf.convert_to_tensor(row[table]))]) for row in given]
        np.testing.assert_array_equal(sparse(given)[table], dense(full)[table])


# ------------------------------------------------------------------ DWA and uncertainty


def test_dwa_is_that_of_torchjd():
    values = np.array(stored()["scalarizers"]["values"])
    (wanted,) = (one for name, one in stored()["scalarizers"]["results"].items() if name.startswith("DWA"))
    method, gramian = ag.DWA(temperature=2.0), tf.eye(3)
    for losses in (values, values * [0.9, 0.5, 1.1]):
        np.testing.assert_allclose(method.weights(gramian, losses), np.ones(3))
        method.end_epoch()
    weights = method.weights(gramian, values)
    np.testing.assert_allclose(weights, wanted["grad"], rtol=1e-9)
    assert weights.numpy() @ values == pytest.approx(wanted["value"])


@pytest.mark.parametrize("steps_per_epoch", [None, 4])
def test_dwa_averages_losses_over_an_epoch(steps_per_epoch: int | None):
    method = ag.DWA(1.5, steps_per_epoch)
    means, total, wanted, found = [np.ones(3), np.ones(3)], [], [], []
    for step, (matrix, losses) in enumerate(sequence(3)):
        ratios = means[-1] / means[-2] if len(means) > 3 else np.ones(3)
        wanted.append(3 * np.exp(ratios / 1.5) / np.exp(ratios / 1.5).sum())
        found.append(method.weights(tf.constant(matrix @ matrix.T), losses))
        total.append(losses)
        if step % 4 == 3:
            means.append(np.mean(total, 0))
            total = []
            if steps_per_epoch is None:
                method.end_epoch()
    np.testing.assert_allclose(found, wanted, rtol=1e-10)
    assert np.abs(np.array(wanted) - 1.0).max() > 0.01


def test_an_epoch_without_calls_does_not_count():
    method = ag.DWA()
    method.end_epoch()
    for losses in ([1.0, 1.0], [0.5, 0.9]):
        method.weights(tf.eye(2), losses)
        method.end_epoch()
        method.end_epoch()
    assert int(method.ended) == 2
    assert method.weights(tf.eye(2), [1.0, 1.0]).numpy()[0] < 1.0


def test_uncertainty_weighting_is_that_of_torchjd():
    values = np.array(stored()["scalarizers"]["values"])
    (wanted,) = (one for name, one in stored()["scalarizers"]["results"].items() if name.startswith("UW"))
    method = ag.UncertaintyWeighting()
    method.build(3)
    method.log_variances.assign([0.1, -0.2, 0.5])
    rows = rows_of_matrix(np.eye(3), losses=tf.constant(values))
    combined = method(rows)
    np.testing.assert_allclose(combined[next(iter(rows[0].keys()))], wanted["grad"], rtol=1e-6)
    # The gradient of the log-variances, by differences of the stored kind of value.
    slopes, here = [], np.array([0.1, -0.2, 0.5])
    for change in np.eye(3) * 1e-3:
        both = [0.5 * (np.exp(-s) * values + s).sum() for s in (here + change, here - change)]
        slopes.append((both[0] - both[1]) / 2e-3)
    np.testing.assert_allclose(combined[method.log_variances], slopes, rtol=1e-4)


def test_an_optimizer_trains_uncertainties():
    import keras

    method, x = ag.UncertaintyWeighting(), tf.Variable([3.0, -2.0])
    optimizer = keras.optimizers.Adam(0.1)
    for _ in range(60):
        with rt.Tape() as tape:
            losses = {"a": 100.0 * (x[0] - 1.0) ** 2 + 4.0, "b": 0.1 * (x[1] + 1.0) ** 2 + 0.05}
        method(tape.backward_each(losses)).apply(optimizer)
    first, second = method.log_variances.numpy()
    assert first > second + 1.0  # the loss that stays large is the uncertain one
    np.testing.assert_allclose(np.exp([first, second]), [4.0, 0.05], rtol=1.0)


# ------------------------------------------------------------------ GradVac


def test_gradvac_is_what_its_paper_does_with_vectors():
    draw = np.random.default_rng(0)
    targets, ours = np.zeros((3, 3)), tf.zeros([3, 3], tf.float64)
    for matrix, _ in sequence(4):
        orders = np.stack([draw.permutation(3) for _ in range(3)])
        total = np.zeros(6)
        for own in range(3):
            part = matrix[own].copy()
            for other in orders[own]:
                if other == own:
                    continue
                length = np.linalg.norm(matrix[other])
                cosine = part @ matrix[other] / np.linalg.norm(part) / length
                target = targets[own, other]
                if cosine < target:
                    norm, sine = np.linalg.norm(part), np.sqrt(1 - target**2)
                    part += norm * (target * np.sqrt(1 - cosine**2) - cosine * sine) / (length * sine) * matrix[other]
                    assert part @ matrix[other] / np.linalg.norm(part) / length == pytest.approx(target)
                targets[own, other] = 0.9 * target + 0.1 * cosine
            total += part
        weights, ours = ag.GradVac(beta=0.1).turn(tf.constant(matrix @ matrix.T), tf.constant(orders), ours)
        np.testing.assert_allclose(weights.numpy() @ matrix, total, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(ours, targets, rtol=1e-8, atol=1e-12)
