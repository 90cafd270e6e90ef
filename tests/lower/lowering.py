"""A function of tensors as a computation, and lowered."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from helpers.warm import assert_same
from retrotape.lower._lower import Lowered, lower
from retrotape.lower._observed import Computation, Observation
from retrotape.lower._simplify import Simplified, Simplifier
from retrotape.record import Recorder

Function = Callable[..., list[Any]]


def no_feeds(var: int) -> tf.Tensor:
    """Return the value of a var of the trace; there are none."""
    raise AssertionError(var)


def observed(function: Function, *inputs: tf.Tensor) -> Computation:
    """Return what a function of its inputs alone runs, as data."""
    observation = Observation(Recorder(), inputs)
    return observation.computation(observation.run(lambda: function(*inputs)))


def simplified(function: Function, *inputs: tf.Tensor) -> Simplified:
    return Simplifier(observed(function, *inputs), {}).run()


def ops(function: Function, *inputs: tf.Tensor) -> list[str]:
    """Return the ops that remain to run each time."""
    return [eqn.op for eqn in simplified(function, *inputs).eqns]


def lowered(function: Function, *inputs: tf.Tensor) -> Lowered:
    return lower(observed(function, *inputs), no_feeds, specialize=True)


def assert_lowers(function: Function, inputs: Sequence[tf.Tensor], *others: Sequence[tf.Tensor]) -> Lowered:
    """Lower a function on inputs; check that it gives the bits of the function there and on other inputs."""
    found = lowered(function, *inputs)
    for given in (inputs, *others):
        assert_same(found(given, ()), function(*given))
    return found
