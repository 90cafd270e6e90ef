"""Gradients that are keyed by names on tapes, where there are no variables to be the keys."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from retrotape._types import Gradient
from retrotape.grads import Gradients, name_of
from retrotape.tf.core import tf

Pairs = Iterable[tuple[Any, Gradient]]


class NamedGradients(Gradients):
    """`Gradients` whose keys are names on a tape: `grads["dense/kernel"]`; farms make it."""

    __slots__ = ()

    def _like(self, gradients: Pairs) -> Any:
        return NamedGradients(gradients, self.reasons())

    def __add__(self, other: Gradients) -> Gradients:
        found = super().__add__(other)
        return NamedGradients(found.items(), found.reasons()) if isinstance(found, Gradients) else found

    def for_variables(self, variables: Iterable[Any]) -> Gradients:
        """Return the gradients of these variables, in their dtypes, as `apply` needs them.

        Args:
          variables: Variables of a model; each is found by its name, which for Keras is its path.

        Raises:
          UnknownSourceError: If a name is not among the keys.

        >>> import os, tempfile
        >>> w = tf.Variable(2.0, name="w")
        >>> with rt.Tape() as tape:
        ...     loss = w ** 3
        >>> folder = tempfile.mkdtemp()
        >>> _ = tape.save(os.path.join(folder, "cube.tape"), {"loss": loss})
        >>> total = rt.farm.backward(os.path.join(folder, "*.tape"), "loss")
        >>> total.for_variables([w]).apply(tf.keras.optimizers.SGD(0.125))
        >>> float(w)
        0.5
        """
        pairs, reasons = [], []
        for variable in variables:
            name = name_of(variable)
            self._known(name)  # raises
            grad = self.get(name)
            pairs.append((variable, None if grad is None else _cast(grad, variable.dtype)))
            reasons.append((variable, self.why(name) if grad is None else ""))
        return Gradients(pairs, reasons)


def _cast(grad: Gradient, dtype: Any) -> Gradient:
    dtype = tf.as_dtype(dtype)
    if isinstance(grad, tf.IndexedSlices):
        return tf.IndexedSlices(tf.cast(grad.values, dtype), grad.indices, grad.dense_shape)
    return tf.cast(grad, dtype)
