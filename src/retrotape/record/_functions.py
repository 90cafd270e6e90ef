"""What is known of a function before it runs: of a `tf.function`, and of one that goes back."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from retrotape import _tf, _tf_functions
from retrotape._closures import values_in
from retrotape._tf import tf
from retrotape.record._traits import RESOURCE
from retrotape.rules import has_wrong_second


class FunctionTraits(NamedTuple):
    """What a concrete function does besides computing."""

    deterministic: bool  # the same again for the same arguments and variables
    writes: tuple[int, ...]  # inputs that are variables which it may assign
    wrong_second: bool  # contains something whose second derivative TensorFlow has wrong


_known: WeakKeyDictionary[Any, FunctionTraits] = WeakKeyDictionary()

# Operations that count as having state and still compute the same again.
_REPEATABLE = frozenset(
    (
        "NoOp",
        "Assert",
        "PrintV2",
        "StringFormat",
        "Placeholder",
        "VarHandleOp",
        "PartitionedCall",
        "StatefulPartitionedCall",
        "While",
        "If",
        "Case",
    )
)


def function_traits(function: Any) -> FunctionTraits:
    """Return the traits of a concrete function."""
    found = _known.get(function)
    if found is None:
        ops = set(_tf_functions.operations_within(function))
        found = _known[function] = FunctionTraits(
            all(is_repeatable(op) for op in ops),
            _tf_functions.written_inputs(function),
            has_wrong_second(ops),
        )
    return found


def is_repeatable(op: str) -> bool:
    """Say whether an operation computes the same again."""
    definition = _tf.op_def(op)
    if definition is None or not definition.is_stateful or op in _REPEATABLE:
        return True
    # What depends on a variable depends on a recorded value; iterators and tables are not variables.
    takes_resource = any(arg.type == RESOURCE for arg in definition.input_arg)
    return takes_resource and ("Variable" in op or op.startswith("Resource"))


def variables_in(function: Callable) -> list[Any]:
    """Return the variables that a function can see, also in lists, dictionaries and attributes of what it sees."""
    seen: list[Any] = []
    for value in values_in(function):
        inside = vars(value) if hasattr(value, "__dict__") and not isinstance(value, (type, ModuleType)) else value
        seen += [value, *tf.nest.flatten(dict(inside) if isinstance(inside, Mapping) else [inside])]
    unwrapped = [getattr(value, "_value", value) for value in seen]  # a Keras variable holds one
    return [value for value in unwrapped if isinstance(value, tf.Variable)]
