"""What Keras keeps in its objects: what a step may depend on, and what comes and goes."""

from __future__ import annotations

from inspect import isfunction, ismethod
from typing import Any

from retrotape.playback._code import is_users
from retrotape.playback._names import UPDATES
from retrotape.playback._values import ABSENT, CONTAINERS, holds_variable, is_immutable, parts_of

# Attributes of layers and optimizers that no op depends on.
UNIMPORTANT = frozenset(
    (
        UPDATES,
        "_called",
        "_loss_ids",
        "_losses",
        "history",
        "predict_function",
        "stop_training",
        "test_function",
        "train_function",
    )
)
# Attributes of variables that layers and optimizers of Keras read.
OF_VARIABLES = frozenset(
    ("_autocast", "_constraint", "_overwrite_with_gradient", "_regularizer", "_trainable", "_value")
)


def is_keras(kind: type) -> bool:
    """Return whether a class is one of Keras', or derived from one."""
    return any(base.__module__.startswith("keras.") for base in kind.__mro__)


def is_of_optimizers(kind: type) -> bool:
    """Return whether a class is one of an optimizer or a schedule: tensors that these keep are settings."""
    return any(base.__module__.startswith("keras.src.optimizers.") for base in kind.__mro__)


def is_settled(value: Any, depth: int = 4) -> bool:
    """Return whether a container of Keras has settings, variables and layers in it: not tensors, which come and go."""
    parts = parts_of(value) if depth else [ABSENT]
    return all(
        is_settled(part, depth - 1)
        if isinstance(part, CONTAINERS) and not is_immutable(part)
        else is_immutable(part) or holds_variable(part) or leads_on(part)
        for part in parts
    )


def leads_on(value: Any) -> bool:
    """Return whether what an object of Keras refers to can contain more of them, or user code."""
    kind = type(value)
    is_part = is_keras(kind) or is_users(kind) or isfunction(value) or ismethod(value)
    return (
        is_part
        and not isinstance(value, CONTAINERS)
        and not hasattr(kind, "__next__")
        and not hasattr(kind, "__iter__")
    )
