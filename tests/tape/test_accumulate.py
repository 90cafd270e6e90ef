"""Micro-batches give what one batch gives; checked against the stock tape over everything."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.tape import accumulate as accumulation

UNEQUAL = [5, 1, 3, 2]


@pytest.fixture
def net() -> SimpleNamespace:
    """A model, data, and the loss and gradient of the stock tape over all of it."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(2)])
    rng = np.random.default_rng(0)
    x, y = (tf.constant(rng.normal(size=(sum(UNEQUAL), width)), tf.float32) for width in (4, 2))

    def loss(x, y):
        return tf.reduce_mean((model(x) - y) ** 2)

    weights = [variable.value for variable in model.trainable_variables]
    with tf.GradientTape() as tape:
        whole = loss(x, y)
    return SimpleNamespace(
        model=model, loss=loss, x=x, y=y, weights=weights, value=whole, grads=tape.gradient(whole, weights)
    )


def parts(*tensors, sizes=UNEQUAL):
    return list(zip(*(tf.split(tensor, sizes) for tensor in tensors), strict=True))


def check(found: rt.Accumulated, net: SimpleNamespace) -> None:
    np.testing.assert_allclose(found.loss, net.value, rtol=1e-5)
    for variable, expected in zip(net.weights, net.grads, strict=True):
        np.testing.assert_allclose(found.gradients[variable], expected, rtol=1e-5, atol=1e-6)
    assert found.size == sum(UNEQUAL)


# ------------------------------------------------------------------ the same as one batch


@pytest.mark.parametrize("sizes", [[11], UNEQUAL, [1] * 11], ids=["one", "unequal", "single"])
def test_micro_batches_are_one_batch(net, sizes):
    check(rt.accumulate(net.loss, parts(net.x, net.y, sizes=sizes)), net)


def test_the_plain_mean_of_unequal_micro_batches_would_be_wrong(net):
    """The test above must be able to fail."""
    plain = np.mean([float(net.loss(*batch)) for batch in parts(net.x, net.y)])
    assert abs(plain - float(net.value)) > 1e-2


def test_a_generator_and_a_dataset(net):
    check(rt.accumulate(net.loss, (batch for batch in parts(net.x, net.y))), net)
    data = tf.data.Dataset.from_tensor_slices((net.x, net.y)).batch(4)  # the last one is smaller
    check(rt.accumulate(net.loss, data), net)


def test_dictionaries_tensors_and_arrays_are_handed_over_whole(net):
    named = [{"x": x, "y": y} for x, y in parts(net.x, net.y)]
    check(rt.accumulate(lambda batch: net.loss(batch["x"], batch["y"]), named), net)
    both = tf.split(tf.concat([net.x, net.y], 1), UNEQUAL)
    check(rt.accumulate(lambda batch: net.loss(batch[:, :4], batch[:, 4:]), both), net)
    check(rt.accumulate(lambda batch: net.loss(batch[:, :4], batch[:, 4:]), [b.numpy() for b in both]), net)


def test_wrt_chooses(net):
    kernel, *_ = net.model.trainable_variables
    found = rt.accumulate(net.loss, parts(net.x, net.y), wrt=[kernel])
    assert len(found.gradients) == 1
    np.testing.assert_allclose(found.gradients[kernel], net.grads[0], rtol=1e-5, atol=1e-6)


def test_a_step_is_that_of_the_large_batch(net):
    expected = [w - 0.1 * g for w, g in zip(net.weights, net.grads, strict=True)]
    rt.accumulate(net.loss, parts(net.x, net.y)).gradients.apply(keras.optimizers.SGD(0.1))
    for variable, value in zip(net.weights, expected, strict=True):
        np.testing.assert_allclose(variable, value, rtol=1e-5, atol=1e-6)


def test_weights_by_tokens():
    w, tokens = tf.Variable(2.0), [[1.0, 2.0, 3.0], [4.0], [5.0, 6.0]]
    padded = [tf.constant([row + [0.0] * (3 - len(row))]) for row in tokens]
    counts = [len(row) for row in tokens]

    def loss(row):
        return tf.reduce_sum(w**2 * row) / tf.cast(tf.math.count_nonzero(row), tf.float32)

    for sizes in (counts, iter(counts), np.array(counts), tf.constant(counts), [float(n) for n in counts]):
        value, grads, size = rt.accumulate(loss, padded, sizes=sizes)
        assert size == 6
        assert float(value) == pytest.approx(4.0 * 3.5)
        assert float(grads[w]) == pytest.approx(4.0 * 3.5)


# ------------------------------------------------------------------ kinds of gradients


@pytest.mark.parametrize("dtype", [tf.float16, tf.bfloat16, tf.float32, tf.float64])
def test_dtypes_come_back(dtype):
    w = tf.Variable(1.0, dtype=dtype)
    batches = [tf.constant([3.0, 3.0, 6.0], dtype), tf.constant([4.0], dtype)]
    value, grads, _ = rt.accumulate(lambda x: tf.reduce_mean(w * x), batches)
    assert value.dtype == grads[w].dtype == dtype
    assert float(value) == float(grads[w]) == 4.0


def test_double_precision_is_not_lost():
    w, third = tf.Variable(1.0, dtype=tf.float64), tf.constant([1.0 / 3.0], tf.float64)
    value, grads, _ = rt.accumulate(lambda x: tf.reduce_mean(w * x), [third] * 3, sizes=[0.1, 0.2, 0.4])
    assert float(value) == pytest.approx(1.0 / 3.0, rel=1e-14)
    assert float(grads[w]) == pytest.approx(1.0 / 3.0, rel=1e-14)


def test_half_precision_does_not_overflow_in_the_sum():
    w = tf.Variable(1.0, dtype=tf.float16)
    value, grads, _ = rt.accumulate(lambda x: w * x[0], [tf.constant([300.0], tf.float16)] * 3, sizes=[4096] * 3)
    assert float(value) == float(grads[w]) == 300.0


def test_sparse_gradients_stay_sparse_and_do_not_grow():
    table = tf.Variable(np.arange(20.0).reshape(10, 2))
    ids = tf.constant([3, 7, 3, 0, 7, 3])

    def loss(ids):
        return tf.reduce_mean(tf.gather(table, ids) ** 2)

    with tf.GradientTape() as tape:
        whole = loss(ids)
    expected = tf.convert_to_tensor(tape.gradient(whole, table))
    grad = rt.accumulate(loss, tf.split(ids, [3, 1, 2])).gradients[table]
    assert isinstance(grad, tf.IndexedSlices)
    assert sorted(grad.indices.numpy()) == [0, 3, 7]
    np.testing.assert_allclose(tf.convert_to_tensor(grad), expected, rtol=1e-12)


def test_a_variable_that_only_some_micro_batches_use():
    a, b, c = (tf.Variable(value, name=name) for value, name in ((1.0, "a"), (2.0, "b"), (3.0, "c")))

    def loss(x):
        return tf.reduce_mean(a * x) + (b if x.shape[0] == 1 else 0.0)

    batches = [tf.constant([1.0, 1.0, 1.0]), tf.constant([5.0])]
    for wrt in ([a, b, c], None):
        grads = rt.accumulate(loss, batches, wrt=wrt).gradients
        assert (float(grads[a]), float(grads[b])) == (2.0, 0.25)
    assert rt.accumulate(loss, batches, wrt=[a, b, c]).gradients.missing == (c,)


def test_a_tensor_as_source():
    scale = tf.constant(2.0)
    found = rt.accumulate(lambda x: tf.reduce_mean(scale * x), tf.split(tf.range(6.0), [2, 4]), wrt=scale)
    assert float(found.gradients[scale]) == 2.5


def test_a_missing_gradient_still_knows_why():
    read, unread = tf.Variable(1.0), tf.Variable(2.0)
    found = rt.accumulate(lambda x: tf.reduce_mean(x * read), [tf.ones(2), tf.ones(3)], wrt=[read, unread]).gradients
    assert found.why(unread) == "it was not read on this tape"


def test_an_empty_micro_batch_is_passed_over():
    w, seen = tf.Variable(1.0), []

    def loss(x):
        seen.append(x.shape[0])
        return tf.reduce_mean(w * x)

    value, grads, size = rt.accumulate(loss, [tf.constant([2.0, 4.0]), tf.zeros([0]), tf.constant([9.0])])
    assert (float(value), float(grads[w]), size, seen) == (5.0, 5.0, 3, [2, 1])


# ------------------------------------------------------------------ memory, other tapes, functions


def test_one_tape_at_a_time(net, monkeypatch):
    tapes, alive = [], []

    class Noted(rt.Tape):
        def __init__(self):
            alive.append(sum(tape() is not None for tape in tapes))
            super().__init__()
            tapes.append(weakref.ref(self))

    monkeypatch.setattr(accumulation, "Tape", Noted)
    gc.disable()  # reference counts alone must do it
    try:
        rt.accumulate(net.loss, parts(net.x, net.y))
    finally:
        gc.enable()
    assert alive == [0] * len(UNEQUAL)
    assert [tape() for tape in tapes] == [None] * len(UNEQUAL)


def test_a_tape_around_hears_it_all():
    w = tf.Variable(3.0)
    with rt.Tape() as around:
        value, grads, _ = rt.accumulate(lambda x: tf.reduce_mean(w**3 * x), tf.split(tf.range(6.0), [2, 4]))
    assert float(around.gradient(value, w)) == float(grads[w]) == 67.5
    assert float(around.gradient(grads[w], w)) == 45.0


def test_inside_a_function(net):
    @tf.function
    def ask(x, y):
        value, grads, _ = rt.accumulate(net.loss, parts(x, y))
        return value, [grads[variable] for variable in net.weights]

    value, grads = ask(net.x, net.y)
    np.testing.assert_allclose(value, net.value, rtol=1e-5)
    for got, expected in zip(grads, net.grads, strict=True):
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-6)


def test_inside_a_function_the_loss_may_branch_and_sizes_may_be_unknown():
    w = tf.Variable(2.0)

    def loss(x):
        if tf.reduce_sum(x) > 5.0:  # AutoGraph has to see this
            return tf.reduce_mean(w * x)
        return tf.reduce_mean(w**2 * x)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    def ask(first, second):
        value, grads, size = rt.accumulate(loss, [first, second])
        return value, grads[w], size

    value, grad, size = ask(tf.constant([1.0, 2.0, 3.0]), tf.constant([1.0]))
    assert int(size) == 4
    assert float(value) == pytest.approx((3 * 4.0 + 4.0) / 4)
    assert float(grad) == pytest.approx((3 * 2.0 + 4.0) / 4)


def test_an_empty_micro_batch_of_unknown_size_inside_a_function():
    w = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    def step(first, second):
        found = rt.accumulate(lambda x: tf.reduce_mean(w * x), [first, second])
        return found.loss, found.gradients[w]

    loss, grad = step(tf.constant([1.0, 3.0]), tf.zeros([0]))
    assert (float(loss), float(grad)) == (4.0, 2.0)


@pytest.mark.parametrize("progress", [False, True])
@pytest.mark.parametrize("terminal", ["", "1"], ids=["file", "terminal"])
def test_progress_is_shown_on_stderr_if_asked_for_and_seen(net, capsys, monkeypatch, progress, terminal):
    monkeypatch.setenv("FORCE_COLOR", terminal)  # makes `rich` take anything for a terminal
    check(rt.accumulate(net.loss, parts(net.x, net.y), progress=progress), net)
    said = capsys.readouterr()
    assert said.out == ""
    assert bool(said.err) is ("micro-batches" in said.err) is (progress and bool(terminal))


@pytest.mark.parametrize(("count", "known"), [(4, 4), (None, None)])
def test_progress_counts_where_the_number_is_known(net, monkeypatch, count, known):
    totals = []
    monkeypatch.setattr(accumulation, "track", lambda batches, _, total, **__: totals.append(total) or batches)
    batches = parts(net.x, net.y)
    rt.accumulate(net.loss, batches if count else (batch for batch in batches), progress=True)
    assert totals == [known]
