"""The variables that a step starts from: read, checked and put back all at once."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, count
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.callbacks.flight._folder import Layout
from retrotape.tf import threads
from retrotape.tf.core import tf, traced
from retrotape.tf.nests import unwrap
from retrotape.tf.replicas import values_of

RESERVED = ("x", "y", "sample_weight", "loss")  # on the tape of a step: parts of the batch, and the loss


def named_variables(variables: Iterable[Any]) -> dict[str, Any]:
    """Return variables by the path that Keras gives them, or their name; each of them once.

    None has the name of a part of the batch, or of the loss.

    >>> list(named_variables([tf.Variable(1.0, name="w"), tf.Variable(2.0, name="w"), tf.Variable(3.0, name="x")]))
    ['w', "w'2", "x'2"]
    """
    found: dict[str, Any] = {}
    seen: set[int] = set()
    for variable in variables:
        inner = unwrap(variable)
        if id(inner) not in seen:
            seen.add(id(inner))
            name = str(getattr(variable, "path", "") or inner.name.partition(":")[0])
            found[unique_name(name, [*RESERVED, *found])] = inner
    return found


def unique_name(name: str, taken: Collection[str]) -> str:
    """Return a name that is not taken: this one, or else with a number.

    >>> unique_name("w", ["w", "w'2"])
    "w'3"
    """
    numbered = (f"{name}'{number}" for number in count(2))
    return next(found for found in chain([name], numbered) if found not in taken)


class Variables:
    """Some variables, by name. A variable of a strategy has one part for each device.

    Args:
      variables: As `named_variables` returns them.
      unchecked: Names of those that may be anything, such as the state of a metric.
      earlier: Fewer variables, of which it is already known whether they were finite at first.
    """

    def __init__(
        self, variables: Mapping[str, Any], unchecked: Collection[str] = (), earlier: Variables | None = None
    ) -> None:
        self.named = dict(variables)
        self.parts = dict(_parts(self.named))
        self._unchecked = tuple(name for name in self.parts if name.partition("/replica_")[0] in unchecked)
        known = {} if earlier is None else earlier.exempt
        unknown = {name: name in self._unchecked or None for name in self.parts}
        self.exempt: dict[str, bool | None] = {**unknown, **{name: known[name] for name in unknown if name in known}}
        parts = list(self.parts.values())

        def read() -> tuple[list[Tensor], Tensor]:
            values = [part.read_value() for part in parts]
            return values, tf.stack([_is_finite(value) for value in values]) if values else tf.ones([0], tf.bool)

        self._read_here, self._read = read, traced(read)

    def read(self) -> tuple[list[Tensor], bool]:
        """Return all values, and whether those are finite that were when they were first read."""
        values, finite = (self._read_here if threads.gone else self._read)()
        for (name, exempt), is_finite in zip(self.exempt.items(), finite.numpy(), strict=True):
            if exempt is None:
                self.exempt[name] = not is_finite  # a bound that begins as infinity, say
        return values, bool(np.all(finite.numpy() | np.array([*self.exempt.values()], bool)))

    def restore(self, values: Sequence[Tensor]) -> None:
        """Assign all values, which `read` has returned."""
        for part, value in zip(self.parts.values(), values, strict=True):
            part.assign(value)

    def layout(self, values: Sequence[Tensor]) -> Layout:
        """Return how values, which `read` has returned, are stored."""
        dtypes, shapes = zip(*((value.dtype.name, tuple(value.shape)) for value in values), strict=True)
        exempt = tuple(name for name, is_exempt in self.exempt.items() if is_exempt and name not in self._unchecked)
        return Layout(tuple(self.parts), dtypes, shapes, self._unchecked, exempt)


def _parts(variables: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, variable in variables.items():
        parts = values_of(variable)
        for number, part in enumerate(parts):
            yield name if len(parts) == 1 else f"{name}/replica_{number}", part


def _is_finite(value: Tensor) -> Tensor:
    if not (value.dtype.is_floating or value.dtype.is_complex):
        return tf.constant(True)
    real = tf.abs(value) if value.dtype.is_complex else value
    return tf.reduce_all(tf.math.is_finite(real))
