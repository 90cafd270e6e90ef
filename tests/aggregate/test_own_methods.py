"""Methods of user code, and what happens where weights or results cannot be used."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

FACTOR = 1.0


class Scaled(rt.aggregate.Weighting):
    """Reads a global and an attribute of its class, and counts its calls."""

    share, calls = 1.0, 0

    def solve(self, problem):
        type(self).calls += 1
        values = tf.fill([problem.size], tf.constant(FACTOR * self.share, tf.float64))
        return rt.aggregate.Solution(values, tf.constant(True))


class Largest(rt.aggregate.Coordinatewise):
    """Reads a global."""

    def combine(self, values, seed):
        return FACTOR * tf.reduce_max(values, 0)


class More(rt.aggregate.UPGrad):
    """Changes what a method of the library does."""

    def solve(self, problem):
        found = super().solve(problem)
        return found._replace(values=FACTOR * found.values)


def rows_of(*slopes: float) -> tuple[tf.Variable, rt.Rows]:
    w = tf.Variable([1.0, 1.0])
    with rt.Tape() as tape:
        losses = [slope * w[number % 2] for number, slope in enumerate(slopes)]
    return w, tape.backward_each(losses)


@pytest.mark.parametrize("kind", [Scaled, Largest, More])
def test_what_they_read_may_change(kind: type, monkeypatch: pytest.MonkeyPatch):
    w, rows = rows_of(2.0, 4.0)
    method = kind()
    first = method(rows)[w].numpy()
    monkeypatch.setitem(globals(), "FACTOR", 3.0)
    np.testing.assert_allclose(method(rows)[w], 3.0 * first)
    if kind is Scaled:
        monkeypatch.setattr(Scaled, "share", 0.5)
        np.testing.assert_allclose(method(rows)[w], 1.5 * first)


def test_python_in_them_runs_each_time():
    _, rows = rows_of(2.0, 4.0)
    before, method = Scaled.calls, Scaled()
    for _ in range(3):
        method(rows)
    assert Scaled.calls == before + 3


@pytest.mark.filterwarnings("ignore::retrotape.errors.AggregationWarning")
@pytest.mark.parametrize("ours", [True, False], ids=["rt.Tape", "tf.GradientTape"])
def test_a_derivative_where_pivoting_does_not_end(ours: bool, monkeypatch: pytest.MonkeyPatch):
    """SciPy's solver would find the weights, but as constants for a tape."""
    monkeypatch.setattr("retrotape.aggregate._pivoting._steps", lambda size: 0)
    monkeypatch.setattr("retrotape.aggregate._functions._find", lambda key: None)
    x, w = tf.constant(0.7, tf.float64), tf.Variable(tf.zeros([2], tf.float64))

    def result(x: tf.Tensor) -> tf.Tensor:
        rows = tf.stack([tf.stack([x, 1.0 + 0.0 * x]), tf.stack([-2.0 * x, 0.3 * x])])
        found = rt.aggregate.UPGrad()(rt.Rows.from_stacked([w], [rows]))
        return tf.reduce_sum(found[w] * [1.0, 2.0])

    with rt.Tape() if ours else tf.GradientTape() as tape:
        tape.watch(x)
        y = result(x)
        near = [result(x + step) for step in (1e-6, -1e-6)]  # under the tape, as there it is another result
    slope = float(near[0] - near[1]) / 2e-6
    assert float(tape.gradient(y, x)) == pytest.approx(slope, rel=1e-5)


@pytest.mark.parametrize("method", [rt.aggregate.Sum(), rt.aggregate.UPGrad(), rt.aggregate.MoCo()], ids=str)
def test_a_result_that_is_too_large(method):
    w = tf.Variable(tf.zeros([2], tf.float16))
    rows = [rt.Gradients([(w, tf.constant([60000.0, 1.0], tf.float16))]) for _ in range(2)]
    scaled = rt.aggregate.Constant([1.5, 1.5]) if not isinstance(method, rt.aggregate.Sum) else method
    with pytest.raises(rt.errors.CombinationOverflowError, match="their combination is too large for their dtype"):
        scaled(rows)
    with pytest.raises(tf.errors.InvalidArgumentError, match="their combination is too large for their dtype"):
        tf.function(lambda: scaled(rows)[w])()
    assert np.isinf(scaled(rows, nonfinite="keep")[w].numpy()[0])


@pytest.mark.parametrize("make", [rt.aggregate.GradNorm, rt.aggregate.DWA, rt.aggregate.MoCo])
def test_a_head_that_is_not_finite_leaves_the_state(make):
    trunk, heads = tf.Variable([1.0, 2.0]), [tf.Variable(1.0), tf.Variable(0.0)]
    method = make()

    def rows() -> rt.Rows:
        with rt.Tape() as tape:
            losses = {"fine": trunk[0] * heads[0], "bad": trunk[1] + tf.sqrt(heads[1])}
        return tape.backward_each(losses)

    heads[1].assign(1.0)
    method(rows())
    before = [one.numpy() for one in method.variables]
    heads[1].assign(0.0)
    with pytest.raises(rt.errors.NonfiniteRowError, match="The gradient of the loss 'bad' is not finite"):
        method(rows())
    for left, right in zip(before, method.variables, strict=True):
        np.testing.assert_array_equal(left, right)


def test_conflicts_and_noise_of_a_row_that_is_not_finite():
    _, rows = rows_of(2.0, float("nan"), 3.0)
    assert "not finite: the gradients of 1" in repr(rows.conflicts())
    assert "not finite: the gradients of 1" in rows._repr_html_()
    with pytest.raises(rt.errors.NonfiniteRowError, match="The gradient of the loss 1 is not finite"):
        rows.noise_scale()
    first, second = tf.Variable(1.0), tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = [first * 2.0, second * 3.0]
    assert "no variable in common" in tape.backward_each(losses).conflicts().summary()


def test_losses_of_different_types_and_shapes():
    w = tf.Variable(2.0)
    with rt.Tape() as tape:
        losses = [w * w, tf.cast(w, tf.float64) * 3.0, tf.stack([w, w]) * 2.0, {"a": w, "b": 2.0 * w}]
    rows = tape.backward_each(losses)
    found = rt.aggregate.DWA()(rows)
    assert [float(one) for one in found.weights.values()] == [1.0] * 4
    assert float(found[w]) == pytest.approx(4.0 + 3.0 + 4.0 + 3.0)


@pytest.mark.parametrize("alpha", [0.05, 0.1, 0.5, 2.0])
@pytest.mark.filterwarnings("ignore::retrotape.errors.AggregationWarning")
def test_fairness_holds_where_it_is_claimed(alpha: float):
    claimed = 0
    for seed in range(20):
        rng = np.random.default_rng(seed)
        rows = rng.normal(size=(3, 30)) * 10.0 ** rng.uniform(-1.0, 1.0, size=(3, 1))
        variable = tf.Variable(tf.zeros([30], tf.float64))
        found = rt.aggregate.FairGrad(alpha)(rt.Rows.from_stacked([variable], [tf.constant(rows)]))
        weights = np.array([float(one) for one in found.weights.values()])
        if found.converged:
            claimed += 1
            np.testing.assert_allclose((rows @ rows.T @ weights) * weights ** (1.0 / alpha), 1.0, rtol=1e-5)
    assert claimed > (10 if alpha >= 0.5 else 0)


def test_a_vector_that_depends_on_nothing():
    w, x = tf.Variable(1.0), tf.constant([1.0, 2.0, 3.0])
    with rt.Tape() as tape:
        losses = x * 2.0
        w.read_value()
    for chunk in (None, 2):
        rows = tape.backward_each(losses, [w], chunk=chunk)
        assert [row.missing for row in rows] == [(w,)] * 3


def test_weights_of_moving_averages_are_shown():
    _, rows = rows_of(2.0, 4.0, 3.0)
    assert "MoCo(); weights 0: 0." in repr(rt.aggregate.MoCo()(rows))
