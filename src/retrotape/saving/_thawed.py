"""Which equations of a recording go into a file, and which are left out with what they gave in their place."""

from __future__ import annotations

from collections.abc import Collection

from retrotape.errors import NotPersistableError
from retrotape.ir import DTYPE_NAMES, LEAF, Eqn, Program
from retrotape.record import CUSTOM, Recording
from retrotape.saving._document import without_defaults
from retrotape.saving._functions import custom_name
from retrotape.saving._ops import allowed

WITHOUT_BYTES = ("resource", "variant")


class Thawed:
    """The program without equations that a file cannot have, where what they gave can stand for them.

    Args:
      recording: What was recorded.
      freeze: Ops and custom gradients that are left out.
      used: Vars that something else than an equation looks at.
    """

    def __init__(self, recording: Recording, freeze: Collection[str], used: Collection[int]) -> None:
        self._recording, self._freeze = recording, freeze
        self._kept: set[int] = set()
        needed, refused = set(used), []
        eqns = recording.builder.eqns
        for index in range(len(eqns) - 1, -1, -1):
            if self._can_stay(eqns[index]):
                self._kept.add(index)
                needed.update(eqns[index].inputs)
            elif not self._can_go(eqns[index], needed):
                refused.append(index)
        if refused:
            raise self._refusal(refused[-1])
        self._drop_resources()
        self.moved = {old: new for new, old in enumerate(sorted(self._kept))}  # numbers of equations that stay

    def _name(self, eqn: Eqn) -> str:
        return custom_name(eqn) if eqn.op == CUSTOM else eqn.op

    def _can_stay(self, eqn: Eqn) -> bool:
        return eqn.op in allowed() and self._name(eqn) not in self._freeze

    def _can_go(self, eqn: Eqn, needed: set[int]) -> bool:
        """Say whether no derivative is lost where what an equation gave stands for it."""
        inert, ends = self._recording.inert, self._recording.ends  # no derivative goes through these anyway
        return self._name(eqn) in self._freeze or all(
            var in inert or var in ends or var not in needed or self._kind(var) in WITHOUT_BYTES for var in eqn.outputs
        )

    def _refusal(self, index: int) -> NotPersistableError:
        eqn = self._recording.builder.eqns[index]
        where = str(self._recording.program().frame_of(eqn))
        if any(self._kind(var) in WITHOUT_BYTES for var in eqn.inputs):
            reason = "it uses a table, a queue, an iterator or the like, which has no value to write"
            return NotPersistableError(index, eqn.op, where, reason, "move it out of the block")
        return NotPersistableError(index, eqn.op, where, "this op is not on the list of ops that a tape may have")

    def _kind(self, var: int) -> str:
        return DTYPE_NAMES.get(self._recording.builder.types[var].dtype, "")

    def _drop_resources(self) -> None:
        """Drop what works on something without bytes, where nothing else looks at what it gave; else raise."""
        recording = self._recording
        eqns, producers = recording.builder.eqns, recording.builder.producers
        broken = set()
        for index in sorted(self._kept):
            for var in eqns[index].inputs:
                made = producers[var]
                from_outside = made == LEAF or made not in self._kept or made in broken
                if from_outside and self._kind(var) in WITHOUT_BYTES:
                    broken.add(index)
        used = {var for index in self._kept - broken for var in eqns[index].inputs}
        used.update(var for back in recording.backwards.values() for var in back.captures)
        for index in sorted(broken):
            if not used.isdisjoint(eqns[index].outputs):
                raise self._refusal(index)
        self._kept -= broken

    def program(self) -> Program:
        """Return the program as it will be written."""
        whole = self._recording.program()
        eqns = tuple(without_defaults(whole.eqns[index]) for index in self.moved)
        producers = tuple(self.moved.get(index, LEAF) for index in whole.producers)
        return Program(whole.types, producers, eqns, whole.frames)
