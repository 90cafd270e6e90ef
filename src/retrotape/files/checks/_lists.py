"""Bounds for lists of tensors: their lengths, and the elements of their items, which are behind a handle."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from retrotape.files.checks._call import Call
from retrotape.ir import TensorType
from retrotape.tf.core import tf

ELEMENT_BYTES = 64  # of a list, for each element, besides what the element itself holds
_LONGEST = 2**24
_MANY = 2**12  # items of a list that are inspected one by one


def _length(call: Call, position: int = 0) -> int:
    return length_of(call.fetch(position))


def _places(call: Call) -> list[int]:
    """Return the indices that are gathered; kernels refuse those out of range."""
    return [at for at in call.numbers(1) if 0 <= at < _length(call)]


def _scattered(call: Call) -> int:
    """Return the length of a list that reaches to the highest index, or has the declared length."""
    declared = call.highest(3) if len(call.kinds) > 3 else 0
    return max(call.highest(1) + 1, declared)


# op → how long a list it makes
LENGTHS: Mapping[str, Callable[[Call], int]] = {
    "EmptyTensorList": lambda call: 0,
    "TensorListReserve": lambda call: call.highest(1),
    "TensorListResize": lambda call: max(call.highest(1), _length(call)),
    "TensorListFromTensor": lambda call: call.shape(0)[0] if call.rank(0) else 0,
    "TensorListScatter": _scattered,
    "TensorListScatterV2": _scattered,
    "TensorListScatterIntoExistingList": lambda call: max(_length(call), call.highest(2) + 1),
    "TensorListSetItem": lambda call: max(_length(call), call.highest(1) + 1),
    "TensorListPushBack": lambda call: _length(call) + 1,
    "TensorListPopBack": _length,
    "TensorListSplit": lambda call: call.size(2),
}
# Ops that take a list: their kernels take one list, not a tensor of lists, which is refused.
TAKES_LIST = frozenset(
    (
        *("TensorListResize", "TensorListScatterIntoExistingList", "TensorListSetItem", "TensorListPushBack"),
        *("TensorListPopBack", "TensorListLength", "TensorListElementShape", "TensorListStack", "TensorListConcatV2"),
        *("TensorListGather", "TensorListGetItem", "TensorListConcat"),
    )
)


def made_length(call: Call) -> int:
    """Return how long the list that an op makes is.

    Raises:
      ValueError: If that is too long.
    """
    length = LENGTHS[call.op](call)
    if length > _LONGEST:
        raise ValueError(f"a list of {length} tensors is longer than {_LONGEST}")
    return length


def _element(call: Call, at: int) -> int:
    """Return how many elements one item of a list has, at least 1."""
    held = tf.raw_ops.TensorListElementShape(input_handle=call.fetch(0), shape_type=tf.int64).numpy().reshape(-1)
    declared = call.numbers(-1 if call.op != "TensorListConcatV2" else 1) if call.op != "TensorListConcat" else []
    filled = [math.prod(max(1, size) for size in sizes) for sizes in (declared, held.tolist())]
    return max(*filled, 1) if max(filled) > 2**40 or not _length(call) else max(*filled, _held(call, at))


def _held(call: Call, at: int) -> int:
    kind = tf.as_dtype(call.attrs["element_dtype"].number)
    any_shape = tf.constant(-1)
    try:
        item = tf.raw_ops.TensorListGetItem(
            input_handle=call.fetch(0), index=at, element_shape=any_shape, element_dtype=kind
        )
    except tf.errors.InvalidArgumentError:  # reserved and never set: it gets the declared shape
        return 1
    return max(1, math.prod(item.shape))


def _elements(call: Call, places: Iterable[int]) -> Iterator[int]:
    """Yield how many elements each of some items of a list has.

    Raises:
      ValueError: If their shapes differ and there are too many to inspect.
    """
    places = list(places)
    held = tf.raw_ops.TensorListElementShape(input_handle=call.fetch(0), shape_type=tf.int64).numpy().reshape(-1)
    if places and (held >= 0).all():
        yield from [_element(call, places[0])] * len(places)  # all have one shape
        return
    if len(places) > _MANY:
        raise ValueError(f"{len(places)} tensors of different shapes, more than {_MANY}, come out of a list")
    yield from (_element(call, place) for place in places)


# The position of the tensor that an op puts into a list, whole or row by row.
_PUTS = {
    "TensorListSetItem": 2,
    "TensorListPushBack": 1,
    "TensorListFromTensor": 0,
    "TensorListScatter": 0,
    "TensorListScatterV2": 0,
    "TensorListScatterIntoExistingList": 1,
    "TensorListSplit": 0,
}
FILLS = frozenset(("AddN", "ZerosLike"))  # for lists: make a new tensor for each item, although items may share memory


def put(call: Call) -> TensorType | None:
    """Return the type of what an op puts into a list."""
    return call.kinds[_PUTS[call.op]] if call.op in _PUTS else None


def length_of(handle: Any) -> int:
    """Return how many items a list has."""
    return int(tf.raw_ops.TensorListLength(input_handle=handle))


# op → how many elements come out of a list
LIST_ELEMENTS: Mapping[str, Callable[[Call], int]] = {
    "TensorListGetItem": lambda call: _element(call, max(0, min(call.highest(1), _length(call) - 1))),
    "TensorListPopBack": lambda call: _element(call, _length(call) - 1),
    "TensorListStack": lambda call: _length(call) * _element(call, 0),  # all have one shape
    "TensorListGather": lambda call: sum(_elements(call, _places(call))) + call.size(1),
    "TensorListConcatV2": lambda call: sum(_elements(call, range(_length(call)))) + _length(call),
    "TensorListElementShape": lambda call: 254,  # dimensions
}
