"""Every method in a step that `rt.compile` plays back, and beside other tapes: the numbers of the plain step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

METHODS: dict[str, Callable[[], Any]] = {
    "Sum": rt.aggregate.Sum,
    "Mean": rt.aggregate.Mean,
    "Weighted": lambda: rt.aggregate.Weighted([1.0, 2.0, 3.0]),
    "Constant": lambda: rt.aggregate.Constant([1.0, 2.0, 3.0]),
    "UPGrad": rt.aggregate.UPGrad,
    "DualProj": rt.aggregate.DualProj,
    "MGDA": rt.aggregate.MGDA,
    "CAGrad": rt.aggregate.CAGrad,
    "IMTLG": rt.aggregate.IMTLG,
    "AlignedMTL": rt.aggregate.AlignedMTL,
    "ConFIG": rt.aggregate.ConFIG,
    "FairGrad": rt.aggregate.FairGrad,
    "NashMTL": rt.aggregate.NashMTL,
    "Krum": lambda: rt.aggregate.Krum(0),
    "TrimmedMean": lambda: rt.aggregate.TrimmedMean(1),
    "PCGrad": lambda: rt.aggregate.PCGrad(seed=1),
    "GradDrop": lambda: rt.aggregate.GradDrop(seed=1),
    "GradVac": lambda: rt.aggregate.GradVac(seed=1),
    "Random": lambda: rt.aggregate.Random(seed=1),
    "GradNorm": rt.aggregate.GradNorm,
    "MoCo": rt.aggregate.MoCo,
    "DWA": rt.aggregate.DWA,
    "UncertaintyWeighting": rt.aggregate.UncertaintyWeighting,
    "DPSGD": lambda: rt.aggregate.DPSGD(1.0, 0.5, 3, seed=1),
}
STEPS = 12


def test_every_method_is_in_the_table():
    kinds = [kind for kind in vars(rt.aggregate).values() if isinstance(kind, type)]
    base = (rt.aggregate.Aggregator, rt.aggregate.Weighting, rt.aggregate.Coordinatewise)
    public = {kind.__name__ for kind in kinds if issubclass(kind, rt.aggregate.Aggregator) and kind not in base}
    assert public == set(METHODS)


class Model:
    """A trunk with three heads, whose losses conflict."""

    def __init__(self, method: Any, dtype: str = "float32") -> None:
        rng = np.random.default_rng(2)
        self.trunk = tf.Variable(rng.normal(size=(4, 5)).astype(dtype), name="trunk")
        self.heads = [tf.Variable(rng.normal(size=(5, 1)).astype(dtype), name=f"head{k}") for k in range(3)]
        self.method = method
        self.optimizer = keras.optimizers.SGD(0.01)

    def losses(self, x, y) -> dict[str, tf.Tensor]:
        hidden = tf.tanh(x @ self.trunk)
        found = [tf.reduce_mean((hidden @ head - y[:, k : k + 1]) ** 2) for k, head in enumerate(self.heads)]
        return dict(zip("abc", found, strict=True))

    def step(self, x, y) -> tf.Tensor:
        with rt.Tape() as tape:
            losses = self.losses(x, y)
        rows = tape.backward_each(losses)
        if isinstance(self.method, rt.aggregate.DPSGD):  # takes the losses for those of examples
            rows = rt.Rows(dict(rows.items()), mixed_by=None)
        self.method(rows).apply(self.optimizer)
        return tf.add_n(list(losses.values()))

    def values(self) -> list[np.ndarray]:
        return [variable.numpy() for variable in (self.trunk, *self.heads)]


def batches() -> list[tuple[tf.Tensor, tf.Tensor]]:
    rng = np.random.default_rng(5)
    return [
        (tf.constant(rng.normal(size=(8, 4)).astype("f")), tf.constant(rng.normal(size=(8, 3)).astype("f")))
        for _ in range(STEPS)
    ]


# Without state or draws, a method is one function of inner products, recorded as one call whatever is in it: one that
# solves (UPGrad) and one that does not (IMTLG) stand for these, whose functions take long to compile.
ALIKE = ("Mean", "Weighted", "Constant", "DualProj", "MGDA", "CAGrad", "AlignedMTL", "ConFIG", "FairGrad", "NashMTL")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in ALIKE else ()) for name in METHODS]
)
def test_a_step_that_is_played_back(name):
    plain, ours = Model(METHODS[name]()), Model(METHODS[name]())
    compiled = rt.compile(ours.step, strict=True)
    for number, (x, y) in enumerate(batches()):
        np.testing.assert_allclose(compiled(x, y), plain.step(x, y), rtol=1e-4, err_msg=f"step {number}")
        for one, other in zip(ours.values(), plain.values(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5, err_msg=f"step {number}")
    assert sum(one.plays for one in compiled.recordings()) >= STEPS - 6


@pytest.mark.parametrize("name", METHODS)
def test_inside_a_function(name):
    plain, ours = Model(METHODS[name]()), Model(METHODS[name]())
    ours.optimizer.build([ours.trunk, *ours.heads, *_extra(ours.method)])
    traced = tf.function(ours.step)
    for x, y in batches()[:6]:
        traced(x, y)
        plain.step(x, y)
        for one, other in zip(ours.values(), plain.values(), strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)


def _extra(method: Any) -> list[Any]:
    """Return the variables that a method wants to be trained."""
    return list(method.build(3)) if isinstance(method, rt.aggregate.UncertaintyWeighting) else []


WITH_STATE = ("GradNorm", "DWA", "UncertaintyWeighting", "GradVac", "MoCo")


@pytest.mark.parametrize("name", METHODS)
def test_a_tape_around_it_sees_it(name):
    """The derivative of what was combined with respect to an input, beside a difference, in float64."""
    (x, y), *earlier = (tuple(tf.cast(one, tf.float64) for one in batch) for batch in batches()[:3])
    model = Model(METHODS[name](), "float64")

    def rows_of(x, y):
        with rt.Tape() as inner:
            losses = model.losses(x, y)
        return rt.Rows(
            dict(inner.backward_each(losses, [model.trunk]).items()), losses=[*losses.values()], mixed_by=None
        )

    def combined(scale):
        method = METHODS[name]()
        if name in WITH_STATE:  # so that weights differ from those at the start
            for batch in earlier:
                method(rows_of(*batch))
                change_state(method)
        return tf.reduce_sum(method(rows_of(x * scale, y))[model.trunk])

    one = tf.constant(1.0, tf.float64)
    with rt.Tape() as outer:
        total = combined(one)
    slope = outer.gradient(total, one)
    if slope is None:  # a path may be refused, but never be a wrong number
        pytest.fail(f"no path: {outer.why(total, one)}")
    numeric = (float(combined(one + 1e-5)) - float(combined(one - 1e-5))) / 2e-5
    assert abs(numeric) > 1e-3
    assert float(slope) == pytest.approx(numeric, rel=1e-6, abs=1e-9)


def change_state(method: Any) -> None:
    """Change the state that calls alone do not change: end an epoch, take a step of an optimizer."""
    if isinstance(method, rt.aggregate.DWA):
        method.end_epoch()
    elif isinstance(method, rt.aggregate.UncertaintyWeighting):
        method.log_variances.assign_add([0.3, -0.2, 0.5])
