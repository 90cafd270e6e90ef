"""Value numbering: vars that provably have the same value get the same number.

Two vars have one number if the same deterministic op made both, with the same attributes, from inputs with the same
numbers. Leaves have one number if their bytes are the same.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from hashlib import blake2b

from retrotape.ir import CUSTOM, LEAF, BackwardFunction, Eqn, FunctionProgram, slice_to
from retrotape.record import Trace, is_deterministic
from retrotape.tf.core import EagerTensor, whole_behind
from retrotape.tf.replicas import differs_by_replica
from retrotape.transform._value_bytes import value_bytes

_SIZES = frozenset(("Shape", "ShapeN", "Size", "Rank"))  # equal for inputs of equal shape
_COPIES = frozenset(("Identity", "IdentityN", "ReadVariableOp", "AssignVariableOp"))  # outputs are inputs


class Numbering:
    """The numbers of the vars that `targets` depend on, and of the targets.

    Args:
      trace: The trace.
      targets: The vars to number.
      apart: Vars that differ from all others, whatever their values: a query may ask for each of them.
    """

    def __init__(self, trace: Trace, targets: Collection[int], apart: Collection[int] = ()) -> None:
        self._trace, self._apart = trace, frozenset(apart)
        self._numbers: dict[int, int] = {}
        self._known: dict[Hashable, int] = {}
        eqns = trace.program.eqns
        for index in slice_to(trace.program, targets):
            self._add(index, eqns[index])

    def number(self, var: int) -> int:
        """Return the number of a var."""
        found = self._numbers.get(var)
        if found is None:
            found = self._numbers[var] = self._number_of(self._leaf_key(var))
        return found

    def _number_of(self, key: Hashable) -> int:
        return self._known.setdefault(key, len(self._known))

    def _leaf_key(self, var: int) -> Hashable:
        value = None if var in self._apart else self._trace.value(var)
        if self._trace.program.producers[var] != LEAF or not isinstance(value, EagerTensor):
            return "var", var
        if value.dtype.name in ("resource", "variant"):
            return "var", var
        return (
            "bytes",
            self._variable(var),
            value.dtype,
            tuple(value.shape),
            blake2b(value_bytes(value), digest_size=20).digest(),
        )

    def _variable(self, var: int) -> int | None:
        """Return which variable a leaf is a value of: equal values of two variables are not the same."""
        history = self._trace.facts.history_of.get(var)
        if history is None:
            return None
        whole = whole_behind(history.handle)
        return history.key if whole is None or differs_by_replica(whole) else -id(whole)

    def _add(self, index: int, eqn: Eqn) -> None:
        if not self._apart.isdisjoint(eqn.outputs):
            key: Hashable = index
        elif eqn.op in _COPIES and len(eqn.inputs) == len(eqn.outputs):
            self._numbers.update(zip(eqn.outputs, self._all(eqn.inputs), strict=True))
            return
        else:
            key = self._key(index, eqn)
        for position, var in enumerate(eqn.outputs):
            self._numbers[var] = self._number_of((position, key))

    def _key(self, index: int, eqn: Eqn) -> Hashable:
        inputs = self._all(eqn.inputs)
        if eqn.op == CUSTOM:
            back = self._trace.facts.backward_functions.get(index)
            return index if back is None else (CUSTOM, inputs, self._backward_key(index, back))
        if not is_deterministic(eqn.op):
            return index
        if eqn.op in _SIZES:
            kinds = [self._trace.program.types[var] for var in eqn.inputs]
            if all(kind.shape is not None and None not in kind.shape for kind in kinds):
                return eqn.op, eqn.attrs, tuple(kind.shape for kind in kinds)
        return eqn.op, eqn.attrs, inputs

    def _backward_key(self, index: int, back: BackwardFunction) -> Hashable:
        """Return what two backward functions have in common that compute the same."""
        function = back.function
        if not isinstance(function, FunctionProgram) or function.program.facts.backward_functions:
            return index
        body = tuple((eqn.op, eqn.inputs, eqn.outputs, eqn.attrs) for eqn in function.program.eqns)
        kinds = tuple(function.program.types)
        return body, kinds, function.cotangents, function.captures, function.results, self._all(back.captures)

    def _all(self, variables: Iterable[int]) -> tuple[int, ...]:
        return tuple(self.number(var) for var in variables)
