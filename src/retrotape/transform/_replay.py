"""The same program on other values."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from typing import Any

from retrotape.errors import LostValueError, NotRecordedError, ReplayError, ReplicaError, TapeUseError
from retrotape.execute import Values, run_eqn
from retrotape.ir import Eqn, Frame, TensorType, bytes_of
from retrotape.record import Backward, Cell, Recording, born, cells_in, current_stack, is_computed, looked_at
from retrotape.record import same as is_same
from retrotape.rules import allowed
from retrotape.tf import core
from retrotape.tf.nests import describe, is_variable
from retrotape.transform._portable import portable
from retrotape.transform._seeds import new_seeds

Tensor = Any
RESOURCE = 20


def replay(recording: Recording, given: Sequence[tuple[Any, Tensor]], resample: bool, trust: bool) -> Recording:
    """Return the recording that would have come about with other values of some leaves.

    Args:
      recording: What was recorded.
      given: What gets a new value, a tensor or a variable, and the new value.
      resample: Whether random numbers are drawn anew.
      trust: Whether to go on where Python has looked at a value that is another one now.
    """
    whole = portable(recording)
    leaves: dict[int, Tensor] = {}
    for part, value in given:
        leaf = _leaf(whole, part)
        if leaf in leaves:
            raise TapeUseError(
                f"replay got two new values for {describe(part)}, which is one tensor. Give one of them."
            )
        leaves[leaf] = value
    if resample:
        leaves = {**new_seeds(whole), **leaves}
    if whole.guard is not None:
        whole.guard.extend(
            sum(bytes_of(TensorType(core.eager_dtype(new), new._shape_tuple())) for new in leaves.values())
        )
    births = born(whole, recording)  # while both hold the same values: what lies in a file is looked up below
    with whole.explained():
        found = _Replay(whole, leaves, resample, trust).run()
    found.births = births
    return found


def _leaf(recording: Recording, part: Any) -> int:
    """Return the leaf that a new value takes the place of."""
    cells = cells_in(recording, part) if is_variable(part) else []
    if len(cells) > 1:
        raise ReplicaError(
            f"{describe(part)} has a part in each replica",
            "Give a new value for each part: `strategy.experimental_local_results(variable)`.",
        )
    cell = cells[0] if cells else None
    var = recording.known(part._id) if not is_variable(part) else (cell.versions[0] if cell is not None else None)
    if var is None:
        raise NotRecordedError(describe(part), "it took no part in what was recorded", "Use it inside the block.")
    if recording.builder.producers[var] >= 0:
        raise TapeUseError(
            f"{describe(part)} was computed on this tape, so it cannot be given another value. "
            "Give new values for what the tape started from."
        )
    return var


class _Replay:
    def __init__(self, old: Recording, given: Mapping[int, Tensor], resample: bool, trust: bool) -> None:
        self._old, self._old_values = old, Values(old)
        self._resample, self._trust = resample, trust
        self._new: dict[int, Tensor] = dict(given)  # only what is another value now
        self._looks: dict[int, list[tuple[int, int, str]]] = {}
        for identity, stamp, frame, how, _ in old.looks:
            var = old.known(identity)
            if var is not None:
                self._looks.setdefault(bisect_left(old.stamps, stamp), []).append((var, frame, how))

    def run(self) -> Recording:
        """Run what depends on a new value, in the order in which it was recorded."""
        with current_stack().unheard():
            for index, eqn in enumerate(self._old.builder.eqns):
                self._check_looks(index)
                depends = any(var in self._new for var in eqn.inputs)
                if depends if is_computed(eqn.op) else self._is_drawn_again(eqn, depends):
                    self._run(eqn)
            self._check_looks(len(self._old.builder.eqns))
            return self._recording()

    def _is_drawn_again(self, eqn: Eqn, depends: bool) -> bool:
        if eqn.op in allowed():  # it draws random numbers
            return self._resample
        types = self._old.builder.types
        if depends and (eqn.outputs or any(types[var].dtype == RESOURCE for var in eqn.inputs)):  # else it only prints
            where = self._old.program().frame_of(eqn)
            raise TapeUseError(
                f"{eqn.op} at {where} depends on the new values and cannot run again: it uses a table, a queue or the "
                "like, or something outside of TensorFlow. Record again with the new inputs."
            )
        return False

    def _run(self, eqn: Eqn) -> None:
        inputs = [self._value(var) for var in eqn.inputs]
        if self._old.guard is not None:
            outputs = self._old.guard.run(eqn, inputs, self._old.builder.types, resized=True)
        else:
            outputs = run_eqn(eqn, inputs)
        self._check_sizes(eqn, outputs)
        self._new.update(zip(eqn.outputs, outputs, strict=False))

    def _value(self, var: int) -> Tensor:
        found = self._new.get(var)
        return self._old_values(var) if found is None else found

    def _check_sizes(self, eqn: Eqn, outputs: Sequence[Tensor]) -> None:
        """Raise where a result has another size: Python sees sizes without our hearing of it, and may have used it."""
        types = self._old.builder.types
        for var, tensor in zip(eqn.outputs, outputs, strict=False):
            before, now = types[var].shape, tensor._shape_tuple()
            if before != now and before is not None and not self._trust:
                size = (
                    f"{eqn.op} gave shape {list(before)} and now gives {list(now)}, and Python may have used the size"
                )
                raise ReplayError(str(self._old.program().frame_of(eqn)), "shape", size)

    def _check_looks(self, index: int) -> None:
        for var, frame, how in self._looks.get(index, ()) if not self._trust else ():
            now = self._new.get(var)
            if now is None:
                continue
            place: Frame = self._old.program().frames[frame]
            try:
                before = self._old_values(var)
            except LostValueError as lost:  # nobody can say that it is the same
                raise ReplayError(str(place), f"{how.strip('_')}; what it was has been left out") from lost
            if not is_same(now, before):
                raise ReplayError(str(place), how.strip("_"))

    def _recording(self) -> Recording:
        """Return a recording of its own with the same program, and the values that its gradients look at."""
        old, new = self._old, Recording()
        new.builder.types[:], new.builder.producers[:] = old.builder.types, old.builder.producers
        new.builder.eqns[:] = old.builder.eqns
        for var, value in self._new.items():  # sizes may depend on values
            new.builder.types[var] = TensorType(core.eager_dtype(value), value._shape_tuple())
        new.stamps, new.frames, new.looks = list(old.stamps), old.frames, list(old.looks)
        for name in ("assigned", "opaque", "gaps", "inert", "ends", "moments"):
            getattr(new, name).update(getattr(old, name))
        for identity, cell in old.cells.items():
            twin = Cell(cell.handle, cell.versions[0])
            twin.versions, twin.since = list(cell.versions), list(cell.since)
            new.cells[identity] = twin
            new.cell_of.update(dict.fromkeys(twin.versions, twin))
        new.scopes = dict(old.scopes)
        new.variables, new.owners = dict(old.variables), dict(old.owners)
        new.backwards = {index: Backward(*back) for index, back in old.backwards.items()}
        new.guard = old.guard
        for identity, var in old.identities():
            new.alias(identity, var)
        needed = {var for eqn in old.builder.eqns for var in looked_at(eqn)}
        for var, value in old.values.items():
            if var not in self._new:
                new.values[var] = value
        for var, value in self._new.items():
            if var in needed or var in old.values:
                new.values[var] = value
                new.alias(value._id, var)
        return new
