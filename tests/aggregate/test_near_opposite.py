"""Gradients that nearly cancel: in single precision, the result is that of the same numbers in double precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

METHODS: dict[str, Any] = {
    "UPGrad": rt.aggregate.UPGrad(),
    "DualProj": rt.aggregate.DualProj(),
    "CAGrad": rt.aggregate.CAGrad(0.5),
    "ConFIG": rt.aggregate.ConFIG(),
    "MGDA": rt.aggregate.MGDA(),
    "IMTLG": rt.aggregate.IMTLG(),
    "AlignedMTL": rt.aggregate.AlignedMTL(),
    "FairGrad": rt.aggregate.FairGrad(1.0),
    "NashMTL": rt.aggregate.NashMTL(),
    "Krum": rt.aggregate.Krum(0),
    "PCGrad": rt.aggregate.PCGrad(seed=1),
    "GradVac": rt.aggregate.GradVac(seed=1),
}
SEEDS, SHAPES = range(24), [(3, 1000), (8, 20), (5, 300)]  # the first shape runs in the fast tests


def nearly_opposite(seed: int, shape: tuple[int, int] = SHAPES[0]) -> np.ndarray:
    """Return rows, the second nearly opposite to the first: as float32, by an angle of 3e-4 to 0.1."""
    rng = np.random.default_rng(seed)
    count, size = shape
    rows = rng.normal(size=(count, size)) * 10.0 ** rng.uniform(-1.0, 1.0, size=(count, 1))
    angle = 10.0 ** rng.uniform(np.log10(3e-4), -1.0)
    rows[1] = -rows[0] + angle * np.linalg.norm(rows[0]) / np.sqrt(size) * rng.normal(size=size)
    return rows.astype(np.float32)


def combining(method: Any, dtype: type, shape: tuple[int, int]) -> Callable[[tf.Tensor], tuple[tf.Tensor, Any]]:
    """Return what combines rows, stacked."""
    variable = tf.Variable(tf.zeros(shape[1:], dtype))

    def run(stacked: tf.Tensor) -> Any:
        found = method(rt.Rows.from_stacked([variable], [stacked]))
        return found[variable], found.converged

    return run


def combined(run: Callable[[tf.Tensor], tuple[tf.Tensor, Any]], rows: np.ndarray) -> tuple[np.ndarray, bool]:
    grad, converged = run(tf.constant(rows))
    return np.float64(grad), bool(converged)


ALL = [pytest.param(name, shape, marks=pytest.mark.slow) for name in METHODS for shape in SHAPES[1:]]
ALL += [pytest.param(name, SHAPES[0]) for name in METHODS]


@pytest.mark.filterwarnings("ignore::retrotape.errors.AggregationWarning")
@pytest.mark.parametrize(("name", "shape"), ALL)
def test_single_precision_is_as_good(name: str, shape: tuple[int, int]):
    compare(name, shape, SEEDS, inside=False)


@pytest.mark.filterwarnings("ignore::retrotape.errors.AggregationWarning")
@pytest.mark.parametrize("name", ["UPGrad", "CAGrad", "ConFIG"])
def test_inside_a_function_too(name: str):
    compare(name, SHAPES[0], SEEDS[:3], inside=True)


def compare(name: str, shape: tuple[int, int], seeds: range, inside: bool) -> None:
    method = other = METHODS[name]
    run, exact = combining(method, np.float32, shape), combining(other, np.float64, shape)
    if inside:
        run, exact = tf.function(run), tf.function(exact)
    for seed in seeds:
        rows = nearly_opposite(seed, shape)
        if name in ("PCGrad", "GradVac"):  # the same draws for both
            method, other = type(METHODS[name])(seed=1), type(METHODS[name])(seed=1)
            run, exact = combining(method, np.float32, shape), combining(other, np.float64, shape)
        found, converged = combined(run, rows)
        wanted, possible = combined(exact, np.float64(rows))
        assert converged == possible, seed
        rounding = 1e-6 * np.abs(rows).max()  # where the sum itself cancels
        atol = 2e-4 * np.abs(wanted).max() + rounding
        np.testing.assert_allclose(found, wanted, rtol=2e-3, atol=atol, err_msg=str(seed))


@pytest.mark.parametrize("count", [3, 8, 16, 17])
def test_the_routes_to_weights_agree(count: int):
    rng = np.random.default_rng(count)
    rows = rng.normal(size=(count, 40)).astype(np.float32)
    rows[1] = -rows[0] + 1e-3 * rng.normal(size=40)
    variable = tf.Variable(tf.zeros([40]))
    given = rt.Rows.from_stacked([variable], [tf.constant(rows)])
    method = rt.aggregate.UPGrad()
    direct = list(method(given).weights.values())
    np.testing.assert_allclose(direct, method.weights(given.gramian()), rtol=1e-6)


def test_products_that_a_gpu_rounds_are_not_used(monkeypatch: pytest.MonkeyPatch):
    """As with TensorFloat-32: then sums are not matrix products, and inner products are of double precision."""
    rows = nearly_opposite(1)
    wanted, _ = combined(combining(rt.aggregate.UPGrad(), np.float32, rows.shape), rows)
    for name in ("_base", "_columns"):
        monkeypatch.setattr(f"retrotape.aggregate.{name}.rounds_products", lambda: True)
    monkeypatch.setattr("retrotape.aggregate._functions._functions", {})
    monkeypatch.setattr("retrotape.aggregate._functions._find", lambda key: None)
    variable = tf.Variable(tf.zeros(rows.shape[1:]))
    seen: set[str] = set()

    def run(stacked: tf.Tensor) -> tf.Tensor:
        return rt.aggregate.UPGrad()(rt.Rows.from_stacked([variable], [stacked]))[variable]

    graph = tf.function(run).get_concrete_function(tf.TensorSpec(rows.shape, tf.float32)).graph
    seen.update(op.type for op in graph.get_operations() if op.outputs and op.outputs[0].dtype == tf.float32)
    assert not {"MatMul", "BatchMatMulV2", "BatchMatMulV3"} & seen
    np.testing.assert_allclose(tf.function(run)(tf.constant(rows)), wanted, rtol=1e-4, atol=1e-6)
