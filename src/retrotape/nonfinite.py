"""Which op made the first NaN or infinity, on the way forward or on the way back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from retrotape._tf import tf
from retrotape.errors import LostValueError
from retrotape.execute import Plan, Puller, Values, make_plan, walk
from retrotape.ir import Eqn, Frame, slice_to
from retrotape.record import Recording

Tensor = Any


class Nonfinite(NamedTuple):
    """The op that made the first value that is not finite out of values that were.

    Attributes:
      op: Its name.
      backward: Whether it is its gradient that is not finite.
      frame: The line of the user's code that ran it.
      inputs: The range of each of its inputs, as text.
    """

    op: str
    backward: bool
    frame: Frame
    inputs: tuple[str, ...]

    def __str__(self) -> str:
        what = f"the gradient of {self.op}" if self.backward else self.op
        inputs = ", ".join(self.inputs) or "nothing"
        return f"{what} at {self.frame} made the first value that is not finite, from {inputs}"


class _Found(Exception):
    def __init__(self, index: int) -> None:
        self.index = index


def first_nonfinite(recording: Recording, targets: Sequence[int], seeds: Sequence[Tensor]) -> Nonfinite | None:
    """Return the first culprit on the way to the targets (or anywhere), else on the way back from them."""
    values = Values(recording)
    indices = slice_to(recording.builder, targets) if targets else range(len(recording.builder.eqns))
    for index in indices:
        eqn = recording.builder.eqns[index]
        if not _are_finite(values, eqn.outputs) and _are_finite(values, eqn.inputs):
            return _report(recording, values, eqn, backward=False)
    if not targets:
        return None
    leaves = [var for var, producer in enumerate(recording.builder.producers) if producer < 0]
    plan = make_plan(recording, targets, leaves, through_updates=True)
    pull = Puller(recording)

    def watched(index: int, grads: list[Any], plan: Plan) -> Sequence[Any]:
        found = pull(index, grads, plan)
        if all(map(_is_finite, grads)) and not all(map(_is_finite, found)):
            raise _Found(index)
        return found

    try:
        for _ in walk(plan, {var: [seed] for var, seed in zip(targets, seeds, strict=True)}, watched):
            pass  # what arrives is of no interest
    except _Found as found:
        return _report(recording, values, recording.builder.eqns[found.index], backward=True)
    return None


def _report(recording: Recording, values: Values, eqn: Eqn, backward: bool) -> Nonfinite:
    frame = recording.program().frame_of(eqn)
    return Nonfinite(eqn.op, backward, frame, tuple(_range(values, var) for var in eqn.inputs))


def _are_finite(values: Values, variables: Sequence[int]) -> bool:
    return all(_is_finite(_value(values, var)) for var in variables)


def _value(values: Values, var: int) -> Tensor | None:
    try:
        return values(var)
    except LostValueError:
        return None  # overwritten before anybody looked: it cannot be blamed


def _is_finite(value: Any) -> bool:
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    if value is None or not (value.dtype.is_floating or value.dtype.is_complex):
        return True
    parts = [tf.math.real(value), tf.math.imag(value)] if value.dtype.is_complex else [value]
    return all(bool(tf.reduce_all(tf.math.is_finite(part))) for part in parts)


def _range(values: Values, var: int) -> str:
    value = _value(values, var)
    if value is None or not value.dtype.is_floating or not value.shape.num_elements():
        return "?" if value is None else f"{value.dtype.name}{list(value.shape)}"
    low, high = float(tf.reduce_min(value)), float(tf.reduce_max(value))
    return f"{value.dtype.name}{list(value.shape)} from {low:.4g} to {high:.4g}"
