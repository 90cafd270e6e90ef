"""An op that has run, as TensorFlow reports it."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrotape._types import Place, Tensor

WATCHED = -1  # as a value of `recompute`: a stock tape recorded the op, and knows its tensors by identity only


class Event(NamedTuple):
    """An op that has run, as TensorFlow reports it."""

    op: str | bytes
    inputs: tuple[Tensor, ...]
    attrs: Any
    outputs: tuple[Tensor, ...]
    place: Place  # in user code
    recompute: int  # nonzero: keep nothing that can be recomputed
    time: int  # when it ran, the same on every tape that recorded it
