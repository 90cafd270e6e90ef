"""The state of methods: inside functions, in checkpoints, in replicas, in Keras, in compiled steps."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from aggregate.making import rows_of_matrix
from retrotape import aggregate as ag
from retrotape.errors import MethodStateError, NonfiniteRowError

MAKE = {
    "GradNorm": lambda: ag.GradNorm(learning_rate=0.1),
    "DWA": lambda: ag.DWA(steps_per_epoch=2),
    "GradVac": lambda: ag.GradVac(seed=1),
    "MoCo": ag.MoCo,
    "UncertaintyWeighting": ag.UncertaintyWeighting,
}
W = tf.Variable(tf.zeros([5], tf.float64))


@pytest.fixture(params=MAKE)
def make(request):
    return MAKE[request.param]


def matrices(number: int = 6) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(number, 3, 5))


def losses_at(step: int) -> np.ndarray:
    return np.array([1.0, 2.0, 3.0]) * np.array([0.9, 0.8, 0.99]) ** step


def combine(method, values, losses, **options):
    rows = rt.Rows([rt.Gradients([(W, row)]) for row in tf.unstack(values)], losses=losses)
    return method(rows, **options)[W]


def run(method, function=combine, start: int = 0, number: int = 6) -> list[np.ndarray]:
    steps = list(enumerate(matrices(12)))[start : start + number]
    return [function(method, tf.constant(one), tf.constant(losses_at(step))).numpy() for step, one in steps]


def test_a_function_has_the_same_state(make):
    eager, inside = make(), make()
    compiled = tf.function(lambda values, losses: combine(inside, values, losses), autograph=False)
    np.testing.assert_allclose(
        run(inside, lambda _, values, losses: compiled(values, losses)), run(eager), rtol=1e-9, atol=1e-12
    )
    for left, right in zip(eager.variables, inside.variables, strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-9, atol=1e-12)


def test_functions_and_eager_code_may_alternate(make):
    method, wanted = make(), run(make())
    compiled = tf.function(lambda values, losses: combine(method, values, losses), autograph=False)
    found = (
        run(method, number=2) + run(method, lambda _, *given: compiled(*given), 2, 2) + run(method, start=4, number=2)
    )
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_methods_do_not_share_state(make):
    one, two = make(), make()
    first = run(one)
    np.testing.assert_array_equal(run(two), first)
    assert one != two
    assert len({one, two}) == 2


def test_reset_starts_again(make):
    method = make()
    method.reset()  # nothing to do yet
    first = run(method)
    method.reset()
    if isinstance(method, ag.UncertaintyWeighting):
        method.log_variances.assign([1.0, 2.0, 3.0])
        method.reset()
    np.testing.assert_allclose(run(method), first, rtol=1e-12)


@pytest.mark.parametrize("is_used_before", [True, False])
def test_a_checkpoint_has_the_state(make, is_used_before: bool, tmp_path):
    method, other = make(), make()
    run(method, number=3)
    path = tf.train.Checkpoint(method=method).write(str(tmp_path / "state"))
    wanted = run(method, start=3, number=3)
    if is_used_before:
        run(other, start=6, number=1)
    status = tf.train.Checkpoint(method=other).read(path)
    if not is_used_before:
        other.build(3)
    if is_used_before or not isinstance(other, ag.MoCo):
        status.assert_consumed()
    else:  # its moving averages are made, and restored, at the first call
        with pytest.raises(AssertionError):
            status.assert_consumed()
    np.testing.assert_allclose(run(other, start=3, number=3), wanted, rtol=1e-9)
    status.assert_consumed()


def test_variables_are_those_of_the_method(make):
    method = make()
    assert method.variables == ()
    run(method, number=1)
    assert W.ref() not in [one.ref() for one in method.variables]
    assert all(one.shape != W.shape for one in method.variables)
    trainable = [one.name for one in method.trainable_variables]
    assert trainable == (["log_variances:0"] if isinstance(method, ag.UncertaintyWeighting) else [])


def test_gradients_that_are_not_finite_leave_the_state(make):
    method, wanted = make(), run(make())
    found = run(method, number=3)
    before = [one.numpy() for one in method.variables]
    broken = matrices()[0]
    broken[1, 2] = np.inf
    with pytest.raises(
        NonfiniteRowError, match="The gradient of the loss 1 is not finite, or its square is out of the range"
    ):
        combine(method, tf.constant(broken), tf.constant(losses_at(3)))
    skipped = combine(method, tf.constant(broken), tf.constant(losses_at(3)), nonfinite="keep")
    assert np.all(np.isnan(skipped))
    for left, right in zip(before, method.variables, strict=True):
        if not right.name.startswith("draws"):
            np.testing.assert_array_equal(left, right)
    np.testing.assert_allclose(found + run(method, start=3, number=3), wanted, rtol=1e-9)


def test_state_for_another_number_of_losses(make):
    method = make()
    run(method, number=1)
    with pytest.raises(MethodStateError, match=r"has state for 3 losses, got 2\. Make a new one for them\."):
        combine(method, tf.ones([2, 5], tf.float64), tf.constant([1.0, 2.0]))


def test_moving_averages_of_other_variables():
    method, rows = ag.MoCo(), rows_of_matrix(matrices()[0], parts=5)
    method(rows)
    with pytest.raises(MethodStateError, match=r"This MoCo has moving averages for .*, and the shared variables are"):
        method(rows, shared=list(rows[0].keys())[:2])
    np.testing.assert_equal(len(method.averages), 5)


@pytest.mark.parametrize("make", [MAKE["GradNorm"], MAKE["DWA"], MAKE["UncertaintyWeighting"]])
def test_weights_of_losses_hold_for_own_variables_too(make):
    method, shared, head = make(), tf.Variable([1.0, 2.0]), tf.Variable(3.0)
    for _ in range(3):
        with rt.Tape() as tape:
            losses = {"a": tf.reduce_sum(shared**2), "b": head * tf.reduce_sum(shared) + 5.0}
        combined = method(tape.backward_each(losses))
        assert float(combined[head]) == pytest.approx(3.0 * float(combined.weights["b"]))
        wanted = 2.0 * shared * float(combined.weights["a"]) + 3.0 * float(combined.weights["b"])
        np.testing.assert_allclose(combined[shared], wanted, rtol=1e-5)


def test_norms_of_a_chosen_layer():
    """As in the paper of GradNorm: norms are those of one layer, weights hold for all."""
    method, layer, other = ag.GradNorm(learning_rate=0.1), tf.Variable([1.0]), tf.Variable([1.0])
    for _ in range(2):
        with rt.Tape() as tape:
            losses = [2.0 * layer[0] + 100.0 * other[0], 4.0 * layer[0] + other[0]]
        combined = method(tape.backward_each(losses), shared=[layer])
    first, second = map(float, combined.weights.values())
    assert first > 1.0 > second
    assert float(combined[other][0]) == pytest.approx(100.0 * first + second)


def test_keras_fit_keeps_the_state():
    import keras

    method = ag.GradNorm(learning_rate=0.05)

    class Model(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.heads = keras.layers.Dense(4, "tanh"), [keras.layers.Dense(1), keras.layers.Dense(1)]

        def call(self, x):
            hidden = self.trunk(x)
            return [head(hidden) for head in self.heads]

        def train_step(self, data):
            x, y = data
            with rt.Tape() as tape:
                losses = [tf.reduce_mean((out - y[:, k : k + 1]) ** 2) for k, out in enumerate(self(x))]
            method(tape.backward_each(losses)).apply(self.optimizer)
            return {"loss": tf.add_n(losses)}

    keras.utils.set_random_seed(1)
    draw = np.random.default_rng(0)
    x = draw.normal(size=(32, 3)).astype("float32")
    y = np.stack([x.sum(1), 10.0 * x[:, 0]], 1).astype("float32")
    model = Model()
    model.compile(keras.optimizers.SGD(0.01))
    model.fit(x, y, batch_size=8, epochs=3, verbose=0)
    assert int(method.calls) == 12
    assert method.loss_weights.numpy()[1] < 0.9  # the gradient of the second loss is longer
