"""Several recordings as one, in the order in which they ran."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrotape.ir import Eqn
from retrotape.record._cells import Backward, Cell
from retrotape.record._recording import Recording
from retrotape.record._traits import RESOURCE
from retrotape.tf.core import share_buffer

Tensor = Any


Place = tuple[int, int]  # which recording, and a var of it


def merge(recordings: Sequence[Recording], links: Mapping[Place, Place] | None = None) -> Recording:
    """Return one recording of everything that these have: shared tensors and variables connect them, and links do.

    A link says that a leaf, of a recording that comes later, is what another recording calls that var. An op that two
    of them heard counts once. Where a variable has another value when the next recording first sees it than it had when
    the last one left it, an assignment was missed: that value has no past.
    """
    merged = Recording()
    merger = Merger(merged, recordings, links)
    merged.guard = next((recording.guard for recording in recordings if recording.guard is not None), None)
    positions = [
        (stamp, which, index)
        for which, recording in enumerate(recordings)
        for index, stamp in enumerate(recording.stamps)
    ]
    for stamp, which, index in sorted(positions):
        merger.add(which, index, stamp)
    for which, recording in enumerate(recordings):
        merger.finish(which, recording)
    return merged


class Merger:
    """Writes the equations of several recordings into one, each once."""

    def __init__(
        self, merged: Recording, recordings: Sequence[Recording], links: Mapping[Place, Place] | None = None
    ) -> None:
        self._merged = merged
        self._links = links or {}
        self._recordings: list[Recording] = []
        self._maps: list[dict[int, int]] = []  # var → var of the whole
        self._seen: dict[int, Eqn] = {}  # by stamp
        self._identities: list[dict[int, list[int]]] = []
        for recording in recordings:
            self._take_in(recording, {})

    def _take_in(self, recording: Recording, known: dict[int, int]) -> int:
        """Return the number of one more recording, some of whose vars are already known to the whole."""
        identities: dict[int, list[int]] = {}
        for identity, var in recording.identities():
            identities.setdefault(var, []).append(identity)
        self._recordings.append(recording)
        self._maps.append(known)
        self._identities.append(identities)
        return len(self._recordings) - 1

    def add(self, which: int, index: int, stamp: int) -> None:
        """Take over an equation, unless another recording has it already."""
        recording, merged = self._recordings[which], self._merged
        eqn = recording.builder.eqns[index]
        twin = self._seen.get(stamp)
        if twin is not None and len(twin.outputs) == len(eqn.outputs):
            for var, same_var in zip(eqn.outputs, twin.outputs, strict=True):
                self._connect(which, var, same_var)
            for var, same_var in zip(eqn.inputs, twin.inputs, strict=False):
                if var not in self._maps[which]:
                    self._connect(which, var, same_var)
            return
        inputs = tuple(self._present(which, var) for var in eqn.inputs)
        outputs = merged.builder.define([recording.builder.types[var] for var in eqn.outputs])
        number = len(merged.builder.eqns)
        for var, new in zip(eqn.outputs, outputs, strict=True):
            self._connect(which, var, new)
            self._take_version(recording, var, new, number)
        frame = merged.frames.number(recording.frames.place(eqn.frame))
        merged.builder.append(eqn.op, inputs, outputs, eqn.attrs, frame)
        merged.stamps.append(stamp)
        self._seen[stamp] = merged.builder.eqns[-1]
        self._take_backward(which, index, number)

    def _take_backward(self, which: int, index: int, number: int) -> None:
        recording, merged = self._recordings[which], self._merged
        back = recording.backwards.get(index)
        if back is not None:
            inputs = tuple(self._var(which, var) for var in back.inputs)
            outputs = tuple(self._maps[which][var] for var in back.outputs)
            captures = tuple(self._var(which, var) for var in back.captures)
            merged.backwards[number] = Backward(back.function, inputs, outputs, captures)
        if index in recording.recomputed:
            merged.recomputed.add(number)
        if index in recording.calls:
            merged.calls[number] = recording.calls[index]

    def _connect(self, which: int, var: int, new: int) -> None:
        """Let a var of one recording be a var of the whole, with what is known of it."""
        recording, merged = self._recordings[which], self._merged
        self._maps[which][var] = new
        if var in recording.values:
            merged.values.setdefault(new, recording.values[var])
        for identity in self._identities[which].get(var, ()):
            merged.alias(identity, new)
        for ours, theirs in ((merged.inert, recording.inert), (merged.ends, recording.ends)):
            if var in theirs:
                ours.add(new)

    def _take_version(self, recording: Recording, var: int, new: int, number: int) -> None:
        cell = recording.cell_of.get(var)
        if cell is None:
            return
        merged = self._merged
        merged.add_version(self._handle_of(cell), new, number)
        merged.assigned.add(new)
        if var in recording.opaque:
            merged.opaque.add(new)

    def _handle_of(self, cell: Cell) -> Tensor:
        return cell.handle

    def _present(self, which: int, var: int) -> int:
        """Return what stands for an input now: of a variable the newest value, though another recording heard of it."""
        found, cell = self._var(which, var), self._recordings[which].cell_of.get(var)
        if cell is None:
            return found
        ours = self._merged.cells.get(self._handle_of(cell)._id)
        if ours is not None and self._merged.cell_of.get(found) is ours:
            self._maps[which][var] = found = ours.current
        return found

    def _var(self, which: int, var: int) -> int:
        """Return the var of the whole that stands for an input."""
        found = self._maps[which].get(var)
        if found is None:
            recording = self._recordings[which]
            cell, linked = recording.cell_of.get(var), self._links.get((which, var))
            if linked is not None:
                found = self._var(*linked)
            else:
                found = self._leaf(which, var) if cell is None else self._entry(recording, var, cell)
            self._connect(which, var, found)
        return found

    def _leaf(self, which: int, var: int) -> int:
        merged, recording = self._merged, self._recordings[which]
        for identity in self._identities[which].get(var, ()):
            known = merged.known(identity)
            if known is not None:
                return known
        return merged.builder.leaf(recording.builder.types[var])

    def _entry(self, recording: Recording, var: int, cell: Cell) -> int:
        """Return the version that a variable has where a recording first sees it, or where it had changed unheard."""
        merged = self._merged
        ours = merged.cells.get(cell.handle._id)
        value = recording.value(var)
        if ours is not None:
            held = merged.value(ours.current)
            known = held is not None and value is not None
            # A gap of one recording is none where another has recorded how the value came about.
            if share_buffer(held, value) if known else var not in recording.gaps:
                return ours.current
        version = merged.builder.leaf(recording.builder.types[var])
        merged.add_version(cell.handle, version, len(merged.builder.eqns) - 1)
        if ours is not None and var not in recording.inert:
            merged.gaps.add(version)
        return version

    def finish(self, which: int, recording: Recording) -> None:
        """Take over what belongs to no equation."""
        merged = self._merged
        for var, kind in enumerate(recording.builder.types):
            if (
                recording.builder.producers[var] < 0 and kind.dtype != RESOURCE
            ):  # handles that nothing takes are nothing
                self._var(which, var)
        merged.moments |= recording.moments
        for look in recording.looks:
            place = merged.frames.number(recording.frames.place(look.frame))
            merged.looks.append(look._replace(frame=place))
        for identity, variable in recording.variables.items():
            merged.variables.setdefault(identity, variable)
        merged.owners.update(recording.owners)
        merged.scopes.update(recording.scopes)
