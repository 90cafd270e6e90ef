"""Finding out why. Every verdict has a witness in the recording; without one it is UNKNOWN."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from retrotape._nests import describe, is_variable
from retrotape._tf import tf
from retrotape._versions import Version
from retrotape.errors import NotPersistableError, OpaqueUpdateError, UnseenUpdateError
from retrotape.execute import Plan
from retrotape.record import CUSTOM, TRAINABLE, EagerLog, Recording
from retrotape.saving import flatten
from retrotape.why._absent import absent
from retrotape.why._explanation import Explanation
from retrotape.why._graph import SHAPES, Between
from retrotape.why._inside import look_inside
from retrotape.why._left import Left
from retrotape.why._verdicts import Verdict
from retrotape.why._walk import Walked, is_zero, norm
from retrotape.why._zero import STRAIGHT, where_it_vanishes

Tensor = Any
Said = tuple[str, str]
_STEPS = frozenset(("Round", "Rint", "Floor", "Ceil", "FloorDiv", "Sign"))
_NAMED = 3  # other cuts that are named


def explain(
    log: EagerLog,
    targets: Sequence[Any],
    source: Any,
    *,
    through_updates: bool = False,
    since: int | None = None,
    words: Said | None = None,
) -> Explanation:
    """Return why `targets`, tensors that are summed, have a gradient by `source`, a tensor or a variable, or none.

    Args:
      log: What was recorded.
      targets: Tensors or variables.
      source: A tensor, a variable, or a value that a variable had.
      through_updates: As for `gradient`.
      since: As for `gradient`.
      words: What to call the target and the source.
    """
    said = words or (" + ".join(describe(part) for part in targets), _describe(source))
    for part, role in (*((target, "target") for target in targets), (source, "source")):
        if part.dtype.base_dtype.as_datatype_enum not in TRAINABLE:
            detail, remedy = f"The {role} is {part.dtype.name}.", f"Make the {role} floating point."
            return Explanation(Verdict.INTEGER, *said, detail=detail, remedy=remedy)
    found = absent(log, targets, source, said)
    if found is not None:
        return found
    through_updates = through_updates or isinstance(source, Version)
    return _Inquiry(log, targets, source, through_updates, since, said).explain()


def _describe(source: Any) -> str:
    return repr(source) if isinstance(source, Version) else describe(source)


def _inside_out(recording: Recording) -> Recording:
    """Return a recording in which functions are taken apart, where that can be done."""
    if not recording.calls:
        return recording
    try:
        return flatten(recording)
    except (NotPersistableError, OpaqueUpdateError):
        return recording


class _Inquiry:
    def __init__(
        self, log: EagerLog, targets: Sequence[Any], source: Any, through: bool, since: int | None, said: Said
    ) -> None:
        self._log, self._said = log, said
        self._given, self._source, self._through, self._since = targets, source, through, since
        self._between = self._in(log.recording)

    def _in(self, recording: Recording) -> Between:
        targets = [_var(recording, target) for target in self._given]
        return Between(recording, targets, self._sources(recording), self._through, self._since)

    def _sources(self, recording: Recording) -> list[int]:
        source = self._source
        if isinstance(source, Version):
            return [recording.cells[source.variable.handle._id].versions[source.number]]
        if not is_variable(source):
            return [_var(recording, source)]
        cell = recording.cells[source.handle._id]
        return [cell.number(self._since or 0)] if self._through else list(cell.versions)

    def explain(self) -> Explanation:
        """Return what is so."""
        try:
            plan = self._between.plan()
        except UnseenUpdateError as error:
            return Explanation(Verdict.UNSEEN_UPDATE, *self._said, detail=str(error))
        walked = self._walked(self._between, plan)
        if walked is not None and walked.arrived and not walked.refused:
            return self._arrived(plan, walked)
        if walked is not None and walked.problem and self._gets_through(self._between, plan, walked):
            detail = f"The gradient itself was not computed: {walked.problem}."
            return self._connected(self._between, plan, detail, walked)
        return self._missing(plan, walked)

    def _walked(self, between: Between, plan: Plan) -> Walked | None:
        if plan.reached.isdisjoint(between.targets):
            return None
        seeds: dict[int, list[Any]] = {}
        for var, target in zip(between.targets, self._given, strict=True):
            seed = tf.ones(target.shape, target.dtype) if is_variable(target) else tf.ones_like(target)
            seeds.setdefault(var, []).append(seed)
        return Walked(between.recording, plan, seeds)

    def _gets_through(self, between: Between, plan: Plan, walked: Walked) -> bool:
        return not walked.dead or not between.flowing(plan, walked.dead).isdisjoint(between.targets)

    # ------------------------------------------------------------------ there is a path

    def _arrived(self, plan: Plan, walked: Walked) -> Explanation:
        between, recording = self._between, _inside_out(self._log.recording)
        if recording is not self._log.recording:  # what ran inside of functions is told too, if it tells the same
            inside = self._in(recording)
            inner = inside.plan()
            again = self._walked(inside, inner)
            if again is not None and again.arrived:
                between, plan, walked = inside, inner, again
        if not all(is_zero(grad) for grad in walked.arrived.values()):
            total = norm(list(walked.arrived.values()))
            return self._connected(between, plan, f"The norm of the gradient is {total:.3g}.", walked)
        found = where_it_vanishes(between.recording, plan, walked)
        cut = None if found.eqn is None else between.step(found.eqn)
        detail, remedy = found.detail, found.remedy
        if found.eqn in between.recording.calls:
            detail = "It is not used in the branch that the function took, or what is made of it inside is flat."
        if found.others:
            detail += f" The same happens on {found.others} more routes."
        path = between.path(between.sources, between.targets, within=plan.reached)
        return Explanation(Verdict.ZERO, *self._said, cut, between.steps(path), detail=detail, remedy=remedy)

    def _connected(self, between: Between, plan: Plan, detail: str, walked: Walked) -> Explanation:
        path = between.path(between.sources, between.targets, within=plan.reached)
        if not walked.problem:
            detail += _largest_change(between, walked, path)
        else:
            detail += " Ask `tape.gradient`."
        return Explanation(Verdict.CONNECTED, *self._said, reached=between.steps(path), detail=detail)

    # ------------------------------------------------------------------ there is none

    def _missing(self, plan: Plan, walked: Walked | None) -> Explanation:
        recording = _inside_out(self._log.recording)
        if recording is not self._log.recording:
            self._between = self._in(recording)
            plan = self._between.plan()
            walked = self._walked(self._between, plan)
        between = self._between
        if not between.is_touched():
            return self._apart()
        cuts = between.cuts(between.flowing(plan, walked.dead if walked else ()))
        if not cuts:
            return self._unknown()
        return self._cut(cuts, plan, walked)

    def _cut(self, cuts: list[int], plan: Plan, walked: Walked | None) -> Explanation:
        """Return where the ops that lead from source to target stop to pass a gradient on."""
        between = self._between
        if walked is not None and walked.refused:
            cuts = sorted(cuts, key=lambda index: index not in walked.refused)
        index = cuts[0]
        eqn = between.eqns[index]
        flowing = between.flowing(plan, walked.dead if walked else ())
        verdict, detail, remedy = self._classify(index, plan, walked)
        real = [other for other in cuts if between.eqns[other].op not in SHAPES] or cuts
        if len(real) > 1:
            named = ", ".join(str(between.step(other)) for other in real[1 : 1 + _NAMED])
            more = f" and {len(real) - 1 - _NAMED} others" if len(real) > 1 + _NAMED else ""
            detail += f" {len(real) - 1} more on other routes: {named}{more}."
        step = between.step(index)
        if verdict is Verdict.INSIDE_FUNCTION:
            ins = [position for position, var in enumerate(eqn.inputs) if var in flowing]
            outs = [position for position, var in enumerate(eqn.outputs) if var in between.needed]
            found = look_inside(between.recording.calls[index].function, ins, outs)
            if found is not None:
                verdict, step, detail = found.verdict, found.step, found.detail + detail
        before = between.path(between.sources, [var for var in eqn.inputs if var in flowing], within=flowing)
        starts = [var for var in eqn.outputs if var not in flowing]
        after = between.path(starts, between.targets)
        return Explanation(
            verdict, *self._said, step, between.steps(before), between.steps(after), detail.strip(), remedy
        )

    def _classify(self, index: int, plan: Plan, walked: Walked | None) -> tuple[Verdict, str, str]:
        between = self._between
        eqn, recording = between.eqns[index], between.recording
        if walked is not None and index in walked.refused:
            return Verdict.NO_GRADIENT, f"TensorFlow has none registered for {eqn.op}; `gradient` raises.", ""
        if index in recording.calls:
            return Verdict.INSIDE_FUNCTION, "", ""
        if eqn.op == "StopGradient":
            return Verdict.STOP_GRADIENT, "", ""
        if eqn.op in SHAPES:
            remedy = "Check that the source is what the target was computed from."
            return (
                Verdict.NO_GRADIENT,
                f"The target depends on its shape alone: {eqn.op} looks at nothing else.",
                remedy,
            )
        cut = [var for var in eqn.outputs if var in between.needed and var not in plan.reached]
        if any(var in plan.stops for var in cut):
            return self._assigned(cut)
        if walked is not None and any((index, var) in walked.dead for var in eqn.inputs):
            if eqn.op == CUSTOM:
                return Verdict.RULE_RETURNED_NONE, "", "Return a gradient for this input from the custom gradient."
            detail = f"{eqn.op} is flat between its steps." if eqn.op in _STEPS else ""
            return Verdict.RULE_RETURNED_NONE, detail, STRAIGHT if eqn.op in _STEPS else ""
        if cut and all(var in recording.inert for var in cut):
            dtype = tf.as_dtype(recording.builder.types[cut[0]].dtype).name
            return Verdict.INTEGER, f"{eqn.op} makes {dtype} here.", ""
        if cut and all(var in recording.inert or var in recording.ends for var in cut):
            return Verdict.NO_GRADIENT, f"TensorFlow declares that {eqn.op} has none.", ""
        return Verdict.UNKNOWN, "", ""

    def _assigned(self, outputs: Sequence[int]) -> tuple[Verdict, str, str]:
        between = self._between
        cells = [between.recording.cell_of[var] for var in outputs if var in between.recording.cell_of]
        name = between.recording.name_of(cells[0]) if cells else "A variable"
        if self._through:
            return Verdict.SINCE, f"{name} is assigned here.", ""
        sources = between.sources
        cell = between.recording.cell_of.get(sources[0]) if is_variable(self._source) else None
        entry = [cell.versions[0]] if cell is not None else sources
        try:
            plan = Between(between.recording, between.targets, entry, True, None).plan()
        except UnseenUpdateError as error:
            return (
                Verdict.UNSEEN_UPDATE,
                f"{name} is assigned here, and {error.variable} while nothing was recorded.",
                "",
            )
        if plan.reached.isdisjoint(between.targets):
            return Verdict.ASSIGNMENT, f"{name} is assigned here.", "There is another cut behind it: " + _REMOVE
        return Verdict.ASSIGNMENT, f"{name} is assigned here.", ""

    def _apart(self) -> Explanation:
        """Return what is known where no op leads from source to target."""
        between = self._between
        original = between.copied_from()
        if original is not None:
            detail = f"It was copied from {between.name_of(original)}, and the target was not computed from the copy."
            copy = between.step(between.producers[between.sources[0]])
            return Explanation(Verdict.COPY, *self._said, copy, detail=detail)
        left = Left(self._log, between)
        found = left.explain(self._said)
        if found is not None:
            return found
        leading = between.steps(between.leading)
        gap = next((var for var in sorted(between.needed & between.recording.gaps)), None)
        if gap is not None:
            detail = f"It is {between.name_of(gap)}."
            return Explanation(
                Verdict.UNSEEN_UPDATE, *self._said, None, between.reached_elsewhere(), leading, detail=detail
            )
        detail = " ".join(left.facts())
        remedy = f"{Verdict.NO_PATH.remedy} If it left TensorFlow on the way, stay with tensors." if detail else ""
        return Explanation(Verdict.NO_PATH, *self._said, None, between.reached_elsewhere(), leading, detail, remedy)

    def _unknown(self) -> Explanation:
        between = self._between
        leading = between.steps(between.leading)
        return Explanation(Verdict.UNKNOWN, *self._said, None, between.reached_elsewhere(), leading)


_REMOVE = "remove both, or ask about what comes after them."


def _var(recording: Recording, part: Any) -> int:
    if is_variable(part):
        return recording.cells[part.handle._id].current
    found = recording.known(part._id)
    assert found is not None
    return found


def _largest_change(between: Between, walked: Walked, path: Sequence[int]) -> str:
    """Say where along a path the norm of the gradient changed most."""
    best, text = 1.0, ""
    for index in path:
        if index not in walked.seen:
            continue
        given, found = walked.seen[index]
        before, after = norm(given), norm(found)
        if before > 0.0 and after > 0.0:
            change = max(after / before, before / after)
            if change > best:
                best, text = change, f" It changes most at {between.step(index)}: {before:.3g} → {after:.3g}."
    return text
