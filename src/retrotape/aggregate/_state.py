"""State of methods: variables that are made at the first use, inside a tf.function too."""

from __future__ import annotations

from abc import ABCMeta, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np

from retrotape._types import Tensor
from retrotape.aggregate._replicas import replicas
from retrotape.errors import MethodStateError
from retrotape.tf.core import DistributedVariable, tf


def make_variable(value: np.ndarray, name: str, trainable: bool = False) -> Any:
    """Return a new variable, outside of any graph; replicas have one together, and all of them assign the same."""
    with tf.init_scope():
        return tf.Variable(value, trainable=trainable, name=name, aggregation=tf.VariableAggregation.ONLY_FIRST_REPLICA)


def check_place(variable: Any, method: str) -> None:
    """Raise if replicas share a variable that does not belong to their strategy: each would change it.

    Raises:
      MethodStateError: If it was made outside of the strategy.
    """
    if replicas() > 1 and not isinstance(variable, DistributedVariable):
        raise MethodStateError(
            f"The state of this {method} was made outside of the strategy whose replicas use it. Make a new one, which "
            "is first used there, or make and build it inside of `with strategy.scope():`."
        )


class _Meta(ABCMeta, type(tf.Module)):  # type: ignore[misc]
    """What abstract classes and modules of TensorFlow have both."""


class Stateful(tf.Module, metaclass=_Meta):
    """The part of a method that has state: variables, which `tf.train.Checkpoint(method=method)` saves.

    They are made at the first use. A method with state is equal to itself only.
    """

    trained: ClassVar[tuple[str, ...]] = ()  # the names of variables that an optimizer changes

    def __post_init__(self) -> None:
        super().__init__()

    @abstractmethod
    def start(self, size: int) -> Mapping[str, np.ndarray]:
        """Return the values that variables for some losses start with, by name."""

    def build(self, size: int) -> tuple[Any, ...]:
        """Return the variables for some losses; make them if there are none.

        Raises:
          MethodStateError: If they were made for another number of losses, or in another place.
        """
        if not self.is_built:
            for name, value in self.start(size).items():
                setattr(self, name, make_variable(value, name, trainable=name in self.trained))
            self._losses, self._names = size, tuple(self.start(size))
        if self._losses != size:
            raise MethodStateError(
                f"This {type(self).__name__} has state for {self._losses} losses, got {size}. Make a new one for them."
            )
        found = tuple(getattr(self, name) for name in self._names)
        check_place(found[0], type(self).__name__)
        return found

    @property
    def is_built(self) -> bool:
        """Whether there are variables."""
        return "_losses" in vars(self)

    def reset(self) -> None:
        """Start again."""
        if self.is_built:
            for name, value in self.start(self._losses).items():
                getattr(self, name).assign(value)

    def _key(self, *kind: Hashable) -> Hashable | None:
        if not type(self).__module__.startswith(__package__ + "."):
            return None
        plain = [(name, value) for name, value in vars(self).items() if isinstance(value, (bool, int, float, str))]
        return type(self), *(getattr(self, one.name) for one in fields(self)), *sorted(plain), *kind

    def _read(self, size: int) -> tuple[Tensor, ...]:
        return tuple(variable.read_value() for variable in self.build(size))

    def _write(self, state: Sequence[Tensor]) -> None:
        for name, value in zip(self._names, state, strict=True):
            if name not in self.trained:
                getattr(self, name).assign(value)
