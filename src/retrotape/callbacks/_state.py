"""The state of a model, which can be put back to the bit."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras

from retrotape._types import Tensor
from retrotape.tf.core import identity_of, tf
from retrotape.tf.nests import unwrap
from retrotape.tf.replicas import values_of


class State:
    """What variables held at one moment; the copies of a mirrored variable one by one."""

    def __init__(self, variables: Iterable[Any]) -> None:
        parts = {id(part): part for variable in variables for part in values_of(unwrap(variable))}
        self._held: list[tuple[Any, Tensor]] = [(part, part.read_value()) for part in parts.values()]

    @classmethod
    def of_model(cls, model: Any) -> State:
        """Return the state of a model: weights, seeds of random layers, metrics, and `tf.random.Generator`s."""
        metrics = (variable for metric in model.metrics for variable in metric.variables)
        generators = (tf.random.get_global_generator(), *_generators_in(model))
        return cls([*model.variables, *metrics, *(generator.state for generator in generators)])

    def handles(self) -> set[int]:
        """Return the identities of the handles of these variables."""
        return {identity_of(part.handle) for part, _ in self._held}

    def put_back(self) -> None:
        """Assign what was held; running it again does no harm."""
        for part, value in self._held:
            part.assign(value)


def _generators_in(model: Any) -> Iterator[tf.random.Generator]:
    """Yield the random generators in a model and its layers: a tape does not see how an op changes their state."""
    pending, seen = [model], {id(model)}
    while pending:
        for value in _items(pending.pop()):
            if isinstance(value, tf.random.Generator):
                yield value
            elif isinstance(value, (keras.Layer, tf.Module, list, tuple, Mapping)) and id(value) not in seen:
                seen.add(id(value))
                pending.append(value)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else vars(value).values()
