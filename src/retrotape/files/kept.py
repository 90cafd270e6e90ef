"""Which values go into a file: those that cannot be recomputed or were requested, and none that is redacted."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from retrotape._types import Tensor
from retrotape.errors import LostValueError
from retrotape.execute import Values
from retrotape.files import store
from retrotape.ir import COLLECTIVES, DTYPE_NAMES, LEAF, Program, TensorType, bytes_of, reached_from
from retrotape.record import Trace, is_deterministic, read_by_rule
from retrotape.tf.core import tf
from retrotape.transform import WITHOUT_BYTES

VALUES = ("leaves", "needed", "all")
_DISTINCTIVE_BYTES = 12  # two values of this size that are equal are not equal by accident


class Withheld:
    """Stands for a value that was left out of a file."""

    __slots__ = ("_name", "identity", "nbytes")
    stays, is_lost = False, True

    def __init__(self, name: str) -> None:
        self._name = name
        self.identity, self.nbytes = None, 0

    def renamed(self, name: str) -> Withheld:
        """Return the same for a value that has another name now."""
        return Withheld(name)

    def load(self) -> Tensor:
        """Raise: there is nothing to return."""
        raise LostValueError(
            f"The value of {self._name!r} was left out when this tape was saved (redact=[{self._name!r}])",
            f"Give one: `tape.replay({{{self._name!r}: ...}})`, and query the tape that it returns.",
        )


class Kept:
    """The values that are written.

    Args:
      trace: The trace that is saved.
      program: The part of its program that is written.
      values: One of `VALUES`.
      used: Vars that something other than an equation uses.
    """

    def __init__(self, trace: Trace, program: Program, values: str, used: Collection[int]) -> None:
        self._trace, self._program = trace, program
        self._values = Values(trace)
        storable = {
            var
            for var, kind in enumerate(program.types)
            if DTYPE_NAMES.get(kind.dtype) not in WITHOUT_BYTES and kind.shape is not None
        }
        used = {var for eqn in program.eqns for var in eqn.inputs}.union(used)
        self._needed = {var for var in storable if self._is_needed(var, used)}
        self._vars = set(self._needed)
        if values == "needed":
            self._vars |= {var for eqn in program.eqns for var in read_by_rule(eqn)} & storable
        elif values == "all":
            self._vars |= {var for var in storable if program.producers[var] != LEAF}
        self._vars -= self._withheld()

    def _is_needed(self, var: int, used: Collection[int]) -> bool:
        """Return whether a value cannot be computed from others."""
        trace, producer = self._trace, self._program.producers[var]
        if producer == LEAF and var in trace.facts.history_of:
            return var in trace.values
        if producer == LEAF:  # it may be the output of an equation that is not written
            return var in used and (var in trace.values or trace.program.producers[var] != LEAF)
        return var in trace.values and (
            var in trace.facts.opaque or not is_deterministic(self._program.eqns[producer].op)
        )

    def _withheld(self) -> set[int]:
        return {var for var, value in self._trace.values.items() if isinstance(value, Withheld)}

    def withhold(self, named: Mapping[str, Collection[int]], redact: Collection[str]) -> set[str]:
        """Leave out redacted values and all that is computed from them; return the names of what is left out.

        Raises:
          ValueError: If a redacted value can be computed from values that are kept, or is stored a second time.
        """
        hidden = self._withheld()
        for name in redact:
            own = self._needed.intersection(named[name])
            if not own and hidden.isdisjoint(named[name]):
                raise ValueError(
                    f"redact names {name!r}, which can be computed from other values in the file. "
                    "Redact the values that it is computed from."
                )
            hidden |= own
        _, reached = reached_from(self._program, hidden, range(len(self._program.eqns)))
        self._vars -= (reached - self._needed) | hidden | (reached & self._communicated())
        self._refuse_copies(hidden)
        return {name for name, variables in named.items() if not hidden.isdisjoint(variables)}

    def _communicated(self) -> set[int]:
        """Return the results of collectives: the tape of the whole job computes them from the inputs of all workers."""
        return {var for eqn in self._program.eqns if eqn.op in COLLECTIVES for var in eqn.outputs}

    def _refuse_copies(self, hidden: set[int]) -> None:
        types = self._program.types
        secrets = [var for var in hidden - self._withheld() if bytes_of(types[var]) >= _DISTINCTIVE_BYTES]
        for secret in secrets:
            mine = self._bytes(secret)
            if mine.count(mine[:1]) == len(mine):  # a constant fill is not a secret
                continue
            for var in self._vars:
                if bytes_of(types[var]) == len(mine) and self._bytes(var) == mine:
                    raise ValueError(
                        f"A redacted value would still be in the file: %{var}, {types[var]}, has the same bytes"
                        f"{self._first_use(var)}. Name it and redact it too, or make it inside the block."
                    )

    def _first_use(self, var: int) -> str:
        for eqn in self._program.eqns:
            if var in eqn.inputs:
                return f" ({eqn.op} at {self._program.frame_of(eqn)} takes it)"
        return ""

    def _numpy(self, var: int) -> Any:
        value = self._trace.values.get(var)
        return (value if isinstance(value, tf.Tensor) else self._values(var)).numpy()

    def _bytes(self, var: int) -> bytes:
        return np.asarray(self._numpy(var)).tobytes()

    def tensors(self) -> list[store.Stored]:
        """Return what is written."""
        return [self._stored(var, self._program.types[var]) for var in sorted(self._vars)]

    def _stored(self, var: int, of: TensorType) -> store.Stored:
        name, kind, shape = f"v/{var}", DTYPE_NAMES[of.dtype], tuple(size or 0 for size in of.shape or ())
        if kind == "string":  # as objects: NumPy's own strings lose trailing zeros
            items = np.asarray(self._numpy(var), dtype=object).reshape(-1)
            return store.Stored(name, kind, shape, [bytes(item) for item in items])

        def data() -> np.ndarray:
            return np.ascontiguousarray(self._numpy(var)).reshape(-1).view(np.uint8)

        return store.Stored(name, kind, shape, data)
