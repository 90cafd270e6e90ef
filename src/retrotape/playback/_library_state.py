"""What TensorFlow, Keras and this library keep in their objects: what a step may depend on, and what comes and goes."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from inspect import getattr_static, isfunction, ismethod
from types import ModuleType
from typing import Any

import numpy as np

from retrotape.playback._names import UPDATES
from retrotape.python import (
    ABSENT,
    USER,
    Namespace,
    Walk,
    allow_atoms,
    attributes,
    base_of,
    container,
    instance,
    is_atom,
    of_class,
    parts_of,
    read_content,
    read_item,
    read_size,
    read_values,
    space_of,
)
from retrotape.tf.core import EagerTensor, attributes_of, tf
from retrotape.tf.nests import is_variable
from retrotape.tf.tracking import is_tracking, wrapped_by

allow_atoms(tf.DType, tf.TensorShape, tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)

# Attributes of layers and optimizers that no op depends on; they count where user code names them.
_UNIMPORTANT = frozenset(
    (
        UPDATES,
        "_called",
        "_loss_ids",
        "_losses",
        "_tracked",
        "history",
        "predict_function",
        "stop_training",
        "test_function",
        "train_function",
    )
)
_SETTINGS = frozenset(("_fn_kwargs",))  # of losses and metrics that Keras makes of functions
# Classes of Keras whose objects describe a model, or note what it holds: eager code does not run by them.
_DESCRIBING = frozenset(
    f"keras.src.{name}"
    for name in (
        "backend.common.keras_tensor.KerasTensor",
        "ops.node.Node",
        "ops.symbolic_arguments.SymbolicArguments",
        "utils.tracking.Tracker",
    )
)
# Attributes of variables that layers and optimizers of Keras read.
_OF_VARIABLES = frozenset(
    ("_autocast", "_constraint", "_overwrite_with_gradient", "_regularizer", "_trainable", "_value")
)
# What TensorFlow and Keras keep in tensors, variables, functions and datasets, besides values that count elsewhere.
_OF_LIBRARIES = frozenset(
    """
    _cached_value _handle _handle_data _keras_history _keras_mask _lock _tf_decorator _value _variant_tensor
    _variant_tensor_attr
    """.split()  # noqa: SIM905
)
# Parts of TensorFlow whose objects depend on Python state only by functions that run, or by ops.
_WITHOUT_STATE = tuple(
    f"tensorflow.python.{name}"
    for name in """
    data.ops eager.polymorphic_function framework.dtypes framework.indexed_slices framework.sparse_tensor
    framework.tensor ops.custom_gradient ops.data_flow_ops ops.handle_data ops.lookup_ops ops.ragged
    ops.summary_ops_v2 saved_model util.tf_decorator
    """.split()  # noqa: SIM905
)


class LibraryState:
    """How a walk follows the objects of TensorFlow, Keras and this library."""

    def __init__(self) -> None:
        self._tensors: list[tuple[Any, Any]] = []
        self._sized: list[tuple[Any, Any, str]] = []

    def visit(self, walk: Walk, value: Any, kind: type, label: str) -> bool:
        """Note what a value refers to, if it is one of these libraries; return whether it is."""
        if kind is EagerTensor:
            self._named(walk, value, label)
            return True
        libraries = _libraries(kind)
        if not libraries or issubclass(kind, ModuleType):
            return False
        if holds_variable(value):
            self._variable(walk, value, label)
        elif "keras" in libraries:
            self._keras(walk, value, kind, label)
        elif kind.__module__.startswith("retrotape"):
            _of_ours(walk, value, kind, label)
        elif "tensorflow" in libraries:
            return _of_tensorflow(walk, value, kind, label)
        else:
            return False
        return True

    def on_reference(self, value: Any, owner: Any) -> None:
        """Something refers to a value."""
        if type(value) is EagerTensor:
            self._tensors.append((value, owner))

    def tensors(self, walk: Walk) -> dict[int, Any]:
        """Return the tensors that something refers to which is older than the run, by `id`."""
        return {id(one): one for one, owner in self._tensors if owner is None or not walk.is_new(owner)}

    def finish(self, walk: Walk) -> None:
        """Note how many attributes objects have: a new one may replace a method."""
        for value, space, label in self._sized:
            walk.note(read_size, space, None, f"which attributes {label} has", owner=value, of_library=True)

    def _named(self, walk: Walk, value: Any, label: str) -> None:
        """Note the attributes that user code has given to a tensor or a variable, and a mask that Keras has."""
        space = attributes_of(value)
        walk.open(Namespace(value, space, label, _name, skipped=lambda name: name.startswith("_")))
        _open_named(walk, value, label, lambda name: not name.startswith("_") or name in _OF_LIBRARIES, space)
        if "_keras_mask" in space:
            walk.note(read_item, space, "_keras_mask", f"the mask of {label}", owner=value, of_library=True)

    def _variable(self, walk: Walk, value: Any, label: str) -> None:
        self._named(walk, value, label)
        space = vars(value)
        self._sized.append((value, space, label))
        for name in _OF_VARIABLES & space.keys():  # a constraint may have attributes that change
            follow = _leads_on(space[name])
            walk.note(read_item, space, name, f"{label}.{name.strip('_')}", owner=value, follow=follow)

    def _keras(self, walk: Walk, value: Any, kind: type, label: str) -> None:
        is_users, solid = of_class(kind) == USER, base_of(kind)
        if not is_users and f"{kind.__module__}.{kind.__qualname__}" in _DESCRIBING:
            return
        if solid is not None:  # a list, or another container, as Keras keeps it
            container(walk, value, solid, label)
        if is_users:
            walk.follow(kind, kind.__name__)
        for base in kind.__mro__:
            if base.__module__.startswith("keras."):
                walk.note(read_values, vars(base), None, "a class of Keras", owner=base, of_library=True)
        space = space_of(walk, value, kind, label)
        if space is None:
            return
        self._sized.append((value, space, label))
        own = {name for base in kind.__mro__ if of_class(base) == USER for name in vars(base)}
        own = {name for name in own if not name.startswith("__")}
        namespace = Namespace(value, space, label, _name_of_keras, own, is_whole=False)
        if is_users:
            walk.open(namespace)
        for name in namespace.before:
            if name in _SETTINGS:
                _name(walk, namespace, name)
            elif name not in _UNIMPORTANT:
                _of_keras(walk, namespace, name, kind)
        if not is_users:
            walk.open(namespace)


def _name(walk: Walk, namespace: Namespace, name: str) -> None:
    label, value = f"{namespace.label}.{name}", namespace.before[name]
    walk.note(read_item, namespace.space, name, label, owner=namespace.owner, value=value, follow=True)


def _name_of_keras(walk: Walk, namespace: Namespace, name: str) -> None:
    """Note an attribute that user code names, and what it contains, also if Keras keeps it for itself."""
    is_named = name in walk.names and name != UPDATES
    if is_named or of_class(type(namespace.owner)) == USER or not (name in _UNIMPORTANT or name.startswith("_")):
        _name(walk, namespace, name)
        if is_named:  # it may be noted already, without what it contains
            walk.follow(namespace.before[name], f"{namespace.label}.{name}")


def _open_named(
    walk: Walk, value: Any, label: str, skipped: Callable[[str], bool], space: dict[str, Any] | None = None
) -> None:
    """Note the attributes that user code names of an object whose others do not count."""
    space = getattr(value, "__dict__", None) if space is None else space
    if isinstance(space, dict):
        namespace = Namespace(value, space, label, _name_of_library, is_whole=False, may_miss=True, skipped=skipped)
        walk.open(namespace)


def _name_of_library(walk: Walk, namespace: Namespace, name: str) -> None:
    if name in walk.names:
        value = namespace.before[name]
        follow = not _is_closed(value)
        label = f"{namespace.label}.{name}"
        walk.note(read_item, namespace.space, name, label, owner=namespace.owner, value=value, follow=follow)


def _is_closed(value: Any) -> bool:
    """Return whether a value is an object of TensorFlow of which nothing counts but which one it is."""
    kind: Any = type(value)
    if kind is EagerTensor or holds_variable(value) or is_tracking(kind) or wrapped_by(value) is not None:
        return False
    return str(kind.__module__).startswith("tensorflow")


@functools.lru_cache(1024)
def _libraries(kind: Any) -> frozenset[str]:
    tops = {base.__module__.partition(".")[0] for base in kind.__mro__ if isinstance(base.__module__, str)}
    return frozenset(tops & {"tensorflow", "keras", "retrotape"})


def holds_variable(value: Any) -> bool:
    """Return whether a value is a variable, of TensorFlow or Keras, without running user code."""
    if type(value) is EagerTensor:  # whose attributes only `attributes_of` may ask for
        return False
    return is_variable(value) or is_variable(getattr_static(value, "_value", None))


def _of_ours(walk: Walk, value: Any, kind: type, label: str) -> None:
    """Note what counts of an object of this library: of a compiled step its function, of a method its parameters."""
    if kind.__module__.startswith("retrotape.aggregate") and not issubclass(kind, type):
        instance(walk, value, kind, label, skipped=_is_bookkeeping)
    elif hasattr(kind, "why_not_compiled"):
        names = [name for name in vars(value) if not name.startswith("_") or name == "__wrapped__"]
        for name in names:
            walk.note(read_item, vars(value), name, f"{label}.{name}", owner=value, follow=True)


def _of_tensorflow(walk: Walk, value: Any, kind: type, label: str) -> bool:
    if not kind.__module__.startswith("tensorflow"):
        if is_tracking(kind):
            instance(walk, value, kind, label, skipped=_is_bookkeeping)
            _open_named(walk, value, label, lambda name: not _is_bookkeeping(name))
        return is_tracking(kind)
    inner = wrapped_by(value)
    if inner is not None:
        walk.follow(inner, label)
    elif is_tracking(kind):
        attributes(walk, value, kind, label, every=True, skipped=_is_bookkeeping)
        _open_named(walk, value, label, lambda name: not _is_bookkeeping(name))
    elif getattr(value, "python_function", None) is not None:
        walk.follow(value.python_function, label)
        _open_named(walk, value, label, _OF_LIBRARIES.__contains__)
    elif kind.__module__.startswith(_WITHOUT_STATE):
        _open_named(walk, value, label, _OF_LIBRARIES.__contains__)
    else:
        what = f"an object of type {kind.__module__}.{kind.__qualname__}"
        walk.refuse(value, label, f"{what}, whose state cannot be compared: pass what is read from it as an argument")
    return True


def _is_bookkeeping(name: str) -> bool:
    """Return whether an attribute is what TensorFlow notes about a module."""
    return name in ("_name_scope", "_scope_name") or name.startswith(("_self_", "_tf_api", "_setattr_tracking"))


# ------------------------------------------------------------------ what Keras keeps for itself


def _of_keras(walk: Walk, namespace: Namespace, name: str, kind: type) -> None:
    """Note an attribute that Keras uses: a setting, a function, a variable, a layer."""
    value, label = namespace.before[name], f"{namespace.label}.{name}"
    follow = False
    if _is_container(value):
        if is_settled(value) or _is_of_optimizers(kind):
            _note_contents(walk, value, label)
        else:
            _follow_parts(walk, value, label)
            return
        _follow_parts(walk, value, label)
    elif isinstance(value, (np.ndarray, functools.partial, re.Pattern)) or type(value) is EagerTensor:
        follow = True
    elif not (is_atom(type(value)) or holds_variable(value) or _leads_on(value)):
        return
    else:
        follow = _leads_on(value)
    space, owner = namespace.space, namespace.owner
    walk.note(read_item, space, name, label, owner=owner, value=value, of_library=True, follow=follow)


def _is_container(value: Any) -> bool:
    return base_of(type(value)) is not None and of_class(type(value)) != USER


def is_settled(value: Any, depth: int = 4) -> bool:
    """Return whether a container of Keras has settings, variables and layers in it: not tensors, which come and go."""
    parts = parts_of(value) if depth else [ABSENT]
    return all(
        is_settled(part, depth - 1)
        if _is_container(part)
        else is_atom(type(part)) or holds_variable(part) or _leads_on(part)
        for part in parts
    )


def _note_contents(walk: Walk, value: Any, label: str) -> None:
    """Note what a container of Keras contains, and what containers in it contain."""
    base = base_of(type(value))
    if base is not None and base not in (tuple, frozenset):
        walk.note(read_content, value, base, label, owner=value, of_library=True)
    for part in parts_of(value):
        if _is_container(part):
            _note_contents(walk, part, label)


def _follow_parts(walk: Walk, value: Any, label: str, depth: int = 3) -> None:
    """Visit the layers, functions and objects of user code in a container that Keras keeps for itself."""
    for part in parts_of(value):
        if _is_container(part) and depth:
            _follow_parts(walk, part, label, depth - 1)
        elif _leads_on(part):
            walk.follow(part, getattr_static(part, "name", None) or label)


def _is_of_optimizers(kind: type) -> bool:
    """Return whether a class is one of an optimizer or a schedule: tensors that these keep are settings."""
    return any(base.__module__.startswith("keras.src.optimizers.") for base in kind.__mro__)


def _leads_on(value: Any) -> bool:
    """Return whether what an object of Keras refers to can contain more of them, or user code."""
    kind: Any = type(value)
    if isfunction(value) or ismethod(value):
        return True
    if is_atom(kind) or _is_container(value) or hasattr(kind, "__next__"):
        return False
    return "keras" in _libraries(kind) or of_class(kind) == USER
