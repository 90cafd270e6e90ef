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
    with pytest.raises(errors.UnseenUpdateError, match="assigned while this tape was not recording"):
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
            seen = weakref.ref(tape._session.trace)
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
    for _ in range(4):
        tape.gradient(loss, x)
        sizes.append(len(dict(tape._session.trace.tensors.items())))
    assert sizes[0] <= sizes[1] == sizes[2] == sizes[3]  # the first query releases values, the second restores them


def test_a_full_disk_leaves_values_in_memory(monkeypatch):
    monkeypatch.setattr(_segments, "SEGMENT", 200)

    def full(*args: object) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.pwrite", full)
    x = tf.ones((4, 4))

    def record(keep):
        with rt.Tape(keep=keep) as tape:
            h = x
            for _ in range(20):
                h = tf.tanh(h)
            loss = tf.reduce_sum(h)
        assert tape.program.eqns  # recorded now
        return tape, loss

    with pytest.warns(UserWarning, match=r"stays in memory.*No space left"):
        tape, loss = record("disk")
    assert tape.memory().away == 0
    whole, again = record("needed")
    np.testing.assert_array_equal(tape.gradient(loss, x), whole.gradient(again, x))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"keep": "disk", "directory": "/nowhere/at/all"}, "directory must be an existing folder, got '/nowhere"),
        ({"directory": "/tmp"}, "directory= says where keep=\"disk\" stores values, got it with keep='needed'"),
    ],
)
def test_a_directory_that_cannot_be(options, text):
    with pytest.raises(ValueError, match=text):
        rt.Tape(**options)
