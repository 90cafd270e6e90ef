"""Settings of TensorFlow that change what eager code does from one call to the next."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt


def test_numerics_that_are_checked_from_now_on():
    step = rt.compile(lambda x: tf.math.log(x), audit=False)
    for _ in range(3):
        step(tf.constant(1.0))
    tf.debugging.enable_check_numerics()
    try:
        with pytest.raises(tf.errors.InvalidArgumentError, match="NaN"):
            step(tf.constant(-1.0))
    finally:
        tf.debugging.disable_check_numerics()
    assert np.isnan(step(tf.constant(-1.0)))
    assert [one.plays for one in step.recordings()] == [3]
