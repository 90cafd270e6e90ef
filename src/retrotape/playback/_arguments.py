"""Arguments and results of a step: nests, taken apart into tensors and a key that says everything else."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from operator import is_
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.grads import Gradients
from retrotape.lower import NotCompilableError
from retrotape.tf.core import CompositeTensor, EagerTensor, attributes_of, eager_dtype, identity_of, shape_of, tf
from retrotape.tf.nests import is_variable, unwrap

_PLAIN = frozenset((type(None), bool, int, str, bytes))
_EXACT = (float, complex, np.generic)
_SEQUENCES, _DICTIONARIES = frozenset((tuple, list)), frozenset((dict, OrderedDict))
_OWN = frozenset(("_handle_data", "_tensor_shape", "_id"))  # attributes of tensors that TensorFlow sets
Pack = Callable[[Sequence[Any]], Any]


class Arguments:
    """The arguments of a call.

    Attributes:
      tensors: The tensors in them; arrays are converted.
      objects: The other objects that are part of the key, which must exist as long as it is used.
      key: Equal for calls that differ only in the values of tensors.
    """

    __slots__ = ("key", "objects", "tensors")

    def __init__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.tensors: list[Tensor] = []
        self.objects: list[Any] = []
        key: Hashable = tuple([self._of(arg) for arg in args])
        if kwargs:
            key = key, tuple([(name, self._of(kwargs[name])) for name in sorted(kwargs)])
        tensors = self.tensors
        if len(tensors) > 1:
            identities = list(map(identity_of, tensors))
            if len(set(identities)) != len(identities):  # one tensor twice
                key = key, tuple([identities.index(one) for one in identities])
        self.key = key

    def _of(self, value: Any) -> Hashable:
        kind = type(value)
        if kind is EagerTensor:
            self.tensors.append(value)
            more = attributes_of(value)
            if more:  # a mask that Keras has set, or attributes of user code
                named = [(name, self._of(part)) for name, part in more.items() if name not in _OWN]
                return eager_dtype(value), shape_of(value), *named
            return eager_dtype(value), shape_of(value)
        if kind in _PLAIN:
            return kind, value
        if isinstance(value, _EXACT):
            return kind, repr(value)
        if isinstance(value, np.ndarray):
            return self._of(tf.convert_to_tensor(value))
        if kind in _SEQUENCES or hasattr(kind, "_fields"):
            return kind, tuple([self._of(part) for part in value])
        if kind in _DICTIONARIES:
            return kind, tuple([(self._of(name), self._of(part)) for name, part in value.items()])
        if isinstance(value, CompositeTensor) and not is_variable(value):
            return tf.type_spec_from_value(value), tuple([self._of(part) for part in _parts(value)])
        self.objects.append(value)
        return "object", id(value)


def _parts(value: Any) -> list[Any]:
    return tf.nest.flatten(value, expand_composites=True)


def with_tensors(value: Any) -> Any:
    """Return a nest with its NumPy arrays as tensors; the nest itself if there are none."""
    if isinstance(value, np.ndarray):
        return tf.convert_to_tensor(value)
    kind = type(value)
    if kind in _DICTIONARIES:
        parts = [with_tensors(part) for part in value.values()]
        if all(map(is_, parts, value.values())):
            return value
        return kind(zip(value, parts, strict=True))
    if kind in _SEQUENCES or hasattr(kind, "_fields"):
        parts = list(map(with_tensors, value))
        if all(map(is_, parts, value)):
            return value
        return kind(*parts) if hasattr(kind, "_fields") else kind(parts)
    return value


def containers_in(value: Any) -> list[Any]:
    """Return the lists and dictionaries in a nest, which a step might change."""
    if type(value) in _DICTIONARIES:
        return [value, *(one for part in value.values() for one in containers_in(part))]
    if type(value) in _SEQUENCES:
        return [value, *(one for part in value for one in containers_in(part))]
    return []


class Results:
    """What a step returned, taken apart.

    Attributes:
      tensors: The tensors.
      pack: Makes a result like it from other tensors.
    """

    def __init__(self, result: Any) -> None:
        self.tensors: list[Tensor] = []
        self.pack: Pack = self._packer(result)

    def _packer(self, value: Any) -> Pack:
        if type(value) is EagerTensor:
            position = len(self.tensors)
            self.tensors.append(value)
            more = [(name, self._packer(part)) for name, part in attributes_of(value).items() if name not in _OWN]
            if more:  # a mask that Keras has set, or attributes of user code
                return lambda given: _with_attributes(given[position], [(name, part(given)) for name, part in more])
            return lambda given: given[position]
        if (
            is_variable(unwrap(value))
            or value is None
            or isinstance(value, (bool, int, float, complex, str, bytes, np.generic))
        ):
            return lambda given: value
        if isinstance(value, Gradients):
            return self._gradients(value)
        if isinstance(value, CompositeTensor):
            parts = [self._packer(part) for part in _parts(value)]
            spec = tf.type_spec_from_value(value)
            return lambda given: tf.nest.pack_sequence_as(spec, [part(given) for part in parts], expand_composites=True)
        if isinstance(value, (tuple, list)):
            return self._sequence(value)
        if isinstance(value, dict):
            names, parts = list(value), [self._packer(part) for part in value.values()]
            if type(value) is dict:
                return lambda given: dict(zip(names, [part(given) for part in parts], strict=True))
            return lambda given: _updated(value, zip(names, [part(given) for part in parts], strict=True))
        if is_dataclass(value) and not isinstance(value, type):
            made, own = type(value), [field.name for field in fields(value) if field.init]
            parts = [self._packer(getattr(value, name)) for name in own]
            return lambda given: made(**{name: part(given) for name, part in zip(own, parts, strict=True)})
        if isinstance(value, np.ndarray):
            return lambda given: value.copy()
        raise NotCompilableError(
            f"it returns an object of type {type(value).__module__}.{type(value).__qualname__}; return tensors, "
            "variables, numbers, and lists, tuples, dictionaries and dataclasses of them"
        )

    def _sequence(self, value: Any) -> Pack:
        parts = [self._packer(part) for part in value]
        if isinstance(value, tuple) and hasattr(value, "_fields"):
            return lambda given: type(value)(*[part(given) for part in parts])
        kind = type(value)
        return lambda given: kind([part(given) for part in parts])

    def _gradients(self, value: Gradients) -> Pack:
        keys = [self._packer(key) for key in value.keys()]
        parts = [self._packer(grad) for grad in value.values()]
        why = [(key, value.why(key)) for key, grad in value.items() if grad is None]
        return lambda given: Gradients([(key(given), part(given)) for key, part in zip(keys, parts, strict=True)], why)


def _updated(value: Any, items: Any) -> Any:
    found = copy(value)
    found.update(items)
    return found


def _with_attributes(tensor: Tensor, attributes: Sequence[tuple[str, Any]]) -> Tensor:
    for name, value in attributes:
        setattr(tensor, name, value)
    return tensor
