"""Ops without gradient, and whole numbers on the way."""

from __future__ import annotations

import keras
import tensorflow as tf

import retrotape as rt
from golden.why.registry import Asked, program, weights


@program
def accuracy_as_loss() -> Asked:
    kernel, x, labels = tf.Variable(tf.ones([2, 3]), name="kernel"), tf.ones([4, 2]), tf.constant([0, 1, 2, 1])
    with rt.Tape() as tape:
        logits = x @ kernel
        chosen = tf.argmax(logits, axis=-1, output_type=tf.int32)  # here
        loss = 1.0 - tf.reduce_mean(tf.cast(chosen == labels, tf.float32))
    return tape, loss, kernel


@program
def one_hot_of_argmax() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.one_hot(tf.argmax(w), 3) * [1.0, 2.0, 3.0])  # here
    return tape, loss, w


@program
def rounded() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        levels = tf.round(w * 4.0)  # here
        loss = tf.reduce_sum(levels / 4.0)
    return tape, loss, w


@program
def signs() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        bits = tf.sign(w)  # here
        loss = tf.reduce_sum(bits * [1.0, 2.0, 3.0])
    return tape, loss, w


@program
def floor_division() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w // 0.5)  # here
    return tape, loss, w


@program
def cast_to_int_and_back() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        pixels = tf.cast(w * 255.0, tf.uint8)  # here
        loss = tf.reduce_mean(tf.cast(pixels, tf.float32))
    return tape, loss, w


@program
def comparison_as_mask() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hits = tf.cast(w > 0.0, tf.float32)  # here
        loss = 1.0 - tf.reduce_mean(hits)
    return tape, loss, w


@program
def indices_of_a_gather() -> Asked:
    position, table = tf.Variable(1.0, name="position"), tf.constant([1.0, 4.0, 9.0])
    with rt.Tape() as tape:
        index = tf.cast(position, tf.int32)  # here
        loss = tf.gather(table, index) ** 2
    return tape, loss, position


@program
def indices_of_top_k() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        best = tf.math.top_k(w, k=2).indices  # here
        loss = tf.reduce_sum(tf.cast(best, tf.float32))
    return tape, loss, w


@program
def unique_values() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        values, _ = tf.unique(w)  # here
        loss = tf.reduce_sum(values**2)
    return tape, loss, w


@program
def written_as_text() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        text = tf.strings.as_string(w)  # here
        loss = tf.reduce_sum(tf.strings.to_number(text))
    return tape, loss, w


@program
def histogram_of_an_image() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        counts = tf.histogram_fixed_width(w, [-2.0, 3.0], nbins=4)  # here
        loss = tf.reduce_sum(tf.cast(counts, tf.float32) ** 2)
    return tape, loss, w


@program
def boxes_that_overlap() -> Asked:
    boxes, scores = tf.Variable([[0.0, 0.0, 1.0, 1.0], [0.0, 0.1, 1.0, 1.0]], name="boxes"), tf.constant([0.9, 0.8])
    with rt.Tape() as tape:
        kept = tf.image.non_max_suppression(boxes, scores, max_output_size=2)  # here
        loss = tf.reduce_sum(tf.gather(scores, kept))
    return tape, loss, boxes


@program
def jpeg_quality() -> Asked:
    image = tf.Variable(tf.fill([8, 8, 3], 0.5), name="image")
    with rt.Tape() as tape:
        packed = tf.image.adjust_jpeg_quality(image, 50)  # here
        loss = tf.reduce_mean(packed)
    return tape, loss, image


@program
def image_saturation() -> Asked:
    image = tf.Variable(tf.reshape(tf.linspace(0.1, 0.9, 12), [2, 2, 3]), name="image")
    with rt.Tape() as tape:
        brighter = tf.image.adjust_saturation(image, 2.0)  # here
        loss = tf.reduce_mean(brighter)
    return tape, loss, image


@program
def sampled_action() -> Asked:
    logits = tf.Variable([[0.1, 0.9]], name="logits")
    with rt.Tape() as tape:
        action = tf.random.categorical(logits, 1, seed=3)  # here
        loss = tf.reduce_sum(tf.gather([1.0, 2.0], action))
    return tape, loss, logits


@program
def its_shape_alone() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        noise = tf.ones_like(w) * 0.1  # here
        loss = tf.reduce_sum(noise)
    return tape, loss, w


@program
def integer_source() -> Asked:
    steps = tf.Variable(3, name="steps")
    with rt.Tape() as tape:
        loss = tf.cast(steps, tf.float32) ** 2
    return tape, loss, steps


@program
def integer_target() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.cast(w, tf.int32))
    return tape, loss, w


@program
def rounded_and_cast() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        levels = tf.round(w * 4.0)  # here
        loss = tf.reduce_sum(tf.cast(tf.cast(levels, tf.int32), tf.float32))
    return tape, loss, w


@program
def through_a_dataset() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        batches = tf.data.Dataset.from_tensor_slices(w * 2.0).batch(3)  # here
        loss = tf.add_n([tf.reduce_sum(batch**2) for batch in batches])
    return tape, loss, w


@program
def keras_argmin() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        nearest = keras.ops.argmin(w * 2.0)  # here
        loss = tf.cast(nearest, tf.float32) * 3.0
    return tape, loss, w


@program
def keras_round() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        levels = keras.ops.round(w * 4.0)  # here
        loss = tf.reduce_sum(levels / 4.0)
    return tape, loss, w


@program
def keras_sample() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        action = keras.random.categorical(w[None] * 2.0, 1, seed=1)  # here
        loss = tf.reduce_sum(tf.cast(action, tf.float32))
    return tape, loss, w


@program
def keras_accuracy() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = keras.metrics.binary_accuracy([[1.0, 0.0, 1.0]], tf.sigmoid(w)[None])  # here
    return tape, loss, w


@program
def drawn_with_a_probability() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        drawn = tf.random.stateless_uniform([3], [1, 2]) < tf.sigmoid(w)  # here
        loss = tf.reduce_sum(tf.cast(drawn, tf.float32))
    return tape, loss, w
