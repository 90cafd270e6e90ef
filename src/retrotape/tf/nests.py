"""Flatten what users pass: nests of tensors, variables, Keras variables, ragged and sparse tensors."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from operator import is_
from typing import Any, NamedTuple

from retrotape._types import Nest, Tensor
from retrotape.errors import NotASourceError, ShapeMismatchError
from retrotape.tf import functions, keras_api
from retrotape.tf.core import (
    TRAINABLE_DTYPES,
    AggregatingVariable,
    CompositeTensor,
    EagerTensor,
    PlainVariable,
    tf,
    zeros,
)
from retrotape.tf.saved_variable import SavedVariable
from retrotape.tf.version import Version

_AS_THEY_ARE = (EagerTensor, PlainVariable)
WATCHED = "watched value"  # a role, beside "source" and "target"


def unwrap(value: Any) -> Any:
    """Return the `tf.Variable` inside a Keras variable, or of a central storage; anything else as it is."""
    if type(value) in _AS_THEY_ARE:
        return value
    inner: Any = getattr(value, "_value", None)
    found = inner if _is_variable(inner.__class__) and not _is_variable(value.__class__) else value
    return found._v if _is_aggregating(found.__class__) else found


@lru_cache(256)
def _is_variable(kind: type) -> bool:
    return issubclass(kind, tf.Variable)  # slow: it is an abstract class


@lru_cache(256)
def _is_aggregating(kind: type) -> bool:
    return issubclass(kind, AggregatingVariable)


VARIABLES = (tf.Variable, SavedVariable)
# Dtypes through which gradients flow.
DIFFERENTIABLE = frozenset(kind for kind in map(tf.as_dtype, TRAINABLE_DTYPES) if kind not in (tf.resource, tf.variant))


def is_variable(value: Any) -> bool:
    """Return whether `value` is a variable: of TensorFlow, also one that is spread over devices, or of a saved tape."""
    return isinstance(value, VARIABLES)


class TensorRef:
    """A tensor of a tape, by identity: it may not have been computed."""

    __slots__ = ("_id", "dtype", "shape")

    def __init__(self, identity: int, dtype: int, shape: tuple[int | None, ...] | None) -> None:
        self._id = identity
        self.dtype, self.shape = tf.as_dtype(dtype), tf.TensorShape(shape)


def has_derivative(part: Any) -> bool:
    """Return whether a tensor or variable is of a dtype through which gradients flow."""
    return part.dtype.base_dtype in DIFFERENTIABLE


class Parts(NamedTuple):
    """A flattened nest.

    Attributes:
      nest: The nest.
      items: Its items; for a Keras variable, the variable inside.
      parts: The tensors and variables that each item consists of.
      flat: All of them in one list.
      owners: The Keras variables among the items, by `id` of the variable inside.
      plain: Whether the nest is a list, and each of its items is one part.
    """

    nest: Nest
    items: list[Any]
    parts: list[list[Any]]
    flat: list[Any]
    owners: dict[int, Any]
    plain: bool = False

    def pack(self, gradients: Sequence[Any]) -> Any:
        """Shape gradients, one for each part, like the nest."""
        if self.plain:
            return list(gradients)
        packed, position = [], 0
        for item, parts in zip(self.items, self.parts, strict=True):
            own = list(gradients[position : position + len(parts)])
            position += len(parts)
            whole = len(parts) == 1 and parts[0] is item
            packed.append(own[0] if whole else functions.recompose([item], own)[0])
        return tf.nest.pack_sequence_as(self.nest, packed)


def take_apart(nest: Any, role: str) -> Parts:
    """Return the parts of a nest of sources or targets."""
    if nest is None:
        raise NotASourceError(role, nest)
    given = tf.nest.flatten(nest)
    items = [unwrap(item) for item in given]
    parts = [_parts(item, role) for item in items]
    owners = {id(item): one for one, item in zip(given, items, strict=True) if one is not item}
    flat = [part for own in parts for part in own]
    is_list = type(nest) is list and len(nest) == len(given) and all(map(is_, nest, given))
    return Parts(nest, items, parts, flat, owners, is_list and len(flat) == len(items) and all(map(is_, flat, items)))


def _parts(item: Any, role: str) -> list[Any]:
    if isinstance(item, (tf.Tensor, TensorRef, *VARIABLES)) or (isinstance(item, Version) and role == "source"):
        return [item]
    if _is_composite(item) and role == WATCHED:
        return [part for part in tf.nest.flatten(item, expand_composites=True) if isinstance(part, tf.Tensor)]
    if isinstance(item, tf.IndexedSlices) and role == "target":
        return [item.values]  # a sparse gradient as a target: only its rows have values
    try:
        found = functions.components([item]) if _is_composite(item) else []
    except ValueError:  # TensorFlow does not know which of its tensors a derivative is about
        found = []
    if not found or found[0] is item:
        keras_api.refuse_other_backend(item, role)
        raise NotASourceError(role, item, composite=_is_composite(item))
    return found


def _is_composite(item: Any) -> bool:
    return isinstance(item, CompositeTensor) and type(item).__name__ != "KerasTensor"


def seeds_for(targets: Sequence[Tensor], given: Any) -> list[Any]:
    """Return the seed of each differentiable target: `Ones`, or the given output gradients, as tensors or `Fitted`."""
    if given is None:
        return [Ones(target) for target in targets if has_derivative(target)]
    flat = functions.components([unwrap(item) for item in tf.nest.flatten(given)])
    if len(flat) != len(targets):
        hint = " Give numbers for the elements of one target as one tensor: `tf.constant([...])`."
        numbers = len(targets) == 1 and bool(flat) and all(isinstance(item, (int, float, complex)) for item in flat)
        raise ShapeMismatchError(
            f"Got {len(flat)} output_gradients for {len(targets)} targets; give one for each, in the same order: zeros "
            f"where nothing flows in.{hint if numbers else ''}"
        )
    for number, seed in enumerate(flat):
        if seed is None:
            raise ShapeMismatchError(
                f"output_gradients number {number} is None; give a tensor for each target: `tf.zeros_like(target)` "
                "where nothing flows in, `tf.ones_like(target)` for what is the default."
            )
    return [_fitting(seed, target) for seed, target in zip(flat, targets, strict=True) if has_derivative(target)]


class Ones(NamedTuple):
    """The output gradient of a target for which none is given; made where it is used."""

    target: Tensor

    def tensor(self) -> Tensor:
        """Return ones in the shape of the target; a constant, where the shape is known."""
        known = tf.executing_eagerly() and self.target.shape.is_fully_defined()
        return tf.ones(self.target.shape, self.target.dtype) if known else ones_like(self.target)


class Fitted(NamedTuple):
    """An output gradient of another shape than its target, which is broadcast where it is used.

    Not earlier, so that the broadcast is recorded and derivatives with respect to the output gradient are connected.
    """

    seed: Tensor
    target: Tensor

    def tensor(self) -> Tensor:
        """Return it in the shape of the target: without extra leading dimensions of size one, and broadcast."""
        spare = max(self.seed.shape.rank - self.target.shape.rank, 0)
        return tf.broadcast_to(
            tf.squeeze(self.seed, list(range(spare))) if spare else self.seed, _shape_of(self.target)
        )


def _shape_of(part: Any) -> Any:
    return part.shape if part.shape.is_fully_defined() else tf.shape(part)


def shape_tensor(part: Any) -> Tensor:
    """Return the shape of a tensor, as a tensor."""
    return tf.constant(part.shape.as_list(), tf.int32) if isinstance(part, TensorRef) else tf.shape(part)


def _fitting(seed: Any, target: Tensor) -> Tensor | Fitted:
    seed = seed if isinstance(seed, tf.Tensor) else tf.convert_to_tensor(seed, target.dtype)
    if seed.dtype != target.dtype:
        raise ShapeMismatchError(
            f"Got an output gradient of dtype {seed.dtype.name} for a target of dtype {target.dtype.name}; "
            f"cast it: `tf.cast(output_gradient, tf.{target.dtype.name})`."
        )
    if seed.shape.is_compatible_with(target.shape):
        return seed
    if _can_broadcast(seed.shape, target.shape):
        return Fitted(seed, target)
    raise ShapeMismatchError(
        f"Got an output gradient of shape {tuple(seed.shape)} for a target of shape {tuple(target.shape)}; "
        "each output gradient must have the shape of its target, or one that broadcasts to it."
    )


def _can_broadcast(shape: tf.TensorShape, wanted: tf.TensorShape) -> bool:
    """Return whether a shape fits the wanted one after broadcasting; the stock tape accepts [1, 3] for [3]."""
    spare = max(shape.rank - wanted.rank, 0)
    short = [None] * (wanted.rank - shape.rank) + list(shape[spare:])
    pairs = zip(short, wanted, strict=True)
    return all(size == 1 for size in shape[:spare]) and all(a in (1, None) or b is None or a == b for a, b in pairs)


def zeros_wanted(unconnected_gradients: Any) -> bool:
    """Return whether unconnected sources get zeros, according to `unconnected_gradients`."""
    try:
        return tf.UnconnectedGradients(unconnected_gradients) is tf.UnconnectedGradients.ZERO
    except ValueError:
        known = " or ".join(repr(kind.value) for kind in tf.UnconnectedGradients)
        raise ValueError(
            f"unconnected_gradients= takes {known}, or a tf.UnconnectedGradients, got {unconnected_gradients!r}."
        ) from None


def ones_like(part: Any) -> Tensor:
    """Return ones in the shape of a target, which may be a variable of a loaded tape."""
    return tf.ones(part.shape, part.dtype) if isinstance(part, (SavedVariable, TensorRef)) else tf.ones_like(part)


def zeros_like(part: Any) -> Tensor:
    """Return zeros in the shape of a source."""
    if isinstance(part, tf.Tensor) and has_derivative(part):
        return tf.zeros_like(part)
    return zeros(_shape_of(part), part.dtype)


def describe(part: Any) -> str:
    """Return a description of a source or target for messages."""
    kind = f"{part.dtype.name}[{','.join('?' if d is None else str(d) for d in part.shape)}]"
    return f"{part.name!r} ({kind})" if is_variable(part) else f"tensor {kind}"


def single(value: Any, method: str, role: str) -> Any:
    """Return the single tensor or variable in a nest, or raise."""
    parts = take_apart(value, role).flat
    if len(parts) != 1:
        raise ShapeMismatchError(
            f"{method} takes one {role}, got {len(parts)} in a {type(value).__name__}; call it once for each of them."
        )
    return parts[0]
