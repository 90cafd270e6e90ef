"""Along which axis of an activation its units are."""

from __future__ import annotations

import keras
import pytest
import tensorflow as tf

import retrotape as rt

IMAGES = tf.random.stateless_normal([2, 6, 5, 4], [1, 2])  # channels first: 6 of them
DEAD = tf.constant([-100.0] * 4 + [0.0] * 2)


def with_bias(x):
    return tf.nn.bias_add(x, DEAD, data_format="NCHW")


def with_broadcast_bias(x):
    return x + tf.reshape(DEAD, [1, 6, 1, 1])


def in_three_dimensions(x):
    """Keras compiles this convolution, so it is a function on the tape."""
    bias = keras.initializers.Constant(DEAD.numpy())
    layer = keras.layers.Conv3D(6, 2, data_format="channels_first", bias_initializer=bias)
    return layer(tf.random.stateless_normal([2, 3, 4, 4, 4], [1, 2]))


def channels_last(x):
    return tf.nn.conv2d(tf.transpose(x, [0, 2, 3, 1]), tf.ones([1, 1, 6, 6]), 1, "SAME") + DEAD


def after_steps_between(x):
    return tf.identity(with_bias(x) * 2.0) - tf.abs(with_bias(x)) * 0.1


@pytest.mark.parametrize(
    "compute", [with_bias, with_broadcast_bias, in_three_dimensions, channels_last, after_steps_between]
)
def test_units_are_along_the_axis_of_the_channels(compute):
    w = tf.Variable(1.0, name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(tf.nn.relu(compute(IMAGES))) * w
    (finding,) = [one for one in tape.report(loss=loss).findings if one.kind == "dead"]
    assert finding.detail.startswith("4 of 6 at ")


def test_a_function_whose_ops_run_only_inside_of_it():
    layer = keras.layers.Conv3D(6, 2, data_format="channels_first", name="conv")
    with rt.Tape() as tape:
        loss = tf.reduce_mean(layer(tf.random.stateless_normal([2, 3, 4, 4, 4], [1, 2])) ** 2)
    report = tape.report(loss=loss)
    assert report.weights[0].gradient.norm > 0.0
    assert tape.first_nonfinite(loss) is None
    assert "tf.function '_conv_xla' → BiasAdd" in str(tape.why(loss, layer.kernel))


def test_where_the_channels_are_unknown_no_unit_is_called_dead():
    """The last axis is a column of the image: three of four are zero, which may be its edge."""
    w, edge = tf.Variable(1.0, name="w"), tf.constant([[[[0.0, 0.0, 0.0, 1.0]]]]) * tf.ones([2, 6, 5, 4])
    with rt.Tape() as tape:
        loss = tf.reduce_mean(tf.nn.relu(IMAGES * edge)) * w
    assert tape.report(loss=loss).findings == ()
