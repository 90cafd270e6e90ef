"""Static properties of functions, known before they run: of `tf.function`s and of backward functions."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from retrotape.record._traits import RESOURCE, makes_copies
from retrotape.rules import has_wrong_second
from retrotape.tf import core, functions, keras_api, replicas
from retrotape.tf.closures import is_users, values_in
from retrotape.tf.core import attributes_of, tf
from retrotape.tf.nests import unwrap


class FunctionTraits(NamedTuple):
    """What a concrete function does besides computing."""

    deterministic: bool  # the same result for the same arguments and variables
    writes: tuple[int, ...]  # indices of inputs that are variables it may assign
    wrong_second: bool  # contains an op whose second derivative is wrong in TensorFlow
    scatters: bool  # reads or updates slices of variables
    recomputes: bool  # contains a `tf.recompute_grad`
    compiled: bool  # with XLA
    compiled_loop_inside: bool  # in a function that it calls
    communicates: bool  # with other replicas or processes
    op_by_op: bool  # must be run op by op, for the reasons in `_runs_op_by_op`


_known: WeakKeyDictionary[Any, FunctionTraits] = WeakKeyDictionary()

# Ops that are marked stateful but give the same result when rerun.
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
        ops = set(functions.operations_within(function))
        communicates = any(op.startswith("Collective") for op in ops)
        found = _known[function] = FunctionTraits(
            all(is_repeatable(op) for op in ops),
            core.written_inputs(function),
            has_wrong_second(ops),
            any(makes_copies(op) for op in ops),
            any(map(core.is_recompute, functions.custom_rules(function))),
            functions.is_compiled(function),
            functions.has_compiled_loop_inside(function),
            communicates,
            _runs_op_by_op(function, ops, communicates),
        )
    return found


def _runs_op_by_op(function: Any, ops: set[str], communicates: bool) -> bool:
    """Return whether a function has to be run op by op to be differentiated.

    Python code inside has a gradient only in eager mode. Replicas that communicate inside are recorded together; in a
    later query, a collective would wait for replicas that do not take part in it.
    """
    if not all(map(_runs_standalone, ops)):
        return False
    rules = functions.custom_rules(function)
    # TensorFlow cannot differentiate the reduction of replicas on one thread: the function is recomputed, if it can be.
    if not all(map(is_repeatable, ops)) and any(map(replicas.is_elsewhere, rules)):
        return True
    return communicates or ("EagerPyFunc" in ops and not rules)


_LOOPS = frozenset(("While", "StatelessWhile"))
_WITHOUT_EFFECT = frozenset(
    ("NoOp", "Placeholder", "PartitionedCall", "StatefulPartitionedCall", "If", "Case", *_LOOPS)
)


def is_pure_loop(function: Any) -> bool:
    """Return whether a function has a loop, results of known shapes, and no effects, variables or random numbers."""
    ops = set(functions.operations_within(function))
    if _LOOPS.isdisjoint(ops) or any(is_stateful(op) for op in ops - _WITHOUT_EFFECT):
        return False
    shapes = [tensor.shape for tensor in functions.graph_of(function).outputs]
    inputs = functions.graph_of(function).inputs
    return (
        all(shape.is_fully_defined() for shape in shapes)
        and all(tensor.dtype not in (tf.resource, tf.variant) for tensor in inputs)
        and not functions.is_compiled(function)
    )


def is_stateful(op: str) -> bool:
    """Return whether an op is marked as having state."""
    definition = core.op_def(op)
    return definition is not None and definition.is_stateful


def is_repeatable(op: str) -> bool:
    """Return whether an op gives the same result when rerun."""
    definition = core.op_def(op)
    if definition is None or not definition.is_stateful or op in _REPEATABLE:
        return True
    # An op on a variable depends on a recorded value. Iterators and tables are not variables.
    takes_resource = any(arg.type == RESOURCE for arg in definition.input_arg)
    return takes_resource and ("Variable" in op or op.startswith("Resource"))


# Ops that take functions and that `run_op_by_op` can run.
_CALLERS = frozenset(("PartitionedCall", "If", "Case", "While"))
_CALLERS |= {"StatefulPartitionedCall", "StatelessIf", "StatelessCase", "StatelessWhile"}


def _runs_standalone(op: str) -> bool:
    """Return whether an op of a function can be run outside the function."""
    definition = core.op_def(op)
    return definition is None or op in _CALLERS or all("func" not in attr.type for attr in definition.attr)


_keras_variables: WeakKeyDictionary[Any, list[Any]] = WeakKeyDictionary()


def keras_variables_in(function: Any) -> list[Any]:
    """Return the Keras variables that a concrete function, which is about to run, reads.

    A function that was traced before recording began reads the `tf.Variable`s inside them directly.
    """
    found = _keras_variables.get(function)
    if found is None:
        reads = {id(variable) for variable in functions.graph_of(function).variables}
        around = keras_api.variables_around() if reads else ()
        found = _keras_variables[function] = [owner for owner in around if id(unwrap(owner)) in reads]
    return found


def variables_in(function: Callable) -> list[Any]:
    """Return the variables reachable from a function's scope, also through containers and attributes."""
    found: dict[int, Any] = {}
    for value in values_in(function):
        attributes = {} if isinstance(value, (type, ModuleType)) else attributes_of(value)
        for item in (value, *attributes.values()):
            # Objects of users may raise whatever they like where they are looked at: they hold none that we could find.
            with suppress(Exception):
                _collect_variables(item, found, _DEPTH)
    return list(found.values())


_DEPTH = 4  # nested containers
_MANY = 64  # attributes of an object that are inspected


def _collect_variables(value: Any, found: dict[int, Any], depth: int) -> None:
    """Add the variables that `value` is, contains or owns."""
    inner = unwrap(value)
    if isinstance(inner, tf.Variable):
        found[id(inner)] = inner
    elif depth == 0 or isinstance(value, (str, bytes, type, ModuleType)):
        return
    elif isinstance(value, Mapping):
        for item in list(value.values()):
            _collect_variables(item, found, depth - 1)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for item in list(value):
            _collect_variables(item, found, depth - 1)
    elif isinstance(value, tf.Module) or _is_layer(value):
        for item in value.variables:
            _collect_variables(item, found, depth - 1)
    elif is_users(type(value)):
        for item in list(attributes_of(value).values())[:_MANY]:
            _collect_variables(item, found, depth - 1)


def _is_layer(value: Any) -> bool:
    keras = sys.modules.get("keras")
    return keras is not None and isinstance(value, getattr(keras, "Layer", ()))
