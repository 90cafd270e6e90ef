"""`rt.keras.multi_task`: `fit` with one gradient for each loss. With Sum, it is plain `fit`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

RNG = np.random.default_rng(0)
X = RNG.normal(size=(48, 6)).astype("float32")
NEAR, FAR = RNG.normal(size=(48, 1)).astype("float32"), RNG.integers(0, 3, 48)
WEIGHT = RNG.uniform(0.2, 2.0, 48).astype("float32")
layers = keras.layers


def two_heads(structure: Callable[[dict], Any] = dict, l2: float = 0.0, activity: float = 0.0) -> keras.Model:
    keras.utils.set_random_seed(1)
    regularizers = {"kernel_regularizer": keras.regularizers.L2(l2)} if l2 else {}
    x = keras.Input([6])
    trunk = layers.Dense(8, "tanh", **regularizers)(x)
    trunk = layers.Dropout(0.2, seed=3)(layers.BatchNormalization()(trunk))
    if activity:
        trunk = layers.ActivityRegularization(l1=activity)(trunk)
    heads = {"near": layers.Dense(1, name="near"), "far": layers.Dense(3, "softmax", name="far", **regularizers)}
    return keras.Model(x, structure({name: head(trunk) for name, head in heads.items()}))


def values(heads: dict) -> list:
    return list(heads.values())


LOSSES = {"near": "mse", "far": keras.losses.SparseCategoricalCrossentropy()}
BY_NAME = {"near": NEAR, "far": FAR}


def fit(model: keras.Model, y: Any, epochs: int = 2, **options: Any) -> dict[str, list[float]]:
    keras.utils.set_random_seed(2)
    return model.fit(X, y, batch_size=16, epochs=epochs, verbose=0, **options).history


CASES = {  # a model, what `compile` takes, the targets, and what else `fit` takes
    "weights and metrics": (
        two_heads,
        {
            "loss": LOSSES,
            "loss_weights": {"near": 0.3, "far": 2.0},
            "metrics": {"near": ["mae"], "far": ["accuracy"]},
            "weighted_metrics": {"near": ["mse"]},
        },
        BY_NAME,
        {"sample_weight": {"near": WEIGHT, "far": WEIGHT[::-1].copy()}},
    ),
    "lists, several steps at once": (
        lambda: two_heads(values),
        {"loss": list(LOSSES.values()), "steps_per_execution": 3},
        [NEAR, FAR],
        {"sample_weight": WEIGHT},
    ),
    "losses by name, outputs as a list": (lambda: two_heads(values), {"loss": LOSSES}, [NEAR, FAR], {}),
    "added by layers": (lambda: two_heads(l2=0.01, activity=0.01), {"loss": LOSSES}, BY_NAME, {}),
    "a function, and an output without loss": (
        two_heads,
        {"loss": {"near": lambda y, p: tf.abs(y - p)[:, 0], "far": None}},
        BY_NAME,
        {},
    ),
    "a scaled loss": (two_heads, {"loss": LOSSES, "scale": 128.0}, BY_NAME, {}),
}


MORE_CASES = "losses by name, outputs as a list", "a scaled loss"


def compiled(make: Callable[[], keras.Model], settings: dict[str, Any], eager: bool = False) -> keras.Model:
    model, settings = make(), dict(settings)
    adam = keras.optimizers.Adam(0.01, loss_scale_factor=settings.pop("scale", None))
    model.compile(adam, run_eagerly=eager, **settings)
    return model


def assert_same_weights(one: keras.Model, other: keras.Model, rtol: float = 1e-4) -> None:
    for got, want in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(got, want, rtol=rtol, atol=2e-6)


@pytest.mark.filterwarnings("ignore::retrotape.errors.MissingGradientWarning")
@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize(
    ("case", "eager"),
    [
        *((case, False) for case in CASES if case not in MORE_CASES),
        *(pytest.param(case, False, marks=pytest.mark.slow) for case in MORE_CASES),
        pytest.param("weights and metrics", True, marks=pytest.mark.slow),
    ],
)
def test_with_sum_it_is_plain_fit(case, eager):
    make, settings, y, options = CASES[case]
    plain, ours = (compiled(make, settings, eager) for _ in range(2))
    expected, history = fit(plain, y, **options), fit(rt.keras.multi_task(ours, rt.aggregate.Sum()), y, **options)
    assert history.keys() == expected.keys()
    for name, numbers in expected.items():
        np.testing.assert_allclose(history[name], numbers, rtol=1e-4, err_msg=name)
    assert_same_weights(ours, plain)


def test_a_single_output():
    def one_head():
        keras.utils.set_random_seed(1)
        return keras.Sequential([keras.Input([6]), layers.Dense(4, "tanh", kernel_regularizer="l2"), layers.Dense(1)])

    plain, ours = (compiled(one_head, {"loss": "mse"}) for _ in range(2))
    assert fit(plain, NEAR)["loss"] == pytest.approx(fit(rt.keras.multi_task(ours, rt.aggregate.Sum()), NEAR)["loss"])
    assert_same_weights(ours, plain)


# ------------------------------------------------------------------ the losses that are combined


class Noted(rt.aggregate.Aggregator):
    """Sum, and what it was called with."""

    def __init__(self) -> None:
        self.names, self.losses, self.shared = (), [], ()

    def __call__(self, rows, **options):
        combined = rt.aggregate.Sum()(rows, **options)
        self.names, self.losses, self.shared = rows.names, [float(loss) for loss in rows.losses], combined.shared
        return combined

    def _combine(self, rows, parts, nonfinite):
        raise NotImplementedError


def test_each_loss_has_a_row_with_its_name_and_weight():
    noted = Noted()
    settings = {"loss": LOSSES, "loss_weights": {"near": 0.3, "far": 2.0}}
    model = rt.keras.multi_task(compiled(lambda: two_heads(l2=0.01), settings, eager=True), noted)
    before = two_heads(l2=0.01)
    near, far = before(X, training=True).values()
    model.train_on_batch(X, BY_NAME)
    assert noted.names == ("near", "far", "added")
    expected = [0.3 * np.mean((near - NEAR) ** 2), 2.0 * np.mean(-np.log(far.numpy()[range(48), FAR])), 0.0]
    regularized = before.layers[1], before.get_layer("far")
    expected[2] = 0.01 * sum(np.sum(layer.kernel.numpy() ** 2) for layer in regularized)
    np.testing.assert_allclose(noted.losses, expected, rtol=1e-5)


@pytest.mark.parametrize("whole", [False, True])
def test_which_variables_are_shared(whole):
    noted, model = Noted(), compiled(two_heads, {"loss": LOSSES}, eager=True)
    trunk, heads = model.trainable_variables[:4], model.trainable_variables[4:]
    rt.keras.multi_task(model, noted, shared=model.trainable_variables if whole else None)
    model.train_on_batch(X, BY_NAME)
    assert [variable.path for variable in noted.shared] == [one.path for one in [*trunk, *(heads if whole else [])]]


def by_hand(model: keras.Model, rate: float) -> None:
    """One step of SGD with UPGrad of two gradients, whose solution is known: project each on the other's half space."""
    trunk, near, far = model.trainable_variables[:4], model.get_layer("near"), model.get_layer("far")
    with tf.GradientTape(persistent=True) as tape:
        outputs = model(X, training=True)
        losses = [tf.reduce_mean((outputs["near"] - NEAR) ** 2), LOSSES["far"](FAR, outputs["far"])]
    rows = [tf.concat([tf.reshape(grad, [-1]) for grad in tape.gradient(loss, trunk)], 0) for loss in losses]
    product = float(tf.tensordot(*rows, 1))
    parts = [
        row - min(product, 0.0) / float(tf.tensordot(other, other, 1)) * other for row, other in (rows, rows[::-1])
    ]
    both, start = 0.5 * (parts[0] + parts[1]), 0
    own = [(loss, w) for loss, head in zip(losses, (near, far), strict=True) for w in head.trainable_variables]
    steps = [(w, tape.gradient(loss, w)) for loss, w in own]
    for variable in trunk:
        size = int(np.prod(variable.shape))
        steps.append((variable, tf.reshape(both[start : start + size], variable.shape)))
        start += size
    for variable, grad in steps:
        variable.assign_sub(rate * grad)


@pytest.mark.parametrize("eager", [False, True], ids=["compiled", "eager"])
def test_upgrad_of_two_losses_is_that_done_by_hand(eager):
    conflicting = {"near": NEAR, "far": FAR}
    ours, other = two_heads(), two_heads()
    ours.compile(keras.optimizers.SGD(0.1), LOSSES, run_eagerly=eager)
    rt.keras.multi_task(ours, "upgrad")
    for _ in range(4):
        ours.train_on_batch(X, conflicting)
        by_hand(other, 0.1)
    for got, want in zip(ours.trainable_variables, other.trainable_variables, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-3, atol=1e-5)


# ------------------------------------------------------------------ life with it


def test_compiled_anew_it_still_combines():
    model = rt.keras.multi_task(compiled(two_heads, {"loss": LOSSES}), rt.aggregate.Sum())
    fit(model, BY_NAME, epochs=1)
    noted = Noted()
    rt.keras.multi_task(model, noted)
    model.compile("sgd", {"near": "mae", "far": LOSSES["far"]}, run_eagerly=True)
    fit(model, BY_NAME, epochs=1)
    assert noted.names == ("near", "far")


@pytest.mark.slow
def test_evaluate_and_predict_are_those_of_keras():
    plain, ours = (compiled(two_heads, {"loss": LOSSES}) for _ in range(2))
    rt.keras.multi_task(ours, rt.aggregate.Sum())
    for model in (plain, ours):
        fit(model, BY_NAME, epochs=1)
    assert ours.evaluate(X, BY_NAME, verbose=0) == pytest.approx(plain.evaluate(X, BY_NAME, verbose=0), rel=1e-4)
    np.testing.assert_allclose(ours.predict(X, verbose=0)["near"], plain.predict(X, verbose=0)["near"], rtol=1e-3)


def test_a_saved_model_is_a_plain_one(tmp_path):
    model = rt.keras.multi_task(compiled(two_heads, {"loss": LOSSES}), rt.aggregate.UPGrad())
    fit(model, BY_NAME, epochs=1)
    model.save(tmp_path / "it.keras")
    loaded = keras.models.load_model(tmp_path / "it.keras")
    assert "train_step" not in vars(loaded)
    np.testing.assert_array_equal(loaded.predict(X, verbose=0)["near"], model.predict(X, verbose=0)["near"])


@pytest.mark.slow
def test_steps_can_be_played_back():
    plain, played = (
        rt.keras.multi_task(compiled(two_heads, {"loss": LOSSES}, eager=True), rt.aggregate.UPGrad()) for _ in range(2)
    )
    rt.keras.playback(played, strict=True)
    assert fit(plain, BY_NAME) == fit(played, BY_NAME)
    assert sum(one.plays for one in played.train_step.recordings()) >= 3


class OwnStep(keras.Model):
    def train_step(self, data):
        return {}


class OwnLoss(keras.Model):
    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return tf.constant(0.0)


@pytest.mark.parametrize(("kind", "name"), [(OwnStep, "train_step"), (OwnLoss, "compute_loss")])
def test_a_model_with_a_step_or_a_loss_of_its_own_is_refused(kind, name):
    model = kind()
    model.compile("sgd", "mse")
    with pytest.raises(rt.errors.TapeUseError, match=rf"has a `{name}` of its own.*backward_each\(losses\)"):
        rt.keras.multi_task(model, rt.aggregate.UPGrad())


def test_errors():
    with pytest.raises(TypeError, match=r"multi_task takes a Keras model on the TensorFlow backend, got int"):
        rt.keras.multi_task(3, rt.aggregate.UPGrad())
    with pytest.raises(rt.errors.TapeUseError, match=r"First call `model.compile\(optimizer, losses\)`"):
        rt.keras.multi_task(two_heads(), rt.aggregate.UPGrad())
    with pytest.raises(TypeError, match=r"takes a method of rt.aggregate, got 3: `rt.aggregate.UPGrad\(\)`"):
        rt.keras.multi_task(compiled(two_heads, {"loss": LOSSES}), 3)
    with pytest.raises(ValueError, match=r"No method is called 'upgrade'"):
        rt.keras.multi_task(compiled(two_heads, {"loss": LOSSES}), "upgrade")


@pytest.mark.parametrize("validation", [None, (X, BY_NAME)], ids=["fit", "validated"])
def test_epochs_of_fit_are_those_of_a_method_that_counts_epochs(validation):
    def trained(method):
        model = two_heads()
        model.compile("sgd", LOSSES)
        rt.keras.multi_task(rt.keras.multi_task(model, rt.aggregate.DWA()), method)
        looking = keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda batch, logs: model.evaluate(X, BY_NAME, verbose=0, batch_size=48)
        )
        fit(model, BY_NAME, epochs=4, validation_data=validation, callbacks=[looking] if validation else None)
        return model.get_weights()

    counted, told, plain = map(trained, (rt.aggregate.DWA(), rt.aggregate.DWA(steps_per_epoch=3), rt.aggregate.Sum()))
    for one, other in zip(counted, told, strict=True):
        np.testing.assert_array_equal(one, other)
    assert any(not np.array_equal(one, other) for one, other in zip(counted, plain, strict=True))
