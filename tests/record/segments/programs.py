"""Programs of many segments: questions, updates, draws and functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import retrotape as rt
from record.segments.tools import Program, chain, into, numbers

PROGRAMS: dict[str, Program] = {}
program = into(PROGRAMS)


@program
def all_questions(tape: rt.Tape) -> Callable[[], Any]:
    x, v = numbers(0.2, 1.0, 6), tf.Variable(numbers(1.0, 0.5, 6))
    with tape:
        middle = chain(x * v, 4)
        y = chain(middle * v, 2)
        loss = tf.reduce_sum(y * y)

    def ask() -> Any:
        first = tape.gradient(loss, [x, v, middle])
        each = [*tape.backward_each([loss, middle, loss], [x, v]), *tape.backward_each(y, [x, v])]
        return [
            first,
            tape.jacobian(y, [x, v, middle]),
            tape.jacobian(y, x, experimental_use_pfor=False),
            tape.hvp(loss, [x, v], [x, x]),
            tape.hessian(loss, [x, v]),
            tape.jvp(y, [x, v], [x, x]),
            tape.vjp(y, v, x),
            tape.per_example(y, [v]),
            [[row[x], row[v]] for row in each],
            tape.gradient(first[0], [x, v]),
            tape.gradient(loss, [x, v, middle]),
        ]

    return ask


@program
def many_rows_at_once(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 20)  # more than are asked one by one
    with tape:
        y = chain(x)
    return lambda: [tape.jacobian(y, x), tape.jacobian(y, x, chunk=17)]


@program
def many_rows_of_what_is_not_kept(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 20)
    with tape:
        parts = [tf.sin(x[start : start + 5]) for start in range(0, 20, 5)]
        y = chain(tf.concat(parts, 0), 3)  # the rule of Concat looks at shapes only, and they were not kept
    return lambda: [tape.jacobian(y, x)]


@program
def many_rows_through_updates(tape: rt.Tape) -> Callable[[], Any]:
    v, x = tf.Variable(numbers(0.5, 1.0, 20)), numbers(0.2, 0.7, 20)
    with tape:
        for _ in range(3):
            v.assign_sub(0.1 * tf.sin(v * x))
            v.scatter_mul(tf.IndexedSlices(x[:1], tf.constant([1])))
        y = chain(v * x, 3)
    return lambda: [tape.jacobian(y, [v, x], through_updates=True)]


@program
def batch_rows(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 4, 3)
    with tape:
        y = chain(x)
        losses = tf.reduce_sum(y * y, 1)
    return lambda: [tape.batch_jacobian(y, x), tape.per_example(losses, x)]


@program
def through_updates(tape: rt.Tape) -> Callable[[], Any]:
    v, x = tf.Variable(numbers(0.5, 1.0, 6)), numbers(0.2, 0.7, 6)
    with tape:
        for _ in range(4):
            v.assign_sub(0.1 * chain(v * x, 2))
            v.scatter_mul(tf.IndexedSlices(x[:1], tf.constant([1])))
            v[2:3].assign(v[:1] * x[:1])
        y = tf.reduce_sum(chain(v))

    def ask() -> Any:
        v.assign(100.0 * tf.ones([6]))
        past = [tape.at(v, k) for k in (0, 3, -2, -1)]
        return [
            tape.gradient(y, [v, x], through_updates=True),
            tape.gradient(y, [v, x], through_updates=True, since=-2),
            tape.gradient(y, [v, x]),
            tape.gradient(y, past),
            tape.hvp(y, [v, x], [x, x], through_updates=True),
            [version.value for version in tape.versions(v)],
        ]

    return ask


@program
def optimizer(tape: rt.Tape) -> Callable[[], Any]:
    w, x = keras.Variable([1.0, 2.0, 0.3]), numbers(0.5, 0.7, 3)
    adam = keras.optimizers.Adam(0.1)
    adam.build([w])
    with tape:
        for _ in range(3):
            adam.apply([tape.gradient(tf.reduce_sum(chain(w * x, 2)), w)], [w])
        y = tf.reduce_sum(w**2)
    return lambda: [tape.gradient(y, [w, x], through_updates=True), tape.hvp(y, x, x, through_updates=True)]


@program
def asked_inside_the_block(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        y = chain(x, 4)
        first = tape.gradient(y, x)
        z = chain(first, 3) + y
        second = tape.gradient(z, [x, first])
        last = tf.reduce_sum(chain(second[0], 3))
    return lambda: [first, second, tape.gradient(last, [x, y, first]), tape.gradient(first, x), tape.hvp(last, x, x)]


@program
def asked_twice_about_answers(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        y = chain(x, 5)
        unused = chain(y, 5)

    def ask() -> Any:
        first = tape.gradient(y, x)
        second = tape.gradient(first, x)
        third = tape.gradient(second, x)
        return [first, second, third, tape.gradient(unused, [x, y]), tape.gradient(second, x), tape.gradient(first, x)]

    return ask


@program
def reset_and_again(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        chain(x)
        tape.reset()
        y = chain(x, 5)
    first = tape.gradient(y, x)
    tape.reset()
    with tape:
        y = chain(2.0 * x)
    with tape:
        z = chain(y * y)
    return lambda: [first, tape.gradient(z, [x, y]), tape.jvp(z, x, x)]


@program
def pauses(tape: rt.Tape) -> Callable[[], Any]:
    x, v = numbers(0.2, 1.0, 6), tf.Variable(numbers(0.2, 1.0, 6))
    with tape:
        y = chain(x * v)
        with tape.stop_recording():
            scale = chain(y)
            v.assign(scale)
        z = chain(y * scale * v)
    return lambda: [tape.gradient(z, [x, v, y]), tape.jacobian(z, y)]


@program
def draws(tape: rt.Tape) -> Callable[[], Any]:
    x, generator = numbers(0.2, 1.0, 40), tf.random.Generator.from_seed(4)
    with tape:
        y = x
        for _ in range(5):
            y = chain(tf.nn.dropout(y, 0.3), 2) * tf.random.normal([40]) + tf.random.uniform([40]) * x
            y += generator.normal([40]) * y
            y = tf.random.stateless_normal([40], [1, 2]) * y
        loss = tf.reduce_sum(y)
    tf.random.normal([7]), generator.normal([5])  # both states move on
    return lambda: [tape.gradient(loss, [x, y]), tape.hvp(loss, x, x), tape.gradient(loss, x)]


@tf.custom_gradient
def odd_cube(x: tf.Tensor) -> Any:
    return x**3, lambda upstream: upstream * 5.0 * tf.sin(x)  # not its derivative: nobody could guess it


SCALE = tf.Variable(2.0)


@tf.custom_gradient
def scaled(x: tf.Tensor) -> Any:
    def back(upstream: tf.Tensor, variables: Any = None) -> Any:
        return upstream * SCALE * x, [None]

    return x * SCALE, back


@program
def custom_gradients(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    SCALE.assign(2.0)
    with tape:
        y = chain(tf.nn.silu(chain(odd_cube(chain(x, 3)), 3)), 3)
        z = scaled(y)
        SCALE.assign(7.0)
        loss = tf.reduce_sum(chain(z, 3))
    return lambda: [tape.gradient(loss, [x, y]), tape.hvp(loss, x, x), tape.jacobian(z, x)]


CALLED = tf.function(lambda a, b: tf.tanh(a) * b + tf.nn.silu(b))
DRAWS = tf.function(lambda a: a * tf.random.uniform([6]))


@program
def functions(tape: rt.Tape) -> Callable[[], Any]:
    v, x = tf.Variable(numbers(1.0, 2.0, 6)), numbers(0.5, 0.7, 6)
    update = tf.function(lambda d: v.assign(tf.tanh(v * d) + v))
    with tape:
        hidden = chain(DRAWS(CALLED(chain(x, 3), v)), 3)
        update(chain(hidden, 3))
        late = CALLED(chain(hidden, 3), x)
        update(late)
        loss = tf.reduce_sum(v * chain(late, 3))

    def ask() -> Any:
        v.assign(100.0 * tf.ones([6]))
        return [
            tape.gradient(loss, [v, x, hidden]),
            tape.gradient(loss, [v, x], through_updates=True),
            tape.hvp(loss, [hidden], [x], through_updates=True),
            tape.hvp(loss, [hidden], [x]),
        ]

    return ask


@program
def assigned_between_segments(tape: rt.Tape) -> Callable[[], Any]:
    v, x = tf.Variable(numbers(0.5, 1.0, 6)), numbers(0.2, 0.7, 6)
    with tape:
        y = x
        for step in range(6):
            y = chain(y * v, 2)
            v.assign_add(0.1 * float(step) * x)  # not by way of y
            if step % 2:
                v.assign(chain(v, 2))
        y = y + v
    return lambda: [tape.gradient(y, [x, v]), tape.gradient(y, [x, v], through_updates=True), tape.jvp(y, v, x)]


@program
def recompute_grad(tape: rt.Tape) -> Callable[[], Any]:
    x, v = numbers(0.2, 1.0, 6), tf.Variable(numbers(0.5, 1.0, 6))
    again = tf.recompute_grad(lambda h: chain(h * v, 4))
    with tape:
        y = again(chain(again(chain(x, 2)), 2))
        loss = tf.reduce_sum(y)
    return lambda: [tape.gradient(loss, [x, v]), tape.hvp(loss, [x, v], [x, x])]


@program
def long_skips(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        first = tf.sin(x)
        unlooked = tf.negative(first)  # no rule looks at it until the very end
        y = first
        for _ in range(12):
            y = y + 0.1 * chain(y, 1)
        z = y * unlooked + tf.exp(first) * y
        y = chain(z, 6) * unlooked
    return lambda: [tape.gradient(y, [x, first, unlooked, z]), tape.jvp(y, x, x), tape.gradient(z, unlooked)]


@program
def branches(tape: rt.Tape) -> Callable[[], Any]:
    x = numbers(0.2, 1.0, 6)
    with tape:
        trunk = chain(x, 3)
        leaves = [chain(trunk * float(n), 3) for n in range(5)]
        for _ in range(3):
            leaves = [leaf * other for leaf, other in zip(leaves, leaves[1:] + leaves[:1], strict=True)]
        y = tf.reduce_sum(tf.add_n(leaves))
        aside = tf.reduce_sum(chain(leaves[2]))
    return lambda: [tape.gradient(y, [x, trunk, *leaves]), tape.gradient([y, aside], x), tape.hvp(y, x, x)]
