"""Tapes and `tf.autodiff.ForwardAccumulator`s inside each other, in any order, against finite differences."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from helpers.seeds import seeds
from laws.examples import close

Accumulator = tf.autodiff.ForwardAccumulator
X = tf.constant([0.8, 1.3, -0.4], tf.float64)
WAYS = tf.constant([[0.6, -0.9, 0.3], [1.1, 0.4, -0.2], [-0.5, 0.7, 0.9]], tf.float64)
W = tf.Variable([0.7, -0.4, 1.2], dtype=tf.float64)


@tf.custom_gradient
def cube(x: tf.Tensor) -> Any:
    return x**3, lambda grad: 3.0 * x * x * grad


@tf.function
def looped(x: tf.Tensor) -> tf.Tensor:
    return tf.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, tf.sin(y) * x), [0, x])[1]


@tf.function
def pair(x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    return tf.sin(x) * W, x * x


PIECES: dict[str, Callable] = {
    "sin": tf.sin,
    "square": lambda x: x * x,
    "reshape": lambda x: tf.reshape(tf.reshape(tf.tanh(x), [1, 3]), [3]),
    "split": lambda x: tf.concat(tf.split(tf.sin(x), 3), 0) * x,
    "gather": lambda x: tf.gather(x, [0, 2, 2]),
    "variable": lambda x: tf.tanh(x * W) + W,
    "custom": cube,
    "silu": tf.nn.silu,
    "moments": lambda x: x * tf.nn.moments(tf.sin(x), [0])[1],
    "labels": lambda x: x * tf.nn.softmax_cross_entropy_with_logits(labels=tf.nn.softmax(x), logits=tf.sin(x)),
    "function": tf.function(lambda x: tf.tanh(x * W) ** 2),
    "custom in a function": tf.function(lambda x: cube(tf.sin(x)) * W),
    "two results": lambda x: pair(tf.sin(x))[0] * pair(x)[1],
}
# Both letters, so that tapes and accumulators meet: R is a gradient, F a tangent, the outermost first.
WORDS = [word for size in (2, 3) for word in map("".join, itertools.product("RF", repeat=size)) if len(set(word)) == 2]


def derive(word: str, make: Callable, f: Callable, x: tf.Tensor) -> tf.Tensor:
    """Return the derivative of `f`, a scalar, along as many directions as the word has letters."""
    if not word:
        return f(x)
    way = WAYS[len(word) - 1]
    if word[0] == "F":
        with Accumulator(x, way) as forward:
            y = derive(word[1:], make, f, x)
        return forward.jvp(y)
    with make() as tape:
        tape.watch(x)
        y = derive(word[1:], make, f, x)
    return tf.reduce_sum(tape.gradient(y, x) * way)


def difference(order: int, f: Callable, gap: float) -> float:
    signs = itertools.product((1.0, -1.0), repeat=order)
    terms = [
        np.prod(s) * float(f(X + gap * sum(sign * way for sign, way in zip(s, WAYS, strict=False)))) for s in signs
    ]
    return float(sum(terms)) / (2 * gap) ** order


def truth(order: int, f: Callable) -> float:
    """Return the mixed derivative along the first directions, without the error of second order."""
    return (4 * difference(order, f, 4e-3) - difference(order, f, 8e-3)) / 3


def composed(names: list[str]) -> Callable:
    return lambda x: tf.reduce_sum(reduce(lambda y, name: PIECES[name](y), names, x) * tf.cos(x))


@pytest.mark.parametrize("name", PIECES)
def test_every_piece(name: str):
    f = composed([name])
    for word in ("RF", "FR"):
        close(derive(word, rt.Tape, f, X), truth(2, f), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("seed", seeds(8, 24))
def test_any_order_of_tapes_and_accumulators(seed: int):
    rng = random.Random(seed)
    word = WORDS[seed % len(WORDS)]
    # Two accumulators around a sparse gradient fail in TensorFlow, with a stock tape too.
    f = composed(rng.sample(sorted(PIECES.keys() - ({"gather"} if "FF" in word else set())), 2))
    keep = rng.choice(["needed", "all", "leaves", "segments", "disk"])
    close(derive(word, lambda: rt.Tape(keep=keep), f, X), truth(len(word), f), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("word", WORDS)
def test_inside_a_function(word: str):
    f = composed(["custom", "moments", "variable"])
    found = tf.function(lambda x: derive(word, rt.Tape, f, x))(X)
    close(found, truth(len(word), f), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("word", ["RF", "FR", "RFR", "FRF"])
def test_inside_a_function_that_calls_another(word: str):
    f = composed(["custom in a function", "square"])
    found = tf.function(lambda x: derive(word, rt.Tape, f, x))(X)
    close(found, truth(len(word), f), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("f", [looped, tf.function(tf.sin, jit_compile=True)], ids=["loop", "jit"])
@pytest.mark.parametrize("word", ["RF", "FR", "RFR"])
def test_functions_that_the_stock_tape_cannot_go_through(f: Callable, word: str):
    def total(x: tf.Tensor) -> tf.Tensor:
        return tf.reduce_sum(f(x) ** 2)

    close(derive(word, rt.Tape, total, X), truth(len(word), total), rtol=1e-4, atol=1e-5)
