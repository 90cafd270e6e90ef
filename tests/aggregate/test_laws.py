"""What the papers promise of their methods, on random gradients, and other ways to compute the same."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from aggregate import truth
from aggregate.problems import rows_of
from retrotape import aggregate as ag

SEEDS = range(4)
SIZE = 4  # losses: functions are made once for all tests
DRAWN = tf.constant([[3, 1, 0, 2], [2, 0, 1, 3], [1, 3, 0, 2], [0, 2, 1, 3]])


def matrix_of(seed: int, kind: str = "conflicting") -> np.ndarray:
    return rows_of(kind, SIZE, np.random.default_rng(seed))


def combine(method: ag.Weighting, matrix: np.ndarray) -> np.ndarray:
    return method.weights(tf.constant(matrix @ matrix.T)).numpy() @ matrix


def pcgrad(matrix: np.ndarray) -> np.ndarray:
    problem = ag.Problem(tf.constant(matrix @ matrix.T), 2.3e-16)
    return ag.PCGrad().weigh(problem, DRAWN).values.numpy() @ matrix


METHODS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    str(method): lambda matrix, method=method: combine(method, matrix)
    for method in [
        *(ag.Sum(), ag.Mean(), ag.UPGrad(), ag.DualProj(), ag.MGDA(), ag.CAGrad(0.4), ag.IMTLG(), ag.AlignedMTL()),
        *(ag.ConFIG(), ag.NashMTL(), ag.FairGrad(2.0), ag.Krum(1, 2)),
    ]
}


@pytest.mark.parametrize("name", METHODS)
def test_the_order_of_losses_does_not_matter(name: str):
    for seed in SEEDS:
        matrix = matrix_of(seed, "random")
        order = np.random.default_rng(seed).permutation(SIZE)
        np.testing.assert_allclose(METHODS[name](matrix[order]), METHODS[name](matrix), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("name", [*(name for name in METHODS if "Nash" not in name and "Fair" not in name), "PCGrad"])
@pytest.mark.parametrize("factor", [1e-5, 300.0])
def test_results_scale_with_the_gradients(name: str, factor: float):
    method = METHODS.get(name, pcgrad)
    for seed in SEEDS:
        matrix = matrix_of(seed)
        np.testing.assert_allclose(method(factor * matrix), factor * method(matrix), rtol=1e-7, atol=1e-9 * factor)


@pytest.mark.parametrize("name", [name for name in METHODS if "Krum" not in name])
def test_small_changes_of_gradients_change_results_little(name: str):
    for seed in SEEDS:
        matrix = matrix_of(seed, "random")
        other = matrix + 1e-7 * np.random.default_rng(seed).normal(size=matrix.shape)
        np.testing.assert_allclose(METHODS[name](other), METHODS[name](matrix), atol=1e-3)


@pytest.mark.parametrize("method", [ag.UPGrad(), ag.DualProj(), ag.MGDA(), ag.NashMTL()], ids=str)
@pytest.mark.parametrize("kind", ["random", "conflicting", "repeated"])
def test_results_conflict_with_no_loss(method, kind: str):
    checked = 0
    for seed in SEEDS:
        matrix = matrix_of(seed, kind)
        if isinstance(method, ag.NashMTL) and has_opposite_rows(matrix):
            continue  # it has no weights then, and warns
        products = matrix @ combine(method, matrix)
        assert products.min() >= -1e-9 * np.abs(matrix).max() ** 2
        checked += 1
    assert checked > 0


def has_opposite_rows(matrix: np.ndarray) -> bool:
    unit = matrix / np.linalg.norm(matrix, axis=1, keepdims=True)
    return bool((unit @ unit.T).min() < -1.0 + 1e-12)


@pytest.mark.parametrize("method", [ag.UPGrad(), ag.DualProj(), ag.MGDA(), ag.NashMTL()], ids=str)
def test_no_loss_grows_along_a_small_step(method):
    """The losses are squared distances to some points, far from the best compromise."""
    for seed in SEEDS:
        draw = np.random.default_rng(seed)
        points, start = draw.normal(size=(SIZE, 5)), 3.0 * draw.normal(size=5)
        step = combine(method, 2.0 * (start - points))
        before = ((start - points) ** 2).sum(1)
        after = ((start - 1e-3 * step - points) ** 2).sum(1)
        assert np.all(after <= before + 1e-6 * step @ step)
        assert after.sum() < before.sum()


def test_upgrad_is_the_mean_of_projections():
    for seed in SEEDS:
        matrix = matrix_of(seed)
        np.testing.assert_allclose(combine(ag.UPGrad(), matrix), truth.upgrad(matrix), atol=1e-7)


def test_dualproj_is_the_projection_of_the_mean():
    for seed in SEEDS:
        matrix, wanted = matrix_of(seed), np.array([0.1, 0.9, 2.0, 0.5])
        nearest = truth.project_on_cone(matrix, wanted @ matrix)
        np.testing.assert_allclose(combine(ag.DualProj(wanted), matrix), nearest, atol=1e-7)


def test_upgrad_is_linear_in_the_size_of_each_gradient():
    draw = np.random.default_rng(0)
    for seed in SEEDS:
        matrix, first, second = matrix_of(seed), *draw.uniform(0.1, 3.0, (2, SIZE, 1))
        found = combine(ag.UPGrad(), first * matrix) + combine(ag.UPGrad(), second * matrix)
        np.testing.assert_allclose(combine(ag.UPGrad(), (first + second) * matrix), found, atol=1e-8)


def test_no_convex_combination_is_shorter_than_that_of_mgda():
    for seed in SEEDS:
        matrix = matrix_of(seed)
        found = combine(ag.MGDA(), matrix)
        assert (matrix @ found).min() >= found @ found - 1e-9
        weights = ag.MGDA().weights(tf.constant(matrix @ matrix.T)).numpy()
        assert weights.min() >= 0.0
        assert weights.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("c", [0.1, 0.5, 0.9, 2.0])
@pytest.mark.parametrize("kind", ["random", "conflicting", "dependent", "with zeros"])
def test_cagrad_takes_the_best_least_gain_near_the_average(c: float, kind: str):
    for seed in SEEDS:
        matrix = matrix_of(seed, kind)
        found = ag.CAGrad(c).solve(ag.Problem(tf.constant(matrix @ matrix.T), 2.3e-16))
        assert found.converged
        gap, outside = truth.conflict_averse_gap(matrix, found.values.numpy() @ matrix, c)
        size = np.abs(matrix).max() ** 2
        assert gap < 1e-6 * size
        assert outside < 1e-7 * np.sqrt(size)


def test_imtlg_has_equal_projections_on_all_gradients():
    for seed in SEEDS:
        matrix = np.random.default_rng(seed).normal(size=(SIZE, 7)) * np.array([[1.0], [30.0], [0.2], [5.0]])
        products = matrix @ combine(ag.IMTLG(), matrix) / np.linalg.norm(matrix, axis=1)
        np.testing.assert_allclose(products, products[0], rtol=1e-9)
        assert ag.IMTLG().weights(tf.constant(matrix @ matrix.T)).numpy().sum() == pytest.approx(1.0)


def test_config_has_equal_cosines_and_the_length_of_all_projections():
    for seed in SEEDS:
        matrix = np.random.default_rng(seed).normal(size=(SIZE, 7)) * np.array([[1.0], [30.0], [0.2], [5.0]])
        found = combine(ag.ConFIG(), matrix)
        length = np.linalg.norm(found)
        cosines = matrix @ found / np.linalg.norm(matrix, axis=1) / length
        np.testing.assert_allclose(cosines, cosines[0], rtol=1e-9)
        assert (matrix @ found / length).sum() == pytest.approx(length)


def test_aligned_gradients_are_orthogonal_and_equally_long():
    matrix = np.random.default_rng(1).normal(size=(SIZE, 7))
    values = np.linalg.svd(matrix, compute_uv=False)
    for scale, length in (("min", values.min()), ("median", np.sort(values)[1]), ("rmse", np.sqrt(np.mean(values**2)))):
        rows = np.stack([combine(ag.AlignedMTL(one, scale), matrix) for one in np.eye(SIZE)])
        np.testing.assert_allclose(rows @ rows.T, length**2 * np.eye(SIZE), atol=1e-9)


@pytest.mark.parametrize("alpha", [0.5, 1.0, 2.0, 5.0])
@pytest.mark.parametrize("kind", ["random", "scaled", "with zeros"])
def test_fairgrad_solves_its_equation(alpha: float, kind: str):
    solved = 0
    for seed in range(8):
        draw = np.random.default_rng(seed)
        matrix = rows_of(kind, SIZE, draw) if kind != "random" else draw.normal(size=(SIZE, 9))
        found = ag.FairGrad(alpha).solve(ag.Problem(tf.constant(matrix @ matrix.T), 2.3e-16))
        if found.converged:
            solved += 1
            assert truth.fairness_gap(matrix, found.values.numpy(), alpha) < (1e-6 if kind == "scaled" else 1e-9)
    assert solved >= 4  # the others have no solution


def test_the_direction_of_nash_bargaining_does_not_depend_on_the_size_of_gradients():
    for seed in SEEDS:
        matrix = np.random.default_rng(seed).normal(size=(SIZE, 7))
        scaled = matrix * np.array([[1e-4], [1.0], [10.0], [1e5]])
        np.testing.assert_allclose(combine(ag.NashMTL(), scaled), combine(ag.NashMTL(), matrix), rtol=1e-8)
        assert np.linalg.norm(combine(ag.NashMTL(None), matrix)) == pytest.approx(np.sqrt(SIZE))


def test_pcgrad_is_what_its_paper_does_with_vectors():
    for seed in SEEDS:
        matrix, total = matrix_of(seed), 0.0
        for own, order in zip(matrix, DRAWN.numpy(), strict=True):
            part = own.copy()
            for other in matrix[order]:
                if other is not own and part @ other < 0.0 and not np.array_equal(own, other):
                    part -= (part @ other) / (other @ other) * other
            total = total + part
        np.testing.assert_allclose(pcgrad(matrix), total, atol=1e-9)


@pytest.mark.parametrize("squared", [True, False])
def test_krum_is_what_its_paper_says(squared: bool):
    for seed in range(8):
        matrix = np.random.default_rng(seed).normal(size=(6, 5)) * np.array([[1, 1, 1, 1, 4, 9]]).T
        distances = np.linalg.norm(matrix[:, None] - matrix[None], axis=-1) ** (2 if squared else 1)
        scores = [np.sort(np.delete(row, own))[: 6 - 1 - 2].sum() for own, row in enumerate(distances)]
        wanted = matrix[np.argsort(scores)[:2]].mean(0)
        np.testing.assert_allclose(combine(ag.Krum(1, 2, squared), matrix), wanted, atol=1e-9)


def test_krum_with_squared_distances_may_choose_another_one():
    rows = np.array([[np.float64(-9.0), np.float64(-3.0), np.float64(7.0), np.float64(2.0), np.float64(-9.0)]]).T
    distances = np.abs(rows - rows.T)
    chosen = []
    for power, squared in ((2, True), (1, False)):
        scores = np.sort(distances**power, 1)[:, 1:4].sum(1)  # the first distance is that to itself
        chosen.append(float(combine(ag.Krum(0, 1, squared), rows)[0]))
        assert chosen[-1] == rows[np.argmin(scores), 0]
    assert chosen[0] != chosen[1]
    assert ag.Krum().squared


def test_trimmed_means_are_those_of_scipy():
    from scipy.stats import trim_mean

    values = np.random.default_rng(0).normal(size=(7, 50))
    found = ag.TrimmedMean(2).combine(tf.constant(values), None)
    np.testing.assert_allclose(found, trim_mean(values, 2 / 7 + 1e-9, axis=0), rtol=1e-12)
    np.testing.assert_allclose(ag.TrimmedMean(0).combine(tf.constant(values), None), values.mean(0), rtol=1e-12)


def test_trimmed_means_do_not_follow_outliers():
    values = np.random.default_rng(0).normal(size=(7, 50))
    wrong = values.copy()
    wrong[[2, 5]] = 1e9
    found = ag.TrimmedMean(2).combine(tf.constant(wrong), None).numpy()
    rest = np.delete(values, [2, 5], 0)
    assert np.all((rest.min(0) <= found) & (found <= rest.max(0)))
