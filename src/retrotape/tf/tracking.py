"""The objects by which TensorFlow notes what a module holds: modules, and containers wrapped for them."""

from __future__ import annotations

from typing import Any

from retrotape.tf.core import tf

_Tracking = tf.__internal__.tracking.AutoTrackable
_CONTAINERS = "tensorflow.python.trackable.data_structures"


def is_tracking(kind: type) -> bool:
    """Return whether objects of a class note what is assigned to their attributes, as those of `tf.Module` do."""
    return issubclass(kind, _Tracking)


def wrapped_by(value: Any) -> Any:
    """Return the container that TensorFlow has wrapped, as it does with what is assigned to an attribute; else None.

    >>> module = tf.Module()
    >>> module.rates = {"low": 0.1}
    >>> type(wrapped_by(module.rates))
    <class 'dict'>
    """
    kind = type(value)
    if kind.__module__ != _CONTAINERS:
        return None
    for base in kind.__mro__:  # of a proxy, which stands for the container in every other way
        if "__wrapped__" in vars(base):
            return vars(base)["__wrapped__"].__get__(value)
    return vars(value).get("_storage")
