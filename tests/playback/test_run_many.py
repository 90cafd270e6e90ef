"""Several steps in one call give what they give one by one."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from playback.alike import plays


def counted():
    total = tf.Variable(0.0)

    def step(x):
        total.assign_add(x)
        return {"total": total.read_value(), "x": x}

    return step, total


@pytest.mark.parametrize("steps", [1, 2, 3, 8, 100])
def test_results_are_stacked(steps: int):
    step, total = counted()
    compiled = rt.compile(step, strict=True, audit=False)
    data = tf.data.Dataset.range(10).map(lambda n: tf.cast(n, tf.float32))
    found = compiled.run(data, steps=steps)
    np.testing.assert_array_equal(found["total"], np.cumsum(np.arange(10.0)))
    np.testing.assert_array_equal(found["x"], np.arange(10.0))
    assert float(total) == 45.0
    assert sum(plays(compiled)) == 9
    assert float(compiled.tape.value(total)) == 45.0


def test_a_batch_of_another_shape_at_the_end():
    w = tf.Variable(0.0)
    compiled = rt.compile(lambda x, y: w.assign_add(tf.reduce_sum(x * y)).read_value(), strict=True)
    data = tf.data.Dataset.from_tensor_slices((tf.range(10.0), tf.range(10.0))).batch(4)
    found = compiled.run(data.repeat(2), steps=4)
    np.testing.assert_array_equal(found, np.cumsum([14.0, 126.0, 145.0] * 2))


def test_branches_run_one_by_one():
    def make():
        w = tf.Variable(0.0)

        def step(x):
            w.assign_add(x)
            if w > 3.0:
                w.assign(0.0)
            return w.read_value()

        return step

    plain, compiled = make(), rt.compile(make())
    data = [tf.constant(1.0)] * 12
    np.testing.assert_array_equal(compiled.run(data, steps=4), [plain(x) for x in data])


def test_results_that_cannot_be_stacked_are_a_list():
    compiled = rt.compile(lambda x: x * 2.0)
    found = compiled.run([tf.ones([2]), tf.ones([3])], steps=2)
    assert [tuple(one.shape) for one in found] == [(2,), (3,)]


def test_nothing_to_run_and_bad_numbers():
    compiled = rt.compile(lambda x: x)
    assert compiled.run([], steps=2) == []
    with pytest.raises(ValueError, match="steps must be at least 1, got 0"):
        compiled.run([], steps=0)


def test_elements_that_are_made_one_by_one():
    scale, total = [0.0], tf.Variable(0.0)

    def batches():
        for number in range(8):
            scale[0] = float(number)
            yield (tf.constant(1.0),)

    step = rt.compile(lambda x: total.assign_add(x * scale[0]) * 1.0, limit=20)
    assert step.run(batches(), steps=4).numpy().tolist() == [0.0, 1.0, 3.0, 6.0, 10.0, 15.0, 21.0, 28.0]


def test_a_list_that_computes_its_elements():
    scale = [0.0]

    class Batches(list):
        def __iter__(self):
            for number in range(4):
                scale[0] = float(number)
                yield (tf.constant(1.0),)

    step = rt.compile(lambda x: x * scale[0], audit=False)
    assert step.run(Batches(), steps=4).numpy().tolist() == [0.0, 1.0, 2.0, 3.0]


@pytest.mark.filterwarnings("error")
def test_kinds_that_are_played_back_in_one_call_come_again():
    step = rt.compile(lambda x: x + 1.0)
    for number in range(1, 12):
        step.run([tf.zeros([number])] * 5, steps=5)
    assert len(step.recordings()) == 11
