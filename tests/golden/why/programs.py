"""Programs that people really wrote and could not explain. Each returns its tape, the target, and the source.

The line that is to blame ends in `# here`, so that a test can find it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import retrotape as rt

Asked = tuple[rt.Tape, Any, Any]
PROGRAMS: dict[str, Callable[[], Asked]] = {}


def program(function: Callable[[], Asked]) -> Callable[[], Asked]:
    PROGRAMS[function.__name__] = function
    return function


def weights() -> tf.Variable:
    return tf.Variable([0.5, -1.5, 2.5], name="w")


# ------------------------------------------------------------------ the value left TensorFlow


@program
def numpy_round_trip() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        values = np.tanh(hidden.numpy())  # here
        loss = tf.reduce_sum(tf.constant(values) * 3.0)
    return tape, loss, w


@program
def float_of_the_loss() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        error = tf.reduce_sum(w**2)
        total = float(error) + 0.1  # here
        loss = tf.convert_to_tensor(total) * 2.0
    return tape, loss, w


@program
def item_of_the_loss() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        error = tf.reduce_sum(w**2).numpy().item()  # here
        loss = tf.sqrt(tf.constant(error))
    return tape, loss, w


@program
def list_of_numbers() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scores = [value.numpy() for value in tf.unstack(w * 2.0)]  # here
        loss = tf.reduce_mean(tf.stack(scores))
    return tape, loss, w


@program
def keras_predict() -> Asked:
    model = keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="scores")], name="model")
    x = tf.constant([[1.0, 2.0]])
    with rt.Tape() as tape:
        scores = model.predict(x, verbose=0)  # here
        loss = tf.reduce_mean((scores - 1.0) ** 2)
    return tape, loss, model.trainable_variables[0]


@program
def numpy_function() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        squared = tf.numpy_function(np.square, [w], tf.float32)  # here
        loss = tf.reduce_sum(squared)
    return tape, loss, w


@program
def numpy_function_of_a_tensor() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scaled = w * 2.0
        squared = tf.numpy_function(np.square, [scaled], tf.float32)  # here
        loss = tf.reduce_sum(squared)
    return tape, loss, w


@program
def numpy_function_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def error(x: Any) -> Any:
        return tf.reduce_sum(tf.numpy_function(np.square, [x], tf.float32))  # here

    with rt.Tape() as tape:
        loss = error(w * 2.0)
    return tape, loss, w


@program
def np_array_of_a_tensor() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        loss = tf.reduce_sum(tf.constant(np.array(hidden)) ** 2)  # here
    return tape, loss, w


@program
def numpy_does_the_sum() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = w * 2.0
        loss = tf.sqrt(np.sum(hidden))  # here
    return tape, loss, w


# ------------------------------------------------------------------ an op without gradient, or whole numbers


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


# ------------------------------------------------------------------ stopped on purpose


@program
def target_network() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        wanted = tf.stop_gradient(w * 2.0)  # here
        loss = tf.reduce_mean((wanted - 1.0) ** 2)
    return tape, loss, w


@program
def stopped_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def wanted(x: Any) -> Any:
        return tf.stop_gradient(x * 2.0)  # here

    with rt.Tape() as tape:
        loss = tf.reduce_sum(wanted(w) ** 2)
    return tape, loss, w


@program
def rounded_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def quantized(x: Any) -> Any:
        return tf.cast(tf.cast(x * 10.0, tf.int32), tf.float32)  # here

    with rt.Tape() as tape:
        loss = tf.reduce_sum(quantized(w))
    return tape, loss, w


@program
def noise_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def noisy(x: Any) -> Any:
        return tf.round(x + tf.random.uniform([3]))

    with rt.Tape() as tape:
        loss = tf.reduce_sum(noisy(w))  # here
    return tape, loss, w


@program
def stopped_beside_noise_in_a_function() -> Asked:
    w = weights()

    @tf.function
    def noisy(x: Any) -> Any:
        return tf.stop_gradient(x) + tf.random.uniform([3])  # here

    with rt.Tape() as tape:
        loss = tf.reduce_sum(noisy(w))
    return tape, loss, w


@program
def cut_on_every_route() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        wanted = tf.stop_gradient(w)  # here
        hits = tf.cast(w > 0.0, tf.float32)
        loss = tf.reduce_sum(wanted * hits + tf.round(w))
    return tape, loss, w


@program
def custom_gradient_that_returns_none() -> Asked:
    w = weights()

    @tf.custom_gradient
    def straight(x: Any) -> Any:
        def grad(upstream: Any) -> Any:
            upstream * 1.0

        return tf.round(x), grad

    with rt.Tape() as tape:
        loss = tf.reduce_sum(straight(w))  # here
    return tape, loss, w


# ------------------------------------------------------------------ not recorded, or another object


@program
def computed_before_the_block() -> Asked:
    w = weights()
    loss = tf.reduce_sum(w**2)
    with rt.Tape() as tape:
        _ = w * 1.0
    return tape, loss, w


@program
def computed_after_the_block() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scores = w * 2.0
    loss = tf.reduce_sum(scores)
    return tape, loss, w


@program
def computed_in_a_pause() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        scores = w * 2.0
        with tape.stop_recording():
            loss = tf.reduce_sum(scores)
    return tape, loss, w


@program
def source_used_only_in_a_pause() -> Asked:
    w, x = weights(), tf.ones([3])
    with rt.Tape() as tape:
        with tape.stop_recording():
            scores = w * x
        loss = tf.reduce_sum(scores)  # here
    return tape, loss, w


@program
def path_through_a_pause() -> Asked:
    w, x = weights(), tf.ones([3])
    with rt.Tape() as tape:
        _ = w * 1.0
        with tape.stop_recording():
            scores = w * x
        loss = tf.reduce_sum(scores)
    return tape, loss, w


@program
def features_made_before_the_block() -> Asked:
    w, x = weights(), tf.ones([3])
    features = w * x
    with rt.Tape() as tape:
        loss = tf.reduce_sum(features**2) + tf.reduce_sum(x)
    return tape, loss, w


@program
def on_another_thread() -> Asked:
    w, found = weights(), []
    with rt.Tape() as tape:
        _ = w * 1.0
        worker = threading.Thread(target=lambda: found.append(tf.reduce_sum(w**2)))
        worker.start()
        worker.join()
    return tape, found[0], w


@program
def input_from_another_thread() -> Asked:
    w, found = weights(), []
    with rt.Tape() as tape:
        _ = w * 1.0
        worker = threading.Thread(target=lambda: found.append(w**2))
        worker.start()
        worker.join()
        loss = tf.reduce_sum(found[0])  # here
    return tape, loss, w


@program
def computed_again_on_another_thread() -> Asked:
    w, found = weights(), []
    with rt.Tape() as tape:
        _ = w**2
        worker = threading.Thread(target=lambda: found.append(w**2))
        worker.start()
        worker.join()
        loss = tf.reduce_sum(found[0])  # here
    return tape, loss, w


@program
def asked_after_reset() -> Asked:
    w = weights()
    tape = rt.Tape()
    with tape:
        loss = tf.reduce_sum(w**2)
        tape.reset()
        _ = w * 1.0
    return tape, loss, w


@program
def a_copy_of_the_input() -> Asked:
    kernel, x = tf.Variable([[1.0], [2.0]], name="kernel"), np.array([[3.0, 4.0]], np.float32)
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.constant(x) @ kernel)
    return tape, loss, tf.constant(x)


@program
def a_copy_of_the_weights() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        copied = tf.identity(w)
        loss = tf.reduce_sum(w**2)
    return tape, loss, copied


@program
def another_layer_of_the_same_name() -> Asked:
    def make() -> Any:
        keras.backend.clear_session()
        return keras.Sequential([keras.Input([2]), keras.layers.Dense(1, name="head")], name="model")

    old, model = make(), make()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model(tf.ones([1, 2])))
    return tape, loss, old.trainable_variables[0]


@program
def another_variable_of_the_same_name() -> Asked:
    old, new = tf.Variable(1.0, name="scale"), tf.Variable(1.0, name="scale")
    with rt.Tape() as tape:
        loss = new**2
    return tape, loss, old


@program
def a_layer_that_is_not_used() -> Asked:
    layers = [keras.layers.Dense(2, name="body"), keras.layers.Dense(1, name="head")]
    model = keras.Sequential([keras.Input([2]), *layers], name="model")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(model.layers[0](tf.ones([1, 2])))
    return tape, loss, model.layers[1].kernel


@program
def logged_and_unrelated() -> Asked:
    first, second, rate = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second"), float(np.sqrt(2.0))
    with rt.Tape() as tape:
        seen = float(second**2)  # for the log, not for the loss
        loss = first**2 * rate
    assert seen == 4.0
    return tape, loss, second


@program
def the_other_loss() -> Asked:
    first, second = tf.Variable(1.0, name="first"), tf.Variable(2.0, name="second")
    with rt.Tape() as tape:
        loss = first**2
        _ = second**2
    return tape, loss, second


# ------------------------------------------------------------------ through variables


@program
def hypernetwork() -> Asked:
    code, kernel = tf.Variable([1.0, 2.0], name="code"), tf.Variable([0.0, 0.0], name="kernel")
    with rt.Tape() as tape:
        kernel.assign(code * 3.0)  # here
        loss = tf.reduce_sum(kernel**2)
    return tape, loss, code


@program
def set_weights() -> Asked:
    code, layer = tf.Variable([[1.0], [2.0]], name="code"), keras.layers.Dense(1, use_bias=False, name="head")
    layer.build([None, 2])
    with rt.Tape() as tape:
        layer.set_weights([code * 3.0])  # here
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    return tape, loss, code


@program
def optimizer_step_then_loss() -> Asked:
    w, x = weights(), tf.Variable(1.0, name="example")
    optimizer = keras.optimizers.SGD(0.1)
    with rt.Tape() as tape:
        inner = x * tf.reduce_sum(w**2)
        optimizer.apply([tape.gradient(inner, w)], [w])  # here
        loss = tf.reduce_sum(w**3)
    return tape, loss, x


@program
def variable_made_of_a_value() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        copied = tf.Variable(w * 2.0, name="copied")  # here
        loss = tf.reduce_sum(copied**2)
    return tape, loss, w


@program
def assigned_between_two_blocks() -> Asked:
    code, state = tf.Variable(2.0, name="code"), tf.Variable(1.0, name="state")
    tape = rt.Tape()
    with tape:
        state.assign(code * 3.0)  # here
        first = state * 2.0
    state.assign(7.0)
    with tape:
        loss = first * state
    return tape, loss, code


@program
def assigned_in_a_pause() -> Asked:
    code, state = tf.Variable(2.0, name="code"), tf.Variable(1.0, name="state")
    with rt.Tape() as tape:
        _ = code * 1.0 + state
        with tape.stop_recording():
            state.assign(code * 3.0)
        loss = state**2  # here
    return tape, loss, code


@program
def python_list_in_a_function() -> Asked:
    w, seen = weights(), []

    @tf.function
    def scores(x: Any) -> Any:
        seen.append(x * 2.0)
        return tf.constant(1.0)

    with rt.Tape() as tape:
        loss = scores(w) * 2.0
    return tape, loss, w


# ------------------------------------------------------------------ zero, though connected


@program
def dead_relu() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        hidden = tf.nn.relu(w - 10.0)  # here
        loss = tf.reduce_sum(hidden * 2.0)
    return tape, loss, w


@program
def saturated_sigmoid() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        gate = tf.sigmoid(w + 200.0)  # here
        loss = tf.reduce_sum(gate**2)
    return tape, loss, w


@program
def clipped_away() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        bounded = tf.clip_by_value(w * 100.0, -1.0, 1.0)  # here
        loss = tf.reduce_sum(bounded)
    return tape, loss, w


@program
def mask_of_zeros() -> Asked:
    w, mask = weights(), tf.zeros([3])
    with rt.Tape() as tape:
        kept = (w**2) * mask  # here
        loss = tf.reduce_sum(kept)
    return tape, loss, w


@program
def loss_weight_of_zero() -> Asked:
    w, rate = weights(), tf.constant(0.0)
    with rt.Tape() as tape:
        penalty = tf.reduce_sum(w**2)
        loss = 5.0 + rate * penalty  # here
    return tape, loss, w


@program
def branch_not_taken_by_where() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        chosen = tf.where(w > 100.0, w**2, tf.ones([3]))  # here
        loss = tf.reduce_sum(chosen)
    return tape, loss, w


@program
def branch_not_taken_by_cond() -> Asked:
    w, flag = weights(), tf.constant(False)

    @tf.function
    def chosen(x: Any, flag: Any) -> Any:
        return tf.cond(flag, lambda: tf.reduce_sum(x), lambda: tf.constant(1.0))

    with rt.Tape() as tape:
        loss = chosen(w, flag) * 2.0  # here
    return tape, loss, w


@program
def zero_kernel() -> Asked:
    w, x = weights(), tf.zeros([3, 3])
    with rt.Tape() as tape:
        hidden = tf.linalg.matvec(x, w)  # here
        loss = tf.reduce_sum(hidden)
    return tape, loss, w


@program
def square_at_zero() -> Asked:
    w = tf.Variable([0.0, 0.0], name="w")
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.square(w))  # here
    return tape, loss, w


@program
def softmax_of_one() -> Asked:
    w = tf.Variable([[0.3]], name="w")
    with rt.Tape() as tape:
        chances = tf.nn.softmax(w)  # here
        loss = tf.reduce_sum(chances)
    return tape, loss, w


@program
def terms_that_cancel() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(w) - tf.reduce_sum(w)
    return tape, loss, w


# ------------------------------------------------------------------ no mistake at all


@program
def frozen_layer() -> Asked:
    layer = keras.layers.Dense(1, name="frozen", kernel_initializer="ones")
    layer.build([None, 2])
    layer.trainable = False
    with rt.Tape() as tape:
        loss = tf.reduce_sum(layer(tf.ones([1, 2])))
    return tape, loss, layer.kernel


@program
def py_function() -> Asked:
    w = weights()
    with rt.Tape() as tape:
        loss = tf.reduce_sum(tf.py_function(lambda x: x**2, [w], tf.float32))
    return tape, loss, w


@program
def while_loop() -> Asked:
    w = weights()

    @tf.function
    def power(x: Any) -> Any:
        for _ in tf.range(3):
            x = x * 1.5
        return x

    with rt.Tape() as tape:
        loss = tf.reduce_sum(power(w))
    return tape, loss, w


@program
def watched_by_nobody() -> Asked:
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        loss = x**2
    return tape, loss, x
