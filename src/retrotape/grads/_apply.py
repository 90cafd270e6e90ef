"""Gradients → a step of an optimizer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

from retrotape._types import Gradient
from retrotape.errors import MissingGradientWarning, NothingToApplyError, UnknownVariableError, grouped
from retrotape.grads._table import name_of
from retrotape.tf import keras_api
from retrotape.tf.core import tf
from retrotape.tf.nests import unwrap

Update = Callable[[Any, Sequence[Gradient], Sequence[Any]], None]


def _update(optimizer: Any, grads: Sequence[Gradient], variables: Sequence[Any]) -> None:
    optimizer.apply(grads, variables)


class _Updater:
    """What runs an update; a part of the library that imports this one may have a faster way."""

    run: Update = staticmethod(_update)


updater = _Updater()


def apply(optimizer: Any, pairs: Sequence[tuple[Gradient, Any]], reason_of: Callable[[Any], str]) -> None:
    """Apply one step. Variables without gradient are left unchanged; a warning says why they have none."""
    there = [(grad, key) for grad, key in pairs if grad is not None]
    for _, key in pairs:
        if isinstance(key, tf.Tensor):
            raise TypeError(f"An optimizer changes variables, and {name_of(key)} is a tensor; use `only(*variables)`.")
        if isinstance(key, str):
            raise TypeError(
                f"An optimizer changes variables, and {str(key)!r} is a name on a tape; give it the "
                "variables of your model: `grads.for_variables(model.trainable_variables).apply(optimizer)`."
            )
    if not there:
        raise NothingToApplyError([name_of(key) for _, key in pairs], [reason_of(key) for _, key in pairs])
    keras_api.refuse_other_backend(optimizer, "optimizer")
    if not hasattr(optimizer, "built") or not hasattr(optimizer, "apply"):
        raise TypeError(
            f"Got {type(optimizer).__name__} as optimizer; expected one of Keras 3: `keras.optimizers.Adam()`. "
            "For another kind: `optimizer.apply_gradients(grads.pairs())`."
        )
    if not optimizer.built:
        with tf.init_scope():
            optimizer.build([key for _, key in pairs])
    own = keras_api.variables_of(optimizer)
    known = {id(unwrap(variable)) for variable in own}
    for _, key in there:
        if id(unwrap(key)) not in known:
            raise UnknownVariableError(name_of(key), [name_of(variable) for variable in own])
    _warn([key for grad, key in pairs if grad is None], len(pairs), reason_of)
    # Repeated rows of a sparse gradient as they are: what `optimizer.apply` makes of them is what users expect.
    updater.run(optimizer, [grad for grad, _ in there], [key for _, key in there])


def _warn(missing: Sequence[Any], count: int, reason_of: Callable[[Any], str]) -> None:
    """Warn about variables without gradient, as Keras does, and say why; Python shows a text once per line."""
    if missing:
        names = grouped([name_of(key) for key in missing], [reason_of(key) for key in missing])
        one = "has no gradient and stays as it is"
        several = "have no gradient and stay as they are"
        warnings.warn(
            f"{len(missing)} of {count} variables {one if len(missing) == 1 else several}: {names}. "
            "If that is intended, leave them out: `grads.without(*grads.missing).apply(optimizer)`.",
            MissingGradientWarning,
            stacklevel=4,
        )
