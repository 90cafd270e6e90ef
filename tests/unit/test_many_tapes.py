"""Several tapes, threads and updates at once: what adds up, what counts once, what has no past."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from retrotape import errors
from retrotape.execute import _values
from retrotape.record import _segments


def test_a_source_that_is_listed_twice_counts_once():
    w = keras.Variable(3.0)
    with rt.Tape() as tape:
        loss = w * w
    for wrt in ([w, w], [w, w._value], [w._value, w]):
        assert float(tape.backward(loss, wrt)[w]) == 6.0
        assert [float(grads[w]) for grads in tape.backward_each([loss, loss], wrt)] == [6.0, 6.0]
        assert [float(grad) for _, grad in tape.stream(loss, wrt)] == [6.0]


def test_values_in_a_file_are_read_by_several_threads(monkeypatch):
    monkeypatch.setattr(_segments, "SEGMENT", 2000)
    monkeypatch.setattr(_values, "SEGMENT", 2000)
    weights = [tf.Variable(tf.random.stateless_normal((16, 16), [1, i]) / 4.0) for i in range(30)]
    with rt.Tape(keep="disk") as tape:
        h = tf.ones((8, 16))
        for w in weights:
            h = tf.tanh(h @ w)
        loss = tf.reduce_sum(h**2)
    assert tape.memory().away
    want = tape.gradient(loss, weights)

    def ask(_: int) -> bool:
        found = {id(source): grad for source, grad in tape.stream(loss, weights)}
        return all(np.array_equal(found[id(w)], grad) for w, grad in zip(weights, want, strict=True))

    with ThreadPoolExecutor(3) as pool:
        assert all(pool.map(ask, range(12)))


def nested(w, x):
    with rt.Tape() as outer:
        with rt.Tape() as inner:
            y = w * x
        w.assign(w * y)
        z = w * w
    return outer, inner, z


def test_what_two_tapes_heard_has_the_versions_of_one():
    w, x = tf.Variable(2.0), tf.constant(3.0)
    outer, inner, z = nested(w, x)
    for joined in (rt.join(outer, inner), rt.join(inner, outer)):
        assert len(joined.versions(w)) == len(outer.versions(w)) == 2
        options = {"through_updates": True}
        assert float(joined.gradient(z, w, since=-1, **options)) == float(outer.gradient(z, w, since=-1, **options))
        assert float(joined.gradient(z, joined.at(w, -1))) == 24.0
        assert float(joined.gradient(w, x, **options)) == float(outer.gradient(w, x, **options))


def test_an_update_that_another_tape_heard_counts_though_the_value_is_the_same():
    w = tf.Variable(1.0)
    with rt.Tape() as first:
        w * 2.0
        with first.stop_recording(), rt.Tape() as second:
            w.assign(w**2)
        z = 5.0 * w
    assert float(rt.join(first, second).gradient(z, w, through_updates=True)) == 10.0


def test_an_update_in_a_pause_has_no_past_though_the_value_is_the_same():
    w = tf.Variable(0.0)
    with rt.Tape() as tape:
        w * 2.0
        with tape.stop_recording():
            w.assign(0.9 * w)
        z = 5.0 * w
    with pytest.raises(errors.UnseenUpdateError):
        tape.gradient(z, w, through_updates=True)
    assert float(tape.gradient(z, w)) == 5.0


def test_the_last_tape_is_gone_before_the_next_one_ends():
    gc.collect()
    gc.disable()
    try:
        w, grads = tf.Variable(2.0), None
        for _ in range(4):
            with rt.Tape() as tape:
                loss = w * w
            seen = weakref.ref(tape._log.recording)
            grads = tape.gradient(loss, [w])
            del tape
            assert seen() is None
        assert grads is not None
    finally:
        gc.enable()


def test_asking_again_and_again_leaves_nothing_behind(monkeypatch):
    monkeypatch.setattr(_segments, "SEGMENT", 200)
    monkeypatch.setattr(_values, "SEGMENT", 200)
    x = tf.ones((4, 4))
    with rt.Tape(keep="segments") as tape:
        h = x
        for _ in range(20):
            h = tf.tanh(h)
        loss = tf.reduce_sum(h)
    sizes = []
    for _ in range(3):
        tape.gradient(loss, x)
        sizes.append(len(dict(tape._log.recording.identities())))
    assert sizes[0] == sizes[1] == sizes[2]


def test_a_full_disk_leaves_values_in_memory(monkeypatch):
    monkeypatch.setattr(_segments, "SEGMENT", 200)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    x = tf.ones((4, 4))

    def record():
        with rt.Tape(keep="disk") as tape:
            h = x
            for _ in range(20):
                h = tf.tanh(h)
            loss = tf.reduce_sum(h)
        assert tape.program.eqns  # written down now
        return tape, loss

    with pytest.warns(UserWarning, match=r"stays in memory.*No space left"):
        tape, loss = record()
    assert tape.gradient(loss, x) is not None
    assert tape.memory().away == 0


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep": "disk", "directory": "/nowhere/at/all"}, "directory must be a folder that exists, got '/nowhere"),
        ({"directory": "/tmp"}, "directory= says where values lie with keep=\"disk\", got it with keep='needed'"),
    ],
)
def test_a_directory_that_cannot_be(options, text):
    with pytest.raises(ValueError, match=text):
        rt.Tape(**options)


# ------------------------------------------------------------------ gradients as vectors


def grads_of(values):
    v = tf.Variable(tf.zeros_like(values))
    return v, rt.Gradients([(v, values)])


@pytest.mark.parametrize("size", [1e25, 1e-25])
def test_norms_of_what_cannot_be_squared(size):
    v, grads = grads_of(tf.constant([3.0, 4.0]) * size)
    assert float(grads.norm()) == pytest.approx(5.0 * size)
    np.testing.assert_allclose(grads.normalized()[v], [0.6, 0.8], rtol=1e-6)
    np.testing.assert_allclose(grads.clip(global_norm=size)[v], np.array([0.6, 0.8]) * size, rtol=1e-6)
    np.testing.assert_allclose(grads.clip(norm=size)[v], np.array([0.6, 0.8]) * size, rtol=1e-6)


def test_what_is_not_finite_is_not_clipped_to_zero():
    v, grads = grads_of(tf.constant([np.inf, 1.0]))
    assert np.isnan(grads.clip(global_norm=1.0)[v]).all()
    assert np.isnan(grads.clip(norm=1.0)[v]).all()


def test_factors_are_numbers():
    _, grads = grads_of(tf.constant([1.0, 2.0]))
    with pytest.raises(errors.ShapeMismatchError, match=r"scaled by a number, got a factor of shape \(2,\)"):
        grads * tf.constant([1.0, 2.0])
    with pytest.raises(TypeError, match="Got the complex factor 1j for a gradient of dtype float32"):
        grads * 1j
    v, complex_grads = grads_of(tf.constant(2.0 + 0.0j, tf.complex64))
    assert complex((complex_grads / (1.0 + 1.0j))[v].numpy()) == pytest.approx(1.0 - 1.0j)


def test_pairs_that_are_none():
    v = tf.Variable([1.0, 2.0], name="v")
    with pytest.raises(TypeError, match="got them the other way round"):
        rt.Gradients([(tf.constant([1.0, 2.0]), v)])
    with pytest.raises(errors.ShapeMismatchError, match=r"shape \(3,\) for v of shape \(2,\)"):
        rt.Gradients([(v, tf.zeros(3))])
    with pytest.raises(TypeError, match="Got ndarray as the gradient of v; give a tensor"):
        rt.Gradients([(v, np.zeros(2))])
    with pytest.raises(TypeError, match=r"got a mapping: `rt.Gradients\(mapping.items\(\)\)`"):
        rt.Gradients({"v": None})


def test_a_value_of_the_past_is_one_key():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        v.assign(v * v)
        loss = v * 3.0
    first, second = (tape.backward(loss, [tape.at(v, 0)]) for _ in range(2))
    assert tape.at(v, 0) in first
    assert len(first + second) == 1
    assert first == second


def test_means_that_cannot_be():
    _, grads = grads_of(tf.constant(1.0))
    with pytest.raises(errors.ShapeMismatchError, match="Got no gradients to take the mean of"):
        rt.Gradients.mean([])
    with pytest.raises(ValueError, match="which add up to zero"):
        rt.Gradients.mean([grads], weights=[0])


def test_another_kind_of_optimizer():
    _, grads = grads_of(tf.constant(1.0))
    with pytest.raises(TypeError, match=r"Got object as optimizer; expected one of Keras 3"):
        grads.apply(object())


def test_a_bound_that_is_a_tensor_inside_a_function():
    v = tf.Variable([3.0, 4.0])

    @tf.function
    def clipped(bound):
        return rt.Gradients([(v, tf.constant([3.0, 4.0]))]).clip(global_norm=bound)[v]

    np.testing.assert_allclose(clipped(tf.constant(1.0)), [0.6, 0.8], rtol=1e-6)
    with pytest.raises(ValueError, match="not negative, got global_norm=nan"):
        rt.Gradients([(v, tf.constant([3.0, 4.0]))]).clip(global_norm=float("nan"))


def test_adaptive_clipping_leaves_sparse_gradients_sparse():
    table = tf.Variable(tf.ones((4, 2)))
    rows = tf.IndexedSlices(tf.constant([[3.0, 0.1], [4.0, 0.1]]), tf.constant([1, 1]), tf.constant([4, 2]))
    sparse = rt.Gradients([(table, rows)]).clip(adaptive=0.1)[table]
    dense = rt.Gradients([(table, tf.convert_to_tensor(rows))]).clip(adaptive=0.1)[table]
    assert isinstance(sparse, tf.IndexedSlices)
    np.testing.assert_allclose(tf.convert_to_tensor(sparse), dense, rtol=1e-6)


# ------------------------------------------------------------------ micro-batches


def test_a_batch_whose_size_is_not_clear():
    w = tf.Variable(1.0)
    batches = [{"bias": tf.ones(1), "x": tf.ones(3)}, {"bias": tf.ones(1), "x": tf.ones(2)}]
    with pytest.raises(errors.ShapeMismatchError, match=r"first dimensions \[1, 3\]\. Say what each counts"):
        rt.accumulate(lambda batch: w * tf.reduce_mean(batch["x"]), batches)
    assert rt.accumulate(lambda batch: w * tf.reduce_mean(batch["x"]), batches, sizes=[3, 2]).size == 5


def test_an_empty_micro_batch_of_unknown_size_inside_a_function():
    w = tf.Variable(2.0)

    @tf.function(input_signature=[tf.TensorSpec([None]), tf.TensorSpec([None])])
    def step(first, second):
        found = rt.accumulate(lambda x: tf.reduce_mean(w * x), [first, second])
        return found.loss, found.gradients[w]

    loss, grad = step(tf.constant([1.0, 3.0]), tf.zeros([0]))
    assert (float(loss), float(grad)) == (4.0, 2.0)
