"""Random training loops whose data, Python values and structure change from step to step.

A loop is a list of statements, a list of queries, and the step from which on things change: up to there it looks like
any training loop, and gets warm; after that, knobs are turned. A knob is a value of Python that a statement uses: an
axis, a permutation, an exponent, the state of a custom gradient. The same seed gives the same loop on any tape.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from laws.warm_queries import CONSTANT, QUERIES, SIZE, Asked

Tensor = Any
STATE = {"scale": 1.0}


class Knobs:
    """The values of Python that the statements of one step use: always the same ones, until they are turned."""

    def __init__(self, seed: int, step: int, turn: int) -> None:
        self._seed, self._step, self._turn = seed, step, turn
        self._number = 0

    def pick(self, choices: Sequence[Any]) -> Any:
        """Return one of the choices: the same in all early steps, any later."""
        self._number += 1
        step = self._step if self._step >= self._turn else -1
        return random.Random(f"{self._seed} {self._number} {step}").choice(choices)


# ---------------------------------------------------------------------- statements, from matrices to a matrix


def _reduced(a: Tensor, knobs: Knobs) -> Tensor:
    reduce = knobs.pick([tf.reduce_sum, tf.reduce_sum, tf.reduce_max, tf.reduce_mean])
    return a * reduce(a, axis=tf.constant(knobs.pick([[0], [0], [1]])), keepdims=True)


def _padded(a: Tensor, knobs: Knobs) -> Tensor:
    up, left = knobs.pick([0, 1, 2]), knobs.pick([0, 1, 2])
    padded = tf.pad(a, tf.constant([[up, 2 - up], [left, 2 - left]]))
    return tf.slice(padded, tf.constant([knobs.pick([0, 1, 2]), 1]), [SIZE, SIZE])


def _power(a: Tensor, knobs: Knobs) -> Tensor:
    return (tf.sigmoid(a) + 0.5) ** knobs.pick([2.0, 2.0, 3.0, 1.0, 0.0, 0.5])


def _split(a: Tensor, knobs: Knobs) -> Tensor:
    size = knobs.pick([1, 2])
    first, second = tf.split(a, [size, SIZE - size], axis=knobs.pick([0, 1]))
    return tf.reduce_sum(first**2) * a + tf.reduce_mean(second)


def _masked(a: Tensor, knobs: Knobs) -> Tensor:
    return a * tf.reduce_sum(tf.boolean_mask(a, a > knobs.pick([0.0, 0.2, -0.2]))) * 0.1


def _sorted_out(a: Tensor, knobs: Knobs) -> Tensor:
    parts = tf.dynamic_partition(a, tf.constant(knobs.pick([[0, 1, 1], [0, 1, 1], [1, 0, 1], [0, 0, 1]])), 2)
    return a * tf.reduce_sum(parts[0] ** 2) - tf.reduce_mean(parts[1])


def _branched(a: Tensor, knobs: Knobs) -> Tensor:
    return tf.sin(a) if float(tf.reduce_sum(a)) > knobs.pick([-1e6, 0.0]) else -a


def _drawn(a: Tensor, knobs: Knobs) -> Tensor:
    if knobs.pick([True, True, False]):
        return tf.nn.dropout(a, 0.5)
    return a * tf.random.stateless_uniform(a.shape, [knobs.pick([1, 2]), 2], dtype=a.dtype)


def _repeated(a: Tensor, knobs: Knobs) -> Tensor:
    times = tf.constant(knobs.pick([2, 2, 1, 3]))
    _, found = tf.while_loop(lambda k, _: k < times, lambda k, v: (k + 1, tf.sin(v) * a), [tf.constant(0), a])
    return found


def _checked(a: Tensor, _: Knobs) -> Tensor:
    mean, spread = tf.nn.moments(a, [0])
    return (a - mean) / tf.sqrt(spread + 0.1)


UNARY: list[Callable[[Tensor, Knobs], Tensor]] = [
    _reduced,
    _padded,
    _power,
    _split,
    _masked,
    _sorted_out,
    _branched,
    _drawn,
    _repeated,
    _checked,
    lambda a, _: tf.sin(a),
    lambda a, _: tf.tanh(a),
    lambda a, _: tf.nn.softmax(a),
    lambda a, _: tf.concat([a, a], 1)[:, 1:4],
    lambda a, _: tf.stop_gradient(tf.tanh(a)) * a,
    lambda a, _: tf.math.top_k(a, SIZE).values,
    lambda a, _: tf.reduce_sum(tf.stack(tf.unstack(a)[::-1]) * a) * a * 0.1,
    lambda a, knobs: tf.transpose(a, tf.constant(knobs.pick([[1, 0], [1, 0], [0, 1]]))),
    lambda a, knobs: tf.cumsum(a, axis=knobs.pick([0, 0, 1]), reverse=knobs.pick([False, True])),
    lambda a, knobs: tf.roll(a, shift=knobs.pick([1, 1, 2]), axis=knobs.pick([0, 1])),
    lambda a, knobs: tf.reverse(a, tf.constant([knobs.pick([0, 0, 1])])),
    lambda a, knobs: tf.nn.leaky_relu(a, alpha=knobs.pick([0.1, 0.1, 0.3, 0.0])),
    lambda a, knobs: tf.gather(a, knobs.pick([[0, 1, 2], [0, 0, 2], [2, 1, 0]]), axis=knobs.pick([0, 1])),
    lambda a, knobs: tf.clip_by_value(a, knobs.pick([-0.5, -1.0]), 0.7),
    lambda a, knobs: tf.reshape(tf.reshape(a, knobs.pick([[9], [1, 9], [9, 1]])) ** 2, [SIZE, SIZE]),
    lambda a, knobs: tf.linalg.band_part(a, knobs.pick([0, 1]), -1),
    lambda a, knobs: tf.math.segment_max(a, tf.constant(knobs.pick([[0, 1, 2], [0, 0, 2], [0, 1, 1]])))[:1] + a,
]
BINARY: list[Callable[[Tensor, Tensor, Knobs], Tensor]] = [
    lambda a, b, _: a * b,
    lambda a, b, _: a - b,
    lambda a, b, _: a / (b * b + 1.0),
    lambda a, b, _: tf.maximum(a, b),
    lambda a, b, knobs: tf.matmul(a, b, transpose_b=knobs.pick([False, False, True])),
    lambda a, b, knobs: tf.where(a > knobs.pick([0.0, 0.1]), a, b),
    lambda a, b, knobs: tf.einsum(knobs.pick(["ij,jk->ik", "ij,jk->ik", "ij,kj->ik"]), a, b),
    lambda a, b, knobs: tf.tensor_scatter_nd_update(a, knobs.pick([[[0]], [[0]], [[2]]]), b[:1]),
]


# ---------------------------------------------------------------------- custom gradients with state


def _helper() -> None: ...


def _scaled(a: Tensor, scale: Callable[[Tensor, Tensor], Any]) -> Tensor:
    """Return a sine whose gradient is multiplied by `scale` of the tensor and of the gradient that arrives."""

    @tf.custom_gradient
    def sine(x: Tensor) -> Any:
        return tf.sin(x), lambda dy: dy * tf.cos(x) * tf.cast(scale(x, dy), dy.dtype)

    return sine(a)


def _of_global(a: Tensor, knobs: Knobs) -> Tensor:
    STATE["scale"] = knobs.pick([1.0, 1.0, 2.0, 3.0])
    return _scaled(a, lambda *_: STATE["scale"])


def _of_attribute(a: Tensor, knobs: Knobs) -> Tensor:
    _helper.scale = knobs.pick([1.0, 1.0, 2.0, 3.0])  # type: ignore[attr-defined]
    return _scaled(a, lambda *_: _helper.scale)  # type: ignore[attr-defined]


def _of_method(a: Tensor, knobs: Knobs) -> Tensor:
    get = {"scale": knobs.pick([1.0, 1.0, 2.0, 3.0])}.get
    return _scaled(a, lambda *_: get("scale"))


def _of_closure(a: Tensor, knobs: Knobs) -> Tensor:
    scale = knobs.pick([1.0, 1.0, 2.0, 3.0])
    held = knobs.pick([scale, [scale], {"scale": scale}, np.array([scale])])
    return _scaled(a, lambda *_: held["scale"] if isinstance(held, dict) else np.ravel(held)[0])


def _of_value(a: Tensor, knobs: Knobs) -> Tensor:
    limit = knobs.pick([0.0, 0.3])
    return _scaled(a, lambda x, _: 2.0 if float(x[0, 0]) > limit else 1.0)


def _of_array(a: Tensor, _: Knobs) -> Tensor:
    return _scaled(a, lambda x, dy: 2.0 if np.max(x) + np.asarray(dy)[0, 0] > 0.5 else 1.0)


def _of_count(a: Tensor, _: Knobs) -> Tensor:
    return _scaled(a, lambda x, dy: tf.size(tf.where(x + dy > 0.0)))


def _of_constant(a: Tensor, _: Knobs) -> Tensor:
    return _scaled(a, lambda *_: CONSTANT)


CUSTOM = [_of_constant, _of_global, _of_attribute, _of_method, _of_closure, _of_value, _of_array, _of_count]


class Loop:
    """A training loop that a seed decides on.

    Args:
      seed: The seed.
      tape: Makes the tape of each step.
    """

    def __init__(self, seed: int, tape: Callable[..., Any] = rt.Tape) -> None:
        self._seed, self._tape = seed, tape
        rng = self._rng = random.Random(seed)
        self._dtype = rng.choice([tf.float32, tf.float64])
        values = np.random.default_rng(seed)
        self._data = values.normal(size=(32, SIZE, SIZE)) * 0.7
        made = [values.normal(size=(SIZE, SIZE)) * 0.7 for _ in range(3)]
        self._variables = [tf.Variable(value, dtype=self._dtype) for value in made]
        self._called = tf.function(lambda a: tf.tanh(a) * self._variables[0])
        self._turn = rng.randint(3, 6)
        self._statements = [self._statement() for _ in range(rng.randint(3, 9))]
        self._late = [self._statement() for _ in range(3)]
        self._queries = rng.sample(range(len(QUERIES)), 3)
        tf.random.set_seed(seed)

    def _statement(self) -> tuple[str, int, int, int]:
        kinds = ["unary"] * 8 + ["binary"] * 5 + ["custom"] * 2
        kinds += ["assign", "scatter", "lookup", "pause", "nested", "call", "own", *["inside"] * 3]
        number, left, right = (self._rng.randrange(1 << 16) for _ in range(3))
        return self._rng.choice(kinds), number, left, right

    def _run(self, statement: tuple[str, int, int, int], made: list[Tensor], knobs: Knobs, tape: Any) -> None:
        kind, number, left, right = statement
        known = [*made, *self._variables]
        a, b = known[left % len(known)], known[right % len(known)]
        variable = self._variables[number % len(self._variables)]
        if kind == "unary":
            made.append(UNARY[number % len(UNARY)](a * 1.0, knobs))
        elif kind == "binary":
            made.append(BINARY[number % len(BINARY)](a * 1.0, b * 1.0, knobs))
        elif kind == "custom":
            made.append(CUSTOM[number % len(CUSTOM)](a * 1.0, knobs))
        elif kind == "assign":
            update = [variable.assign, variable.assign_add, variable.assign_sub][number % 3]
            update(tf.tanh(a) * knobs.pick([0.1, 0.1, 0.3]))
        elif kind == "scatter":
            rows = knobs.pick([[0, 1], [0, 1], [2, 2]])
            variable.scatter_sub(tf.IndexedSlices(tf.tanh(a)[:2], tf.constant(rows)))
        elif kind == "lookup":
            made.append(tf.gather(variable, knobs.pick([[0, 1, 1], [0, 1, 1], [2, 0, 2]])) * a)
        elif kind == "pause":
            with tape.stop_recording():
                c = tf.tanh(a) * 2.0
                if knobs.pick([False, False, True]):
                    variable.assign(c)
            made.append(c * variable)
        elif kind == "nested":
            with self._tape() as inner:
                inner.watch(made[-1])
                y = tf.reduce_sum(tf.sin(made[-1]) * variable)
            made.append(inner.gradient(y, [made[-1], variable][number % 2]) + a)
        elif kind == "inside":
            self._query_inside(number, (a, b), made, knobs, tape)
        elif kind == "call":
            made.append(self._called(tf.convert_to_tensor(a)))
        else:
            own = tf.Variable(tf.tanh(a), dtype=self._dtype)
            made.append(own * b + own.assign_add(b * 0.1))

    def _query_inside(
        self, number: int, of: tuple[Tensor, Tensor], made: list[Tensor], knobs: Knobs, tape: Any
    ) -> None:
        """Use a gradient in the forward pass, so that it is recorded how it was computed."""
        a, b = of
        variable, target = self._variables[number % len(self._variables)], tf.sin(a * 1.0) * b * made[-1]
        sources = [self._variables, tuple(self._variables[:2]), [made[0], variable], [made[-1]]][number % 4]
        options = [{}, {}, {"output_gradients": b * 1.0}, {"output_gradients": CONSTANT}][knobs.pick([0, 1, 2])]
        options = {name: tf.cast(value, self._dtype) for name, value in options.items()}
        found = [grad for grad in tape.gradient(target, sources, **options) if grad is not None]
        if not found:
            return
        grad = tf.tanh(tf.convert_to_tensor(found[number // 4 % len(found)]))
        use = number // 16 % 4
        if use == 0:
            variable.assign_sub(0.1 * grad)
        elif use == 1:
            made.append(a * tf.reduce_sum(grad**2))
        elif use == 2:
            more = tape.gradient(tf.reduce_sum(grad * a), list(sources))
            made.append(grad + sum(tf.tanh(tf.convert_to_tensor(one)) for one in more if one is not None))

    def step(self, number: int) -> list[Any]:
        """Run one step, and return what its queries gave."""
        knobs, rng = Knobs(self._seed, number, self._turn), random.Random(f"{self._seed} {number}")
        x = tf.constant(self._data[number], self._dtype)
        turned = number >= self._turn
        statements = list(self._statements)
        if turned and rng.random() < 0.4:
            statements[rng.randrange(len(statements)) :] = rng.sample(self._late, rng.randint(0, 3))
        fails = turned and rng.random() < 0.1
        with self._tape(persistent=True) as tape:
            tape.watch(x)
            made = [x]
            for statement in statements:
                self._run(statement, made, knobs, tape)
                if len(made) > 1:
                    made[-1] = tf.tanh(made[-1])
                if fails and len(made) > 2:
                    break
            loss = tf.reduce_sum(made[-1] * self._variables[0]) + tf.reduce_mean(made[len(made) // 2] ** 2)
        queries = list(self._queries)
        if turned:
            rng.shuffle(queries)
            queries = queries[: rng.randint(1, 3)] + rng.choices(range(len(QUERIES)), k=rng.randint(0, 3))
        asked = Asked(tape, made, loss, self._variables)
        found = []
        for query in queries:
            asked.rng.seed(f"{self._seed} {number} {len(found)}")
            found.append(asked.answer(QUERIES[query]))
            if rng.random() < 0.3:
                self._update(asked)
        self._update(asked)
        return [number, [QUERIES[query].__name__ for query in queries], float(loss), found]

    def _update(self, asked: Asked) -> None:
        grads = asked.tape.gradient(asked.loss, self._variables)
        for variable, grad in zip(self._variables, grads, strict=True):
            if grad is not None:
                variable.assign_sub(0.05 * tf.clip_by_value(tf.convert_to_tensor(grad), -1.0, 1.0))


def run(seed: int, steps: int, *, compile: Any = False, tape: Callable[..., Any] = rt.Tape) -> list[list[Any]]:
    """Return what a loop gives in each step, as arrays."""
    with rt.config(compile=compile) if tape is rt.Tape else nullcontext():
        loop = Loop(seed, tape)
        return [as_arrays(loop.step(number)) for number in range(steps)]


def as_arrays(nest: Any) -> Any:
    """Return a nest with an array in place of each tensor."""
    if isinstance(nest, dict):
        return {key: as_arrays(item) for key, item in nest.items()}
    if isinstance(nest, (list, tuple)) and not isinstance(nest, tf.IndexedSlices):
        return [as_arrays(item) for item in nest]
    if isinstance(nest, (tf.Tensor, tf.IndexedSlices, tf.Variable)):
        return tf.convert_to_tensor(nest).numpy()
    return nest
