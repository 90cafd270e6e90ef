"""Programs that query a tape inside its own block; each returns the results of one run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

Program = Callable[[Any, Any, list[Any]], list[Any]]


def forward(x: Any, variables: list[Any]) -> Any:
    w, v = variables
    return tf.reduce_sum(tf.tanh(x * w) ** 2 * tf.sin(v)) + tf.reduce_mean(w * v)


# ---------------------------------------------------------------------- programs: the results of one run


def used_in_the_forward_pass(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    first, second = tape.gradient(forward(x, variables), variables)
    return [tf.reduce_sum(tf.sin(first) * second)]


def penalty(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    loss = forward(x, variables)
    (slope,) = tape.gradient(loss, [x])
    grads = tape.gradient(loss + tf.reduce_sum(slope**2), variables)
    return [tf.add_n([tf.reduce_sum(grad**2) for grad in grads])]


def updates_by_hand(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    for _ in range(3):
        grads = tape.gradient(forward(x, variables), tuple(variables))
        for variable, grad in zip(variables, grads, strict=True):
            variable.assign_sub(0.1 * grad * variable)
    return [forward(x, variables)]


def not_used(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    loss = forward(x, variables)
    tape.gradient(loss, variables)
    return [loss * 2.0]


def seeded(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    y = tf.tanh(x * variables[0])
    (first,) = tape.gradient(y, [variables[0]], output_gradients=tf.ones_like(y) * 0.5)
    (second,) = tape.gradient(y, [x], output_gradients=tf.constant(np.float32([1, 2, 3]) * float(x[0])))
    return [tf.reduce_sum(first * second * variables[1])]


def shared_results(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    a, b = tape.gradient(tf.reduce_sum(variables[0] + variables[1] + x), variables)
    return [tf.reduce_sum((a + x) * tf.sin(b * variables[0]))]


def sparse(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    rows = tf.gather(variables[0], [0, 2, 2])
    (grad,) = tape.gradient(tf.reduce_sum(rows**3 * x), [variables[0]])
    return [tf.reduce_sum(tf.convert_to_tensor(grad) ** 2)]


def no_path(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    loss = tf.reduce_sum(x**2)
    _ = variables[0] * 1.0
    assert tape.gradient(loss, [variables[0]]) == [None]
    return [loss * variables[0]]


def read_in_python(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    (grad,) = tape.gradient(forward(x, variables), [variables[0]])
    scale = 2.0 if float(grad[0]) > 0 else 3.0
    return [tf.reduce_sum(grad * scale)]


def by_a_reduction(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    y = tf.reduce_prod(tf.stack([x, variables[0]]), axis=tf.constant(int(x[0] > 3.0)))
    (grad,) = tape.gradient(tf.reduce_sum(y**2), [variables[0]])
    return [tf.reduce_sum(grad * variables[1])]


def custom(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    scale = float(x[0])

    @tf.custom_gradient
    def sine(a: Any) -> Any:
        return tf.sin(a), lambda dy: dy * tf.cos(a) * scale

    (grad,) = tape.gradient(tf.reduce_sum(sine(variables[0] * x)), [variables[0]])
    return [tf.reduce_sum(grad * variables[1])]


def with_a_backward_function(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    @tf.custom_gradient
    def sine(a: Any) -> Any:
        return tf.sin(a), lambda dy: dy * tf.cos(a) * 0.5

    (grad,) = tape.gradient(tf.reduce_sum(sine(variables[0] * x)), [variables[0]])
    return [tf.reduce_sum(grad * variables[1])]


def by_another_tape(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    with type(tape)() as inner:
        loss = forward(x, variables)
    first, second = inner.gradient(loss, variables)
    return [tf.reduce_sum(first**2 + second)]


def while_paused(tape: Any, x: Any, variables: list[Any]) -> list[Any]:
    loss = forward(x, variables)
    with tape.stop_recording():
        first, _ = tape.gradient(loss, variables)
    return [tf.reduce_sum(first * variables[1]) + loss]


PROGRAMS: list[Program] = [used_in_the_forward_pass, penalty, updates_by_hand, not_used, seeded, shared_results, sparse]
PROGRAMS += [no_path, read_in_python, by_a_reduction, custom, with_a_backward_function, by_another_tape, while_paused]
