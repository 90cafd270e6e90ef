"""The state of a model, which can be put back to the bit."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

import keras
import numpy as np

from retrotape._types import Tensor
from retrotape.diagnose.tensors import value_of
from retrotape.tape.live import Tape
from retrotape.tf.core import identity_of, tf
from retrotape.tf.nests import unwrap
from retrotape.tf.replicas import values_of

_GENERATORS = (tf.random.Generator, random.Random, np.random.Generator, np.random.RandomState)


class State:
    """What variables held at one moment; the copies of a mirrored variable one by one.

    Args:
      variables: The variables.
      generators: Generators of Python and NumPy, whose state is held too.
    """

    def __init__(self, variables: Iterable[Any], generators: Iterable[Any] = ()) -> None:
        parts = {id(part): part for variable in variables for part in values_of(unwrap(variable))}
        self._held: list[tuple[Any, Tensor]] = [(part, part.read_value()) for part in parts.values()]
        self._resets = [_reset_of(generator) for generator in generators]

    @classmethod
    def of_model(cls, model: Any, others: Iterable[Any] = ()) -> State:
        """Return the state of a model: weights, seeds of random layers, metrics, random generators; other variables."""
        metrics = (variable for metric in model.metrics for variable in metric.variables)
        generators = [found for found in _generators_in(model) if not isinstance(found, tf.random.Generator)]
        return cls([*model.variables, *metrics, *generator_states(model), *others], generators)

    def handles(self) -> set[int]:
        """Return the identities of the handles of these variables."""
        return {identity_of(part.handle) for part, _ in self._held}

    def put_back(self) -> None:
        """Assign what was held; running it again does no harm."""
        for part, value in self._held:
            part.assign(value)
        for reset in self._resets:
            reset()


def generator_states(model: Any) -> list[Any]:
    """Return the variables of `tf.random.Generator`s: the global one, and those in a model and its layers.

    They have to be found beforehand, since a tape does not see how an op changes their state.
    """
    own = [found.state for found in _generators_in(model) if isinstance(found, tf.random.Generator)]
    try:
        return [tf.random.get_global_generator().state, *own]
    except RuntimeError:  # `enable_op_determinism` allows none unless the user has set it: there is none
        return own


def _generators_in(model: Any) -> Iterator[Any]:
    """Yield the random generators in a model and its layers, of TensorFlow, NumPy and Python."""
    pending, seen = [model], {id(model)}
    while pending:
        for value in _items(pending.pop()):
            if isinstance(value, _GENERATORS):
                yield value
            elif isinstance(value, (keras.Layer, tf.Module, list, tuple, Mapping)) and id(value) not in seen:
                seen.add(id(value))
                pending.append(value)


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else vars(value).values()


def _reset_of(generator: Any) -> Callable[[], None]:
    """Return a function that puts a generator of Python or NumPy back where it is now."""
    if isinstance(generator, random.Random):
        return partial(generator.setstate, generator.getstate())
    if isinstance(generator, np.random.RandomState):
        return partial(generator.set_state, generator.get_state())
    return partial(setattr, generator.bit_generator, "state", generator.bit_generator.state)


def undo(tape: Tape, known: Collection[int], who: str) -> None:
    """Assign what each variable held before the block that was assigned in it, those outside of the model too.

    Args:
      tape: The tape of the block.
      known: The identities of the handles of variables that are put back anyway.
      who: The callback, for the warning about a variable that cannot be put back; all others are, before it.
    """
    if tape._session is None:
        return
    trace, lost = tape._session.trace, []
    for key, history in trace.facts.histories.items():
        variable = trace.variables.get(key)
        if key in known or len(history.versions) == 1 or variable is None:
            continue
        if history.versions[0] in trace.values:
            variable.assign(value_of(trace, history.versions[0]))
        else:
            lost.append(repr(variable.name))
    if lost:
        warnings.warn(
            f"{who} cannot put back {', '.join(lost)}, which an op changed without reading it first: the training goes "
            "on with other numbers from it than it would alone. If it is the state of a `tf.random.Generator`, make "
            "that an attribute of its layer.",
            stacklevel=2,
        )
