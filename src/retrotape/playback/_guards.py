"""Whether Python state is what it was when a step was recorded."""

from __future__ import annotations

import abc
import decimal
import warnings
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from retrotape.python import Entry, Snapshot, Walk, read_call, read_item
from retrotape.tf import core, keras_api, summaries
from retrotape.tf.core import tf


class State(NamedTuple):
    """The Python state that a recording depends on.

    Attributes:
      entries: Values, by where they are.
      tensors: The tensors that it refers to, by `id`.
    """

    entries: dict[tuple[Any, ...], Entry]
    tensors: dict[int, Any]


class StateGuard:
    """Compares Python state with what it was.

    Args:
      states: The state, as the calls of one variant have found it.

    Attributes:
      tensors: The tensors that it refers to, by `id`.
    """

    def __init__(self, states: Sequence[State]) -> None:
        entries = {key: entry for one in states for key, entry in one.entries.items()}
        self.tensors = {key: tensor for one in states for key, tensor in one.tensors.items()}
        self.changed = Snapshot(list(entries.values())).changed


def note_settings(walk: Walk) -> None:
    """Note the settings of libraries that any code depends on."""
    for space, name in keras_api.settings():
        _note_setting(walk, space, name, "Keras")
    for function, label in _TOLD.items():
        walk.note(read_call, function, None, label, owner=None, of_library=True)


def note_rare_settings(walk: Walk) -> None:
    """Note which warnings are errors, and which classes are registered with abstract ones, if code may ask for that."""
    if walk.arrays or any(map(walk.has_met, (np, warnings, warnings.warn))):
        walk.note(read_call, _errors, None, "which warnings are errors", owner=None, of_library=True)
    if walk.sees_all or not walk.names.isdisjoint(("isinstance", "issubclass")):
        label = "which classes are registered with abstract ones"
        walk.note(read_call, abc.get_cache_token, None, label, owner=None, of_library=True)


def note_random_seed(walk: Walk) -> None:
    """Note the seed of TensorFlow's random ops."""
    _note_setting(walk, *core.seed_setting(), "TensorFlow")


def note_summaries(walk: Walk) -> None:
    """Note the settings of summaries."""
    for space, name in summaries.settings():
        _note_setting(walk, space, name, "tf.summary")


def _note_setting(walk: Walk, space: Any, name: str, owner: str) -> None:
    label = f"the setting {name.strip('_').lower()!r} of {owner}"
    walk.note(read_item, space, name, label, owner=None, of_library=True)


def _floating_point_errors() -> tuple[Any, ...]:
    return tuple(np.geterr().values())


def _decimal_context() -> tuple[Any, ...]:
    own = decimal.getcontext()
    return own.prec, own.rounding, own.Emin, own.Emax, own.capitals, own.clamp


def _errors() -> tuple[Any, ...]:
    return tuple(one for one in warnings.filters if one[0] == "error")


_TOLD = {
    tf.config.functions_run_eagerly: "the setting 'run_functions_eagerly' of TensorFlow",
    _decimal_context: "the context of `decimal`",
    _floating_point_errors: "how NumPy handles errors of floating point numbers",
}
