"""A batch as tensors with names, and put together again from arrays."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from retrotape._types import Tensor
from retrotape.callbacks.flight._folder import Layout
from retrotape.callbacks.flight._variables import unique_name
from retrotape.tf.core import DistributedValues, tf

_PARTS = ("x", "y", "sample_weight")  # of a tuple, as Keras takes it apart


class Batch(NamedTuple):
    """A batch as tensors with names.

    Attributes:
      nest: The batch itself; in a graph, of symbolic tensors.
      tensors: The tensors in it, those of composite and distributed ones singly.
      names: Of each tensor, on the tape.
      dtypes: The names of their dtypes.
    """

    nest: Any
    tensors: tuple[Tensor, ...]
    names: tuple[str, ...]
    dtypes: tuple[str, ...]

    def layout(self, arrays: Sequence[Any]) -> Layout:
        """Return how arrays in the place of its tensors are stored."""
        return Layout(self.names, self.dtypes, tuple(tuple(array.shape) for array in arrays))

    def spec(self) -> BatchSpec:
        """Return how to make batches like it."""
        nest = tf.nest.map_structure(lambda leaf: None if leaf is None else tf.type_spec_from_value(leaf), self.nest)
        return BatchSpec(nest, self.names, self.dtypes, tuple(tensor.device for tensor in self.tensors))


class BatchSpec(NamedTuple):
    """What batches of a layout have in common, without the tensors of any.

    Attributes:
      nest: Of specs.
      names: Of each tensor.
      dtypes: The names of their dtypes.
      devices: Where each tensor is.
    """

    nest: Any
    names: tuple[str, ...]
    dtypes: tuple[str, ...]
    devices: tuple[str, ...]

    def packed(self, arrays: Mapping[str, Any]) -> Any:
        """Return a batch of these values, by name."""
        parts = zip(self.names, self.dtypes, self.devices, strict=True)
        values = iter([_tensor(arrays[name], dtype, device) for name, dtype, device in parts])
        flat = [None if leaf is None else next(values) for leaf in _flat(self.nest)]
        return tf.nest.pack_sequence_as(self.nest, flat, expand_composites=True)


def named_batch(nest: Any) -> Batch:
    """Return a batch as tensors with names: those of a tuple are x, y and sample_weight, of anything else x."""
    is_tuple = isinstance(nest, (tuple, list)) and len(nest) <= len(_PARTS)
    parts = zip(_PARTS, nest, strict=False) if is_tuple else [("x", nest)]
    named: dict[str, Tensor] = {}
    for part, item in parts:
        for name, tensor in _named(item, part):
            named[unique_name(name, named)] = tensor  # keys may be alike: {"a/b": ..., "a": {"b": ...}}
    names, tensors = tuple(named), tuple(named.values())
    return Batch(nest, tensors, names, tuple(tf.as_dtype(getattr(part, "dtype", tf.variant)).name for part in tensors))


def _flat(nest: Any) -> list[Any]:
    return tf.nest.flatten(nest, expand_composites=True)


def _named(nest: Any, name: str) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors of a nest in the order of `tf.nest`, with a name for each."""
    if nest is None:
        return
    if isinstance(nest, Mapping):
        for key in sorted(nest):
            yield from _named(nest[key], f"{name}/{key}")
    elif isinstance(nest, (list, tuple)):
        for number, item in enumerate(nest):
            yield from _named(item, f"{name}/{number}")
    else:
        parts = _flat(nest)
        word = "replica_" if isinstance(nest, DistributedValues) else ""
        for number, part in enumerate(parts):
            yield name if len(parts) == 1 else f"{name}/{word}{number}", part


def _tensor(array: Any, dtype: str, device: str) -> Tensor:
    with tf.device(device or "CPU:0"):
        return tf.constant(array, dtype)
