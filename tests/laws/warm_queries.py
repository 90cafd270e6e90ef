"""The queries of random loops that get warm; see `warm_programs`."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import tensorflow as tf

import retrotape as rt
from retrotape.errors import RetrotapeError

Tensor = Any
SIZE = 3
CONSTANT = tf.reshape(tf.range(9.0), [SIZE, SIZE]) / 5.0  # in the scope of backward functions, and a direction


class Asked:
    """What the queries of one step are about."""

    def __init__(self, tape: Any, made: list[Tensor], loss: Tensor, variables: list[Any]) -> None:
        self.tape, self.made, self.loss, self.variables = tape, made, loss, variables
        self.rng = random.Random()
        self.x, self.last = made[0], made[-1]
        self.ours = isinstance(tape, rt.Tape)

    def answer(self, query: Callable[[Asked], Any]) -> Any:
        """Return the answer to a query; an error is an answer, too."""
        try:
            return query(self)
        except (RetrotapeError, tf.errors.OpError, LookupError, TypeError, ValueError) as error:
            return f"{type(error).__name__}: {error}" if self.ours else NO_ANSWER

    def direction(self) -> Tensor:
        """Return a vector: a new one, or a tensor of the tape."""
        new = tf.constant(np.random.default_rng(self.rng.randrange(999)).normal(size=(SIZE, SIZE)), self.x.dtype)
        return self.rng.choice([new, new, self.x, self.last, tf.cast(CONSTANT, self.x.dtype)])


def of_variables(asked: Asked) -> Any:
    return asked.tape.gradient(asked.loss, asked.variables)


def of_variables_in_a_nest(asked: Asked) -> Any:
    sources = {"x": asked.x, "some": tuple(asked.variables[:2])}
    return asked.tape.gradient([asked.loss, asked.last], sources)


def of_the_input(asked: Asked) -> Any:
    return asked.tape.gradient(asked.last, asked.x)


def of_anything(asked: Asked) -> Any:
    target, source = asked.rng.choice(asked.made), asked.rng.choice([*asked.made, *asked.variables])
    return asked.tape.gradient(target, source) if asked.ours else NO_ANSWER


def seeded(asked: Asked) -> Any:
    return asked.tape.gradient(asked.last, [*asked.variables, asked.x], output_gradients=asked.direction())


def seeded_twice(asked: Asked) -> Any:
    first = asked.direction()
    seeds = [first, asked.rng.choice([first, asked.direction()])]
    return asked.tape.gradient([asked.last, asked.made[len(asked.made) // 2]], asked.variables, output_gradients=seeds)


def filled(asked: Asked) -> Any:
    zeros = tf.UnconnectedGradients.ZERO
    return asked.tape.gradient(asked.last, asked.variables, unconnected_gradients=zeros)


def backward(asked: Asked) -> Any:
    return [grad for _, grad in asked.tape.backward(asked.loss).items()] if asked.ours else NO_ANSWER


def backward_each(asked: Asked) -> Any:
    if not asked.ours:
        return NO_ANSWER
    rows = asked.tape.backward_each([asked.loss, asked.last], asked.variables)
    return [[grad for _, grad in row.items()] for row in rows]


def hvp(asked: Asked) -> Any:
    return asked.tape.hvp(asked.loss, asked.variables[0], asked.direction()) if asked.ours else NO_ANSWER


def jvp(asked: Asked) -> Any:
    return asked.tape.jvp(asked.last, asked.x, asked.direction()) if asked.ours else NO_ANSWER


def twice(asked: Asked) -> Any:
    if not asked.ours:
        return NO_ANSWER
    first = asked.tape.gradient(asked.loss, [asked.x, *asked.variables])
    return asked.tape.gradient(first[0], [asked.x, *asked.variables]) if first[0] is not None else None


def jacobian(asked: Asked) -> Any:
    return asked.tape.jacobian(asked.last, asked.x) if asked.ours else NO_ANSWER


def through_updates(asked: Asked) -> Any:
    return asked.tape.gradient(asked.loss, asked.variables, through_updates=True) if asked.ours else NO_ANSWER


def values(asked: Asked) -> Any:
    if not asked.ours:
        return NO_ANSWER
    versions = [[version.value for version in asked.tape.versions(variable)] for variable in asked.variables]
    return [versions, [asked.tape.value(tensor) for tensor in asked.made]]


def program(asked: Asked) -> Any:
    if not asked.ours:
        return NO_ANSWER
    known = [(eqn.op.strip("0123456789"), eqn.inputs, eqn.outputs) for eqn in asked.tape.program.eqns]
    return [str(known), str(asked.tape.why(asked.loss, asked.x))]


NO_ANSWER = "the stock tape has no answer"
QUERIES = [
    of_variables,
    of_variables_in_a_nest,
    of_the_input,
    of_anything,
    seeded,
    seeded_twice,
    filled,
    backward,
    backward_each,
    hvp,
    jvp,
    twice,
    jacobian,
    through_updates,
    values,
    program,
]
