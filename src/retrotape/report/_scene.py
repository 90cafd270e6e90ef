"""What a report is about: the places of a trace, what flows through them, gradients; each computed once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from functools import cached_property
from itertools import combinations
from typing import Any

from retrotape.diagnose.losses import Chosen
from retrotape.diagnose.nonfinite import flattened
from retrotape.diagnose.summary import sizes_of
from retrotape.diagnose.why import title_of
from retrotape.errors import RetrotapeError, printable
from retrotape.grads import Gradients
from retrotape.ir import Frame
from retrotape.record import EagerSession
from retrotape.report._data import NO_PLACE, Cosine, Flow, Line, Place, Stats, Weight
from retrotape.report._flow import Backward, Forward, backward, forward, later
from retrotape.report._histories import changing
from retrotape.report._places import Places
from retrotape.report._stats import stats_of, together
from retrotape.tf.core import tf
from retrotape.tf.nests import unwrap

_WORST = 3  # places where two losses conflict
_IN_FUNCTIONS = "Calls of a tf.function are shown op by op; which values the tape keeps is known only for a whole call."


class Scene:
    """A trace and the gradients of losses on it.

    Args:
      tape: The tape: its queries are `backward_each`, `why` and `first_nonfinite`.
      session: Its session.
      losses: What to take gradients of.
      wanted: The same, as queries accept them.
      sources_for: Returns what a loss was differentiated with respect to so far.

    Attributes:
      own: The trace of the tape.
      trace: The same with calls of functions inlined, where that is possible.
      is_inlined: Whether it has such calls.
      targets: The vars of the losses.
      notes: What is missing, and why.
    """

    def __init__(
        self,
        tape: Any,
        session: EagerSession,
        losses: Sequence[Chosen],
        wanted: Sequence[Any],
        sources_for: Callable[[tuple[int, ...]], Set[int]],
    ) -> None:
        self.tape, self._session, self._sources_for = tape, session, sources_for
        self.losses, self.wanted = losses, wanted
        self.own = session.trace
        self.trace, vars_ = flattened(self.own, [var for one in losses for var in one.vars])
        self.targets = list(vars_)
        self.is_inlined = self.trace is not self.own
        if not self.is_inlined:  # what the search for problems records is not part of the report
            self.trace = self.own.fork()
        self.program = self.trace.program
        self.notes: list[str] = [_IN_FUNCTIONS] if self.is_inlined else []

    # ------------------------------------------------------------------ places and lines

    @cached_property
    def places(self) -> Places:
        """Where the equations ran."""
        return Places(self.trace, self.targets)

    @cached_property
    def lines(self) -> dict[Frame, Line]:
        """The lines of user code; several places may be on one."""
        frames = self.trace.frames
        code = {frames[number]: text for number, text in frames.all_code()}
        return {frame: Line(*frame, printable(code.get(frame, ""))) for frame in dict.fromkeys(frames)}

    def line_of(self, frame: Frame) -> Line:
        """Return a line as data."""
        return self.lines.get(frame) or Line(*frame)

    def line_at(self, index: int) -> Line:
        """Return the line of an equation."""
        return self.line_of(self.program.frame_of(self.program.eqns[index]))

    @cached_property
    def described(self) -> tuple[Place, ...]:
        """The places as data."""
        return self.places.described(self.sizes)

    @cached_property
    def sizes(self) -> dict[int, int]:
        """The size of each value that is kept, by var; not known inside functions."""
        return {} if self.is_inlined else sizes_of(self.trace)

    @cached_property
    def _first_places(self) -> dict[int, int]:
        """The place that first used each value of a variable, by var."""
        found: dict[int, int] = {}
        for eqn, place in zip(self.program.eqns, self.places.of, strict=True):
            for var in eqn.inputs:
                if var in self.trace.facts.history_of:
                    found.setdefault(var, place)
        return found

    # ------------------------------------------------------------------ gradients

    @cached_property
    def rows(self) -> list[Gradients]:
        """The gradient of each loss; none if they cannot be computed."""
        if not self.wanted:
            return []
        try:
            return list(self.tape.backward_each(list(self.wanted)))
        except RetrotapeError as error:
            self.notes.append(f"Gradients with respect to variables are missing: {error}")
            return []

    @cached_property
    def back(self) -> Backward:
        """The gradients of the losses, taken together, with respect to what places return."""
        outputs = [var for var in self.places.outputs if var is not None]
        try:
            found = backward(self.trace, self.targets, outputs) if self.targets else Backward()
        except RetrotapeError as error:
            self.notes.append(f"Gradients with respect to activations are missing: {error}")
            return Backward()
        for index, reason in found.unruled.items():
            name = f"{title_of(self.trace, index)} at {self.line_at(index)}"
            self.notes.append(f"Gradients with respect to activations before {name} are missing: {reason}")
        return found

    @cached_property
    def seen(self) -> Forward:
        """The values that places return, and those of variables."""
        histories = self.trace.facts.histories.values()
        outputs = [var for var in self.places.outputs if var is not None]
        first = [history.versions[0] for history in histories if history.key in self.trace.variables]
        return forward(self.trace, [*outputs, *first, *self.targets], changing(self.trace))

    @cached_property
    def weights(self) -> list[Weight]:
        """The gradients of the losses, taken together, with respect to variables."""
        if not self.rows:
            return []
        total: Gradients = sum(self.rows[1:], start=self.rows[0])
        return [self._weight(key, total) for key in total.keys()]

    def _weight(self, key: Any, total: Gradients) -> Weight:
        missing = all(row.get(key) is None for row in self.rows)
        grad = None if missing else total.get(key)
        history = self._session.history(unwrap(key))
        own = None if history is None else self.trace.facts.histories.get(history.key)
        versions = [] if own is None else own.versions
        place = next((self._first_places[var] for var in versions if var in self._first_places), NO_PLACE)
        stats = stats_of(grad)
        bound = 0.0 if own is None else self.back.rounding.get(own.key, 0.0)
        return Weight(
            name=self.own.path_of(unwrap(key)),
            shape="x".join(map(str, key.shape)) or "scalar",
            place=place,
            gradient=stats,
            value=self.seen.stats.get(versions[0]) if versions else None,
            state=_state(stats, bound, grad),
            reason=self.rows[0].why(key) if missing else "",
        )

    @cached_property
    def flow(self) -> tuple[Flow, ...]:
        """What flows through each place, where anything is known of it."""
        by_place: dict[int, list[Stats]] = {}
        for one in self.weights:
            if one.gradient is not None:
                for place in self.places.chain(one.place):
                    by_place.setdefault(place, []).append(one.gradient)
        found = []
        for place, var in enumerate(self.places.outputs):
            ahead = None if var is None else self.seen.stats.get(var)
            back = None if var is None else self.back.stats.get(var)
            own = together(by_place.get(place, ()))
            if back is not None or own is not None or ahead is not None:
                found.append(Flow(place, ahead, back, own))
        return tuple(found)

    def later(self, norms: Mapping[int, float], last: bool = False) -> dict[int, float]:
        """Return, for each place, the largest norm of those (or the last ones) after it on its paths to the losses."""
        outputs = self.places.outputs
        own: dict[int, float] = {}
        for place, norm in norms.items():
            var = outputs[place]
            if var is not None and norm > 0.0:
                own[var] = max(own.get(var, 0.0), norm)
        found = later(self.program, self.targets, own, last)
        return {place: found[var] for place, var in enumerate(outputs) if var is not None and var in found}

    @cached_property
    def gated(self) -> frozenset[int]:
        """The places with gates: what two sigmoids or more return is multiplied by something else."""
        sigmoids = {
            eqn.outputs[0]: place
            for eqn, place in zip(self.program.eqns, self.places.of, strict=True)
            if eqn.op == "Sigmoid"
        }
        gates = {var for eqn in self.program.eqns if eqn.op == "Mul" for var in eqn.inputs if var in sigmoids}
        return frozenset(place for place, count in Counter(sigmoids[var] for var in gates).items() if count > 1)

    @cached_property
    def cosines(self) -> tuple[Cosine, ...]:
        """How the gradients of each pair of losses agree."""
        pairs = combinations(zip(self.losses, self.rows, strict=True), 2) if self.rows else ()
        return tuple(
            Cosine(
                one.name, other.name, float(row.cosine(second)), self._worst(row, second), self._is_summed(one, other)
            )
            for (one, row), (other, second) in pairs
        )

    def _is_summed(self, one: Chosen, other: Chosen) -> bool:
        """Return whether somebody may add gradients of two losses: not if each was asked for variables of its own."""
        first, second = self._sources_for(one.vars), self._sources_for(other.vars)
        return not first or not second or not first.isdisjoint(second)

    def _worst(self, row: Gradients, other: Gradients) -> tuple[tuple[str, float], ...]:
        """Return the places where two gradients oppose each other most."""
        keys: dict[int, list[Any]] = {}
        for key, weight in zip(row.keys(), self.weights, strict=True):
            keys.setdefault(weight.place, []).append(key)
        values = [(place, float(row.only(*own).cosine(other.only(*own)))) for place, own in keys.items()]
        worst = sorted((value, place) for place, value in values if value < 0.0 and place != NO_PLACE)[:_WORST]
        return tuple((self.described[place].name, value) for value, place in worst)


def _state(stats: Stats | None, bound: float, grad: Any) -> str:
    if stats is None:
        return "none"
    if stats.nonfinite:
        return "nonfinite"
    if stats.norm == 0.0:
        return "zero"
    if stats.norm <= bound:
        return "rounding"
    return "sparse" if isinstance(grad, tf.IndexedSlices) else "ok"
