"""Random numbers of methods: drawn apart from the formula that uses them."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._replicas import replicas
from retrotape.aggregate._solve import Problem, Solution
from retrotape.aggregate._state import check_place, make_variable
from retrotape.aggregate._weighting import Weighting
from retrotape.tf.core import tf


@dataclass(frozen=True, kw_only=True)
class Randomized:
    """The part of a random method that draws. All replicas of a strategy draw the same.

    Args:
      seed: Makes a sequence of draws that is the same in each run; its place in it is a variable, in `variables`. None
        takes the random ops of TensorFlow, which `tf.random.set_seed` seeds.
    """

    seed: int | None = None

    def __post_init__(self) -> None:
        check_seed(self.seed)

    @property
    def variables(self) -> tuple[Any, ...]:
        """How many draws were made, as a variable; nothing before the first one, or without a seed."""
        counter = vars(self).get("_counter")
        return () if counter is None else (counter,)

    def _next_seed(self) -> Tensor:
        return fresh_seed() if self.seed is None else counted_seed(self.seed, self._draws())

    def _draws(self) -> Any:
        counter = vars(self).get("_counter")
        if counter is None:  # not an attribute of the dataclass: methods with equal parameters are equal
            counter = vars(self).setdefault("_counter", make_variable(np.zeros([], np.int64), "draws"))
        check_place(counter, type(self).__name__)
        return counter


class RandomWeighting(Randomized, Weighting):
    """A method that gives each loss a weight which depends on random numbers."""

    @abstractmethod
    def draw(self, seed: Tensor, size: int) -> Tensor:
        """Return the random numbers for some losses."""

    @abstractmethod
    def weigh(self, problem: Problem, drawn: Tensor) -> Solution:
        """Return the weights that follow from random numbers."""

    def solve(self, problem: Problem) -> Solution:
        """Return the weights."""
        assert problem.seed is not None
        return self.weigh(problem, self.draw(problem.seed, problem.size))


def check_seed(seed: Any) -> None:
    """Raise if this is no seed."""
    if seed is not None and not isinstance(seed, int):
        raise TypeError(f"seed= takes an integer or None, got {seed!r}.")


def fresh_seed() -> Tensor:
    """Return a seed from TensorFlow's random ops, the same in all replicas."""
    kind = tf.int64
    seed = tf.random.uniform([2], kind.min, kind.max, kind)
    if replicas() > 1:
        return tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, seed)
    return seed


def counted_seed(seed: int, counter: Any) -> Tensor:
    """Return the next seed of a sequence."""
    place = counter.read_value()
    counter.assign_add(tf.ones([], tf.int64))
    return tf.stack([tf.constant(seed, tf.int64), place])


def uniform(seed: Tensor, shape: Any, dtype: Any = tf.float64) -> Tensor:
    """Return numbers between zero and one; XLA draws others from the same seed."""
    return tf.random.stateless_uniform(shape, seed, dtype=dtype, alg="philox")


def orders(seed: Tensor, size: int) -> Tensor:
    """Return a random permutation for each loss, as the rows of a matrix."""
    return tf.argsort(uniform(seed, [size, size]), axis=1, stable=True)
