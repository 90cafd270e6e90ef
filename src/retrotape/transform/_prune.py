"""Which equations of a trace go into a file, and which are replaced by their outputs."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from retrotape.errors import NotPersistableError, RetrotapeError, TapeUseError
from retrotape.execute import custom_name
from retrotape.ir import CUSTOM, DTYPE_NAMES, LEAF, Eqn, Program
from retrotape.record import Trace, without_defaults
from retrotape.rules import allowed

WITHOUT_BYTES = ("resource", "variant")


class Pruned:
    """The program without equations that a file cannot have, where their outputs can replace them.

    Args:
      trace: The trace.
      freeze: Ops and custom gradients to replace by their outputs.
      used: Vars that something other than an equation reads.
      named: The vars of each name, under which a replay can give new values.
      redact: The names whose values are left out.
    """

    def __init__(
        self,
        trace: Trace,
        freeze: Collection[str],
        used: Collection[int],
        named: Mapping[str, Sequence[int]],
        redact: Collection[str],
    ) -> None:
        self._trace, self._freeze = trace, freeze
        self._kept: set[int] = set()
        needed, refused = set(used), []
        eqns = trace.program.eqns
        for index in range(len(eqns) - 1, -1, -1):
            if self._can_stay(eqns[index]):
                self._kept.add(index)
                needed.update(eqns[index].inputs)
            elif not self._can_go(eqns[index], needed):
                refused.append(index)
        if refused:
            raise self._refusal(refused[-1])
        self._drop_resources()
        self._refuse_stale(needed, named, redact)
        self.moved = {old: new for new, old in enumerate(sorted(self._kept))}  # of equations that stay

    def _name(self, eqn: Eqn) -> str:
        return custom_name(eqn) if eqn.op == CUSTOM else eqn.op

    def _can_stay(self, eqn: Eqn) -> bool:
        return eqn.op in allowed() and self._name(eqn) not in self._freeze

    def _can_go(self, eqn: Eqn, needed: set[int]) -> bool:
        """Return whether an equation can be replaced by its outputs without losing a derivative."""
        inert, ends = (
            self._trace.facts.discrete,
            self._trace.facts.nondifferentiable,
        )  # these have no derivative anyway
        return self._name(eqn) in self._freeze or all(
            var in inert or var in ends or var not in needed or self._kind(var) in WITHOUT_BYTES for var in eqn.outputs
        )

    def _refusal(self, index: int) -> NotPersistableError:
        eqn = self._trace.program.eqns[index]
        where = str(self._trace.program.frame_of(eqn))
        if any(self._kind(var) in WITHOUT_BYTES for var in eqn.inputs):
            reason = "it uses a table, a queue, an iterator or the like, which has no value to write"
            return NotPersistableError(index, eqn.op, where, reason, "move it out of the block")
        return NotPersistableError(index, eqn.op, where, "this op is not on the list of ops that a tape may have")

    def _kind(self, var: int) -> str:
        return DTYPE_NAMES.get(self._trace.program.types[var].dtype, "")

    def _drop_resources(self) -> None:
        """Drop equations on resources that cannot be stored; raise if their outputs are used."""
        trace = self._trace
        eqns, producers = trace.program.eqns, trace.program.producers
        broken = set()
        for index in sorted(self._kept):
            for var in eqns[index].inputs:
                made = producers[var]
                from_outside = made == LEAF or made not in self._kept or made in broken
                if from_outside and self._kind(var) in WITHOUT_BYTES:
                    broken.add(index)
        used = {var for index in self._kept - broken for var in eqns[index].inputs}
        used.update(var for back in trace.facts.backward_functions.values() for var in back.captures)
        for index in sorted(broken):
            if not used.isdisjoint(eqns[index].outputs):
                raise self._refusal(index)
        self._kept -= broken

    def _refuse_stale(self, needed: set[int], named: Mapping[str, Sequence[int]], redact: Collection[str]) -> None:
        """Raise if an equation replaced by its outputs depends on a name: in a replay the outputs would be stale.

        For an op that the user froze, that is intended, unless it depends on a redacted value.
        """
        builder = self._trace.program
        gone = [
            index
            for index, eqn in enumerate(builder.eqns)
            if index not in self._kept
            and any(var in needed and self._kind(var) not in WITHOUT_BYTES for var in eqn.outputs)
        ]
        if not gone:
            return
        names, reach = list(named), [0] * len(builder.types)  # by var: a bit for each name that it depends on
        for bit, name in enumerate(names):
            for var in named[name]:
                reach[var] |= (builder.producers[var] == LEAF) << bit
        for eqn in builder.eqns:
            found = 0
            for var in eqn.inputs:
                found |= reach[var]
            for var in eqn.outputs:
                reach[var] |= found
        for index in gone:
            eqn = builder.eqns[index]
            sources = [name for bit, name in enumerate(names) if any(reach[var] >> bit & 1 for var in eqn.outputs)]
            if self._name(eqn) in self._freeze:
                sources = [name for name in sources if name in redact]
            if sources:
                raise self._stale(index, sources[0], sources[0] in redact)

    def _stale(self, index: int, name: str, left_out: bool) -> RetrotapeError:
        eqn = self._trace.program.eqns[index]
        where = str(self._trace.program.frame_of(eqn))
        if left_out:
            return TapeUseError(
                f"redact= leaves out {name!r}, and the file would hold what {eqn.op} at {where} computed from it. "
                f"Move that op out of the block, or save without redact=[{name!r}]."
            )
        reason = f"a file cannot run it, and a replay with another {name!r} would use its old outputs"
        return NotPersistableError(index, eqn.op, where, reason)

    def program(self) -> Program:
        """Return the program as it will be written."""
        whole = self._trace.program
        eqns = tuple(without_defaults(whole.eqns[index]) for index in self.moved)
        producers = tuple(self.moved.get(index, LEAF) for index in whole.producers)
        return Program(whole.types, producers, eqns, whole.frames)
