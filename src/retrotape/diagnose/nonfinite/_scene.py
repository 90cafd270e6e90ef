"""The context of an op: its values, where they came from, and where they are used."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.diagnose.nonfinite._forward import array, values_of
from retrotape.ir import LEAF, Eqn, bytes_of
from retrotape.record import SEGMENT, Trace
from retrotape.tf.core import tf

_SAME_VALUES = frozenset(
    ("Identity", "Reshape", "Squeeze", "ExpandDims", "Cast", "StopGradient", "CheckNumerics", "Snapshot")
)
# Each element of the result is computed from the elements at the same position.
_ELEMENTWISE = frozenset(
    ("Abs", "Cos", "Erf", "Exp", "Expm1", "Inv", "Log", "Log1p", "Neg", "Reciprocal", "Relu", "Rsqrt", "Sigmoid")
) | frozenset(("Sin", "Sqrt", "Square", "Tanh", "Add", "AddV2", "Div", "DivNoNan", "Maximum", "Minimum", "Mul", "Pow"))
_ELEMENTWISE |= {"RealDiv", "Sub"}
_CHOICES = ("SelectV2", "Select")
_NO_VALUES_PASSED = frozenset(
    ("Shape", "Size", "Rank", "ZerosLike", "OnesLike", "IsFinite", "IsNan", "IsInf", "Greater", "Less")
)
_CLOSE = 64  # ops that are inspected around an op


class Scene:
    """The surroundings of ops in a trace; recomputed values are held once they have been requested."""

    def __init__(self, trace: Trace, indices: Sequence[int]) -> None:
        self.trace, self.indices = trace, indices
        self.eqns = trace.program.eqns
        self._values: dict[int, Tensor | None] = {}

    # ------------------------------------------------------------------ values

    def tensor(self, var: int) -> Tensor | None:
        """Return a value, None if it is lost."""
        if var not in self._values:
            self._fetch((var,))
        return self._values[var]

    def fetch_around(self, eqn: Eqn) -> None:
        """Prefetch the values around an equation: recomputing many costs no more than one."""
        own = (*eqn.inputs, *eqn.outputs)
        wanted = dict.fromkeys(own)
        before, after = list(eqn.inputs), list(eqn.outputs)
        while before and len(wanted) < _CLOSE:
            index = self.trace.program.producers[before.pop(0)]
            if index != LEAF:
                wanted.update(dict.fromkeys(self.eqns[index].inputs))
                before += self.eqns[index].inputs
        while after and len(wanted) < 2 * _CLOSE:
            for index in self._users.get(after.pop(0), ()):
                wanted.update(dict.fromkeys(self.eqns[index].inputs))
                after += self.eqns[index].outputs
        self._fetch([var for var in wanted if var in own or self._is_small(var)])

    def _is_small(self, var: int) -> bool:
        return bytes_of(self.trace.program.types[var]) < SEGMENT // _CLOSE

    def _fetch(self, variables: Collection[int]) -> None:
        self._values.update(values_of(self.trace, [var for var in variables if var not in self._values]))

    def numbers(self, var: int) -> np.ndarray | None:
        """Return a real value in float64, None if there is none."""
        return as_numbers(self.tensor(var))

    def range_of(self, var: int) -> str:
        """Return dtype, shape and range of a value, as text."""
        value = self.tensor(var)
        if value is None:
            return f"{self.trace.program.types[var]} (no longer available)"
        kind, numbers = self.trace.program.types[var], as_numbers(value)
        if numbers is None or not numbers.size:
            return str(kind)
        finite = numbers[np.isfinite(numbers)]
        text = str(kind)
        if finite.size:
            low, high = _short(finite.min()), _short(finite.max())
            same = finite.size == numbers.size and finite.min() == finite.max()
            text += f" of {low}" if same else f" from {low} to {high}"
        counts = (("NaN", int(np.isnan(numbers).sum())), ("inf", int(np.isinf(numbers).sum())))
        return " and ".join([text, *(f"{count} {name}" for name, count in counts if count)])

    def given(self, var: int) -> str:
        """Return a description of a value that no op made."""
        history = self.trace.facts.history_of.get(var)
        what = "An input" if history is None else f"The variable {self.trace.name_of(history)}"
        return f"{what}: {self.range_of(var)}."

    # ------------------------------------------------------------------ where values came from

    def maker(self, var: int) -> Eqn | None:
        """Return the equation that computed a value, skipping those that only pass it on."""
        while True:
            index = self.trace.program.producers[var]
            if index == LEAF:
                return None
            eqn = self.eqns[index]
            if eqn.op not in _SAME_VALUES:
                return eqn
            var = eqn.inputs[0]

    def is_all(self, var: int, number: float) -> bool:
        """Return whether a value is this number everywhere."""
        numbers = self.numbers(var)
        return numbers is not None and numbers.size > 0 and bool((numbers == number).all())

    # ------------------------------------------------------------------ where they are used

    @cached_property
    def _users(self) -> dict[int, list[int]]:
        found = defaultdict(list)
        for index in self.indices:
            for var in dict.fromkeys(self.eqns[index].inputs):
                found[var].append(index)
        return found

    def uses(self, variables: Collection[int]) -> Iterator[tuple[int, Eqn]]:
        """Yield which var is used by which equation, skipping those that only pass it on."""
        pending = list(variables)
        while pending:
            var = pending.pop()
            for index in self._users.get(var, ()):
                eqn = self.eqns[index]
                if eqn.op in _SAME_VALUES:
                    pending += eqn.outputs
                else:
                    yield var, eqn

    def not_taken(self, variables: Collection[int], bad: np.ndarray) -> str | None:
        """Return the line of the op that selects another branch wherever `bad`; None if a value is used elsewhere."""
        pending, seen, line = list(variables), set(variables), None
        for _ in range(_CLOSE):
            if not pending:
                return line
            var = pending.pop(0)
            for index in self._users.get(var, ()):
                eqn = self.eqns[index]
                if eqn.op in _CHOICES:
                    taken = self._taken(eqn, var)
                    if taken is None or taken.size != bad.size or taken.reshape(-1)[bad.reshape(-1)].any():
                        return None
                    line = line or str(self.trace.program.frame_of(eqn))
                elif eqn.op in _ELEMENTWISE or eqn.op in _SAME_VALUES:
                    fresh = [out for out in eqn.outputs if out not in seen]
                    seen.update(fresh)
                    pending += fresh
                elif eqn.op not in _NO_VALUES_PASSED:
                    return None
        return None

    def _taken(self, eqn: Eqn, var: int) -> np.ndarray | None:
        """Return where a select op takes this branch; None if its shape is not that of the result."""
        condition, types = self.tensor(eqn.inputs[0]), self.trace.program.types
        shape = types[eqn.outputs[0]].shape
        if condition is None or shape is None or types[var].shape != shape or eqn.inputs.count(var) != 1:
            return None
        chosen = array(condition)
        if eqn.op == "Select" and chosen.ndim < len(shape):  # the old op selects rows
            chosen = chosen.reshape(chosen.shape + (1,) * (len(shape) - chosen.ndim))
        return np.broadcast_to(chosen if var == eqn.inputs[1] else ~chosen, shape)  # type: ignore[arg-type]

    def taken(self, eqn: Eqn) -> list[int]:
        """Return the inputs of an equation, without branches of which no non-finite element is selected."""
        if eqn.op not in _CHOICES:
            return list(eqn.inputs)
        found = []
        for var in eqn.inputs:
            mask, numbers = self._taken(eqn, var), self.numbers(var)
            if mask is None or numbers is None or (~np.isfinite(numbers) & mask).any():
                found.append(var)
        return found

    def involved(self, variables: Collection[int], grads: Sequence[Any]) -> list[int]:
        """Return the vars that are not finite where a gradient is not, as far as positions can be compared."""
        spots = [~np.isfinite(numbers) for numbers in map(as_numbers, grads) if numbers is not None]
        found = []
        for var in variables:
            numbers = self.numbers(var)
            here = None if numbers is None else ~np.isfinite(numbers)
            same = [] if here is None else [bad & here for bad in spots if bad.shape == here.shape and bad.any()]
            if not same or any(both.any() for both in same):
                found.append(var)
        return found


def as_numbers(value: Any) -> np.ndarray | None:
    """Return a real tensor as float64, None for anything else."""
    if isinstance(value, tf.IndexedSlices):
        value = value.values
    if value is None or not value.dtype.is_floating:
        return None
    return array(value).astype(np.float64)


def _short(number: float) -> str:
    """Return a number with few digits, unless that would round it to an integer: 1.0000001 is not 1."""
    text = f"{number:.4g}"
    return f"{number:.8g}" if float(text) != number and float(text) == round(float(text)) else text
