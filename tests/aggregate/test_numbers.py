"""Gradients of all sizes and kinds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import NonfiniteRowError


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1.0, 1e15, 1e30])
def test_gradients_that_single_precision_cannot_square(scale):
    w = tf.Variable([1.0, 1.0])
    with rt.Tape() as tape:
        losses = [w[0] * scale, (w[1] - w[0]) * scale]
    combined = rt.aggregate.UPGrad()(tape.backward_each(losses))
    np.testing.assert_allclose(combined[w] / np.float32(scale), [0.25, 0.75], rtol=1e-5)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
@pytest.mark.parametrize("share", [1e-2, 1e-4])
def test_gradients_of_very_different_lengths(dtype, share):
    """AlignedMTL makes all as long as the shortest, which single precision must not lose."""
    w = tf.Variable(tf.zeros([2], dtype))
    rows = rt.Rows([rt.Gradients([(w, tf.constant(row, dtype))]) for row in ([30.0, 0.0], [0.0, 30.0 * share])])
    expected = 15.0 * share
    np.testing.assert_allclose(tf.cast(rows.combine("alignedmtl")[w], tf.float64), [expected] * 2, rtol=1e-2)


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float64])
def test_other_dtypes(dtype):
    w = tf.Variable(tf.cast([1.0, 1.0], dtype))
    with rt.Tape() as tape:
        losses = [w[0], w[1] - w[0]]
    combined = rt.aggregate.UPGrad()(tape.backward_each(losses))
    assert combined[w].dtype == dtype
    np.testing.assert_allclose(tf.cast(combined[w], tf.float64), [0.25, 0.75], rtol=1e-2)


def test_sparse_gradients_stay_sparse():
    table = tf.Variable(tf.reshape(tf.range(20.0), [10, 2]), name="table")

    def losses():
        near, far = tf.gather(table, [1, 1, 7]), tf.gather(table, [7, 3])
        return [tf.reduce_sum(near**2), -tf.reduce_sum(far * 50.0)]

    with rt.Tape() as tape:
        values = losses()
    rows = tape.backward_each(values)
    combined = rt.aggregate.UPGrad()(rows)
    assert isinstance(combined.get(table), tf.IndexedSlices)
    matrix = np.float64([np.ravel(tf.convert_to_tensor(row[table])) for row in rows])
    np.testing.assert_allclose(rows.gramian(), matrix @ matrix.T)
    weights = rt.aggregate.UPGrad().weights(matrix @ matrix.T).numpy()
    np.testing.assert_allclose(np.ravel(tf.convert_to_tensor(combined[table])), weights @ matrix, rtol=1e-5)

    @tf.function
    def run():
        with rt.Tape() as tape:
            values = losses()
        return tf.convert_to_tensor(rt.aggregate.UPGrad()(tape.backward_each(values)).get(table))

    np.testing.assert_allclose(np.ravel(run()), weights @ matrix, rtol=1e-5)


def test_sparse_and_dense_gradients_of_one_variable():
    table = tf.Variable(tf.reshape(tf.range(20.0), [10, 2]), name="table")
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(tf.gather(table, [1, 1, 7])), tf.reduce_sum(table**2)]
    rows = tape.backward_each(losses)
    expected = tf.convert_to_tensor(rows[0][table]) + rows[1][table]
    np.testing.assert_allclose(rt.aggregate.Sum()(rows)[table], expected)


def test_complex_gradients():
    z = tf.Variable([1.0 + 2.0j, 3.0 - 1.0j])
    with rt.Tape() as tape:
        losses = [tf.math.real(z[0] * z[1]), tf.math.imag(z[0])]
    rows = tape.backward_each(losses)
    matrix = np.array([row[z].numpy() for row in rows])
    np.testing.assert_allclose(rows.gramian(), np.real(matrix @ matrix.conj().T), rtol=1e-6)
    np.testing.assert_allclose(rt.aggregate.Sum()(rows)[z], matrix.sum(0), rtol=1e-6)


@pytest.mark.parametrize("name", ["mgda", "imtlg", "config", "alignedmtl", "cagrad", "upgrad"])
@pytest.mark.parametrize("scale", [1e-160, 1e160])
def test_squares_that_double_precision_cannot_hold(name, scale):
    w = tf.Variable([0.0, 0.0], dtype=tf.float64)
    rows = rt.Rows([rt.Gradients([(w, tf.constant(row, tf.float64) * scale)]) for row in ([1.0, 0.0], [0.0, 2.0])])
    with pytest.raises(
        NonfiniteRowError, match=r"not finite, or (its square is|their squares are) out of the range of float64"
    ):
        rows.combine(name)


@pytest.mark.parametrize("name", ["dualproj", "mgda", "config"])
def test_many_rows_of_single_precision(name):
    """Beside the same numbers in double precision: rounding errors of inner products must not count."""
    rng = np.random.default_rng(0)
    matrix = (rng.normal(size=(1, 400)) + 0.5 * rng.normal(size=(200, 400))).astype("f")
    found = []
    for dtype in (tf.float32, tf.float64):
        w = tf.Variable(tf.zeros([400], dtype))
        rows = rt.Rows.from_stacked([w], [tf.constant(matrix, dtype)])
        found.append(np.float64(rows.combine(name)[w]))
    np.testing.assert_allclose(found[0], found[1], rtol=1e-3, atol=1e-4 * np.abs(found[1]).max())


def test_gradients_that_lie_close_together():
    rng = np.random.default_rng(0)
    matrix = (1.0 + 5e-4 * rng.normal(size=(6, 20_000))).astype("f")
    w = tf.Variable(tf.zeros([20_000]))
    rows = rt.Rows.from_stacked([w], [tf.constant(matrix)])
    wide = np.float64(matrix)
    distances = ((wide[:, None] - wide[None]) ** 2).sum(-1)
    best = np.sort(distances, 1)[:, 1:4].sum(1).argmin()
    np.testing.assert_array_equal(rows.combine("krum")[w], matrix[best])


# ------------------------------------------------------------------ methods whose parameters change


class Boosted(rt.aggregate.Mean):
    """A method with an attribute that is no field of the dataclass."""

    def __init__(self, boost: float) -> None:
        object.__setattr__(self, "boost", boost)

    def solve(self, problem):
        found = super().solve(problem)
        return found._replace(values=self.boost * found.values)


@dataclass(eq=False)
class Changing(rt.aggregate.Weighting):
    """A method that can be changed."""

    factor: float = 1.0

    def solve(self, problem):
        return rt.aggregate.Solution(tf.fill([problem.size], tf.cast(self.factor, tf.float64)), tf.constant(True))


def test_methods_with_other_parameters_are_other_methods():
    w = tf.Variable([1.0, 1.0])
    with rt.Tape() as tape:
        losses = [2.0 * w[0], 2.0 * w[1]]
    rows = tape.backward_each(losses)
    assert [float(Boosted(boost)(rows)[w][0]) for boost in (1.0, 10.0, 1.0)] == [1.0, 10.0, 1.0]
    method = Changing()
    assert float(method(rows)[w][0]) == 2.0
    method.factor = 5.0
    assert float(method(rows)[w][0]) == 10.0


@pytest.mark.parametrize("make", [Changing, lambda: rt.aggregate.GradNorm(learning_rate=0.1)], ids=["own", "GradNorm"])
def test_a_compiled_step_notices_changed_parameters(make):
    found = []
    for compiles in (False, True):
        w, method = tf.Variable([1.0, 1.0]), make()

        def step(method=method, w=w):
            with rt.Tape() as tape:
                losses = [2.0 * w[0] ** 2, 3.0 * w[1] ** 2]
            return method(tape.backward_each(losses))[w]

        run = rt.compile(step) if compiles else step
        values = [run().numpy() for _ in range(5)]
        name = "factor" if isinstance(method, Changing) else "learning_rate"
        setattr(method, name, 0.001)
        found.append([*values, *(run().numpy() for _ in range(3))])
    np.testing.assert_allclose(found[0], found[1], rtol=1e-6)
    assert not np.array_equal(found[0][4], found[0][7])


def test_a_variable_of_one_loss_that_is_not_finite():
    w, head = tf.Variable([1.0, 2.0]), tf.Variable(0.0)
    with rt.Tape() as tape:
        losses = {"good": w[0] + w[1], "bad": w[0] + tf.sqrt(head)}
    rows = tape.backward_each(losses)
    with pytest.raises(NonfiniteRowError, match="The gradient of the loss 'bad' is not finite"):
        rt.aggregate.Mean()(rows)
    assert np.isinf(rt.aggregate.Mean()(rows, nonfinite="keep")[head])


@pytest.mark.parametrize("name", ["sum", "graddrop", "upgrad"])
def test_nothing_is_assigned_in_a_function_that_raises(name):
    w, optimizer = tf.Variable([1.0, 2.0]), tf.keras.optimizers.SGD(0.1)
    optimizer.build([w])

    @tf.function
    def step(bad):
        with rt.Tape() as tape:
            losses = [w[0] * bad, w[1] + w[0]]
        tape.backward_each(losses).combine(name).apply(optimizer)

    with pytest.raises(tf.errors.InvalidArgumentError, match="not finite"):
        step(tf.constant(np.nan))
    np.testing.assert_array_equal(w, [1.0, 2.0])
