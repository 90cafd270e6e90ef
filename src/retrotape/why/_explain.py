"""Finding out why. Every verdict has a witness in the recording; without one it is UNKNOWN."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from retrotape._nests import describe, is_variable
from retrotape._tf import tf
from retrotape.errors import NotPersistableError, OpaqueUpdateError, UnseenUpdateError
from retrotape.execute import Puller, make_plan, walk
from retrotape.ir import reached_from, slice_to
from retrotape.record import CUSTOM, TRAINABLE, EagerLog, Recording
from retrotape.saving import flatten
from retrotape.why._explanation import Explanation, Step
from retrotape.why._verdicts import Verdict
from retrotape.why._zero import where_it_vanishes

Tensor = Any


def explain(log: EagerLog, target: Any, source: Any, words: tuple[str, str] | None = None) -> Explanation:
    """Return why `target`, a tensor, has a gradient by `source`, a tensor or a variable, or none."""
    said = words or (describe(target), describe(source))
    for part, name in ((target, "target"), (source, "source")):
        if part.dtype.base_dtype.as_datatype_enum not in TRAINABLE:
            detail = f"The {name} is {part.dtype.name}."
            return Explanation(Verdict.INTEGER, *said, detail=detail)
    absent = _absent(log, target, source, said)
    if absent is not None:
        return absent
    recording = _inside_out(log.recording)
    return _Inquiry(log, recording, target, source, said).explain()


def _inside_out(recording: Recording) -> Recording:
    """Return a recording in which functions are taken apart, where that can be done."""
    if not recording.calls:
        return recording
    try:
        return flatten(recording)
    except (NotPersistableError, OpaqueUpdateError):
        return recording


def _absent(log: EagerLog, target: Any, source: Any, said: tuple[str, str]) -> Explanation | None:
    """Return an explanation where one of the two is not on the tape."""
    if not is_variable(target) and log.find(target) is None:
        reason, remedy = log.why_absent(target) or (
            "it was made while recording, but by no op of this thread: by Python, or on another thread",
            "Make it with TensorFlow ops on the thread that records.",
        )
        return Explanation(Verdict.TARGET_NOT_RECORDED, *said, detail=f"The target: {reason}.", remedy=remedy)
    if is_variable(source):
        if log.cell(source) is not None:
            return None
        twins = [other for other in log.variables() if other.name == source.name and other is not source]
        if twins:
            return Explanation(Verdict.SAME_NAME, *said)
        remedy = "Use it inside the block."
        return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail="No op read it while recording.", remedy=remedy)
    if log.find(source) is not None:
        return None
    reason, remedy = log.why_absent(source) or ("no op used it", "Use it inside the block.")
    return Explanation(Verdict.SOURCE_NOT_RECORDED, *said, detail=f"The source: {reason}.", remedy=remedy)


class _Inquiry:
    def __init__(self, log: EagerLog, recording: Recording, target: Any, source: Any, said: tuple[str, str]) -> None:
        self._log, self._recording, self._said = log, recording, said
        self._eqns, self._producers = recording.builder.eqns, recording.builder.producers
        self._program = recording.program()
        self._targets = [self._var(target)]
        cell = recording.cells.get(source.handle._id) if is_variable(source) else None
        self._sources = list(cell.versions) if cell is not None else [self._var(source)]
        self._seed = tf.ones_like(target) if not is_variable(target) else tf.ones(target.shape, target.dtype)

    def _var(self, part: Any) -> int:
        if is_variable(part):
            return self._recording.cells[part.handle._id].current
        found = self._recording.known(part._id)
        assert found is not None
        return found

    def explain(self) -> Explanation:
        """Return what is so."""
        plan = make_plan(self._recording, self._targets, self._sources, through_updates=False)
        if not plan.reached.isdisjoint(self._targets):
            return self._planned(plan)
        return self._cut() or self._left() or self._no_path()

    # ------------------------------------------------------------------ there is a path

    def _planned(self, plan: Any) -> Explanation:
        seen: dict[int, tuple[list[Any], Sequence[Any]]] = {}
        pull = Puller(self._recording)

        def watched(index: int, grads: list[Any], plan: Any) -> Sequence[Any]:
            given = list(grads)
            found = pull(index, grads, plan)
            seen[index] = (given, found)
            return found

        arrived = dict(walk(plan, {var: [self._seed] for var in self._targets}, watched))
        if not any(var in arrived for var in self._sources):
            return self._returned_none(plan, seen)
        path = self._path(plan.indices, self._sources, self._targets)
        if all(_is_zero(grad) for grad in arrived.values()):
            index, detail, remedy = where_it_vanishes(self._recording, plan, seen, path)
            cut = None if index is None else self._step(index)
            steps = self._steps(path)
            return Explanation(Verdict.ZERO, *self._said, cut, steps, detail=detail, remedy=remedy)
        detail = _largest_change(self._eqns, seen, path)
        return Explanation(Verdict.CONNECTED, *self._said, reached=self._steps(path), detail=detail)

    def _returned_none(self, plan: Any, seen: dict[int, Any]) -> Explanation:
        """Find the op nearest to the target whose rule gave nothing for an input that leads to the source."""
        for index in sorted(seen, reverse=True):
            given, found = seen[index]
            wanted = [
                grad is None for var, grad in zip(self._eqns[index].inputs, found, strict=True) if var in plan.reached
            ]
            if wanted and all(wanted) and any(grad is not None for grad in given):
                before = self._path(plan.indices, self._sources, self._eqns[index].inputs)
                after = self._path(range(len(self._eqns)), self._eqns[index].outputs, self._targets)
                verdict = Verdict.INSIDE_FUNCTION if index in self._recording.calls else Verdict.RULE_RETURNED_NONE
                return Explanation(verdict, *self._said, self._step(index), self._steps(before), self._steps(after))
        return Explanation(Verdict.UNKNOWN, *self._said)

    # ------------------------------------------------------------------ the path is cut

    def _cut(self) -> Explanation | None:
        """Return where the ops that lead from source to target stop to pass a gradient on."""
        recording, everything = self._recording, range(len(self._eqns))
        _, touched = reached_from(recording.builder, self._sources, everything)
        leading = set(slice_to(recording.builder, self._targets))
        if touched.isdisjoint(self._targets):
            return None
        plan_blocks = (recording.inert, recording.ends, recording.assigned)
        _, flowing = reached_from(recording.builder, self._sources, everything, plan_blocks)
        for index in sorted(leading):
            eqn = self._eqns[index]
            if flowing.isdisjoint(eqn.inputs) or not touched.issuperset(eqn.outputs[:1]):
                continue
            if flowing.isdisjoint(eqn.outputs):
                before = self._path(range(index), self._sources, [var for var in eqn.inputs if var in flowing])
                after = self._path(range(index + 1, len(self._eqns)), eqn.outputs, self._targets)
                if after is None and not set(eqn.outputs) & set(self._targets):
                    continue
                verdict, detail = self._classify(index)
                return Explanation(
                    verdict, *self._said, self._step(index), self._steps(before), self._steps(after), detail
                )
        return None

    def _classify(self, index: int) -> tuple[Verdict, str]:
        eqn, recording = self._eqns[index], self._recording
        if index in recording.calls:
            return Verdict.INSIDE_FUNCTION, ""
        if eqn.op == "StopGradient":
            return Verdict.STOP_GRADIENT, ""
        if any(var in recording.assigned for var in eqn.outputs):
            return Verdict.ASSIGNMENT, self._assigned(eqn.outputs)
        if all(var in recording.inert for var in eqn.outputs):
            dtype = tf.as_dtype(recording.builder.types[eqn.outputs[0]].dtype).name
            return Verdict.INTEGER, f"{eqn.op} makes {dtype} here."
        if all(var in recording.inert or var in recording.ends for var in eqn.outputs):
            return Verdict.NO_GRADIENT, f"TensorFlow declares that {eqn.op} has none."
        return Verdict.UNKNOWN, ""

    def _assigned(self, outputs: Sequence[int]) -> str:
        cells = [self._recording.cell_of[var] for var in outputs if var in self._recording.cell_of]
        try:
            make_plan(self._recording, self._targets, self._sources, through_updates=True)
        except UnseenUpdateError as error:
            return str(error)
        return f"{self._recording.name_of(cells[0])} is assigned here." if cells else ""

    # ------------------------------------------------------------------ there is none

    def _left(self) -> Explanation | None:
        """Return where Python saw a value that came from the source, if a constant was born after that."""
        recording = self._recording
        _, touched = reached_from(recording.builder, self._sources, range(len(self._eqns)))
        leading = slice_to(recording.builder, self._targets)
        used = {var for index in leading for var in self._eqns[index].inputs} | set(self._targets)
        began = self._log.began()
        for look in recording.looks:
            var = recording.known(look.identity)
            if var is None or var not in touched:
                continue
            for leaf in sorted(used):
                value = recording.values.get(leaf)
                born = getattr(value, "_id", -1)
                if self._producers[leaf] < 0 and leaf not in recording.cell_of and born > max(look.moment, began):
                    frame = self._program.frames[look.frame]
                    index = next((i for i in leading if leaf in self._eqns[i].inputs), None)
                    after = "" if index is None else f", and was first used by {self._step(index)}"
                    made = f"A constant was made from Python after that{after}."
                    cut = Step(f"{look.how.strip('_')}()", frame)
                    before = self._path(range(len(self._eqns)), self._sources, [var])
                    return Explanation(Verdict.LEFT_TENSORFLOW, *self._said, cut, self._steps(before), detail=made)
        return None

    def _no_path(self) -> Explanation:
        indices, _ = reached_from(self._recording.builder, self._sources, range(len(self._eqns)))
        leading = slice_to(self._recording.builder, self._targets)
        reached = tuple(self._step(index) for index in indices if self._is_work(index))
        towards = tuple(self._step(index) for index in leading if self._is_work(index))
        return Explanation(Verdict.NO_PATH, *self._said, None, reached, towards, self._born(leading))

    def _born(self, leading: Sequence[int]) -> str:
        """Say what the target depends on that came from Python while recording, if it is more than a number."""
        began = self._log.began()
        for index in leading:
            for var in self._eqns[index].inputs:
                value = self._recording.values.get(var)
                if (
                    self._producers[var] < 0
                    and var not in self._recording.cell_of
                    and getattr(value, "_id", -1) > began
                ):
                    kind = self._recording.builder.types[var]
                    if kind.shape != () and var not in self._recording.inert:
                        step = self._step(index)
                        return (
                            f"The target depends on a constant {kind} that Python made while recording, used by {step}."
                        )
        return ""

    # ------------------------------------------------------------------ paths

    def _path(
        self, indices: Collection[int] | Sequence[int], sources: Sequence[int], targets: Collection[int]
    ) -> list[int] | None:
        """Return equations that lead from a source to a target, one after the other; None where there are none."""
        came: dict[int, int] = {}  # var → the equation by which it was reached
        reached = set(sources)
        for index in sorted(indices):
            eqn = self._eqns[index]
            if not reached.isdisjoint(eqn.inputs):
                came.update((var, index) for var in eqn.outputs if var not in reached)
                reached.update(eqn.outputs)
        found = max((var for var in targets if var in reached), default=None)
        if found is None:
            return None
        path: list[int] = []
        while found in came:
            path.append(came[found])
            found = max(var for var in self._eqns[path[-1]].inputs if var in reached)
        return path[::-1]

    def _steps(self, path: Sequence[int] | None) -> tuple[Step, ...]:
        return tuple(self._step(index) for index in path or () if self._is_work(index))

    def _is_work(self, index: int) -> bool:
        return self._eqns[index].op not in ("Identity", "ReadVariableOp")

    def _step(self, index: int) -> Step:
        eqn = self._eqns[index]
        op = eqn.op if eqn.op != CUSTOM else f"custom gradient {dict(eqn.attrs)['name'].decode()!r}"  # type: ignore[union-attr]
        return Step(op, self._program.frame_of(eqn))


def _is_zero(grad: Any) -> bool:
    values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
    return not bool(tf.reduce_any(values != 0))


def _largest_change(eqns: Any, seen: dict[int, Any], path: Sequence[int] | None) -> str:
    """Say where along a path the norm of the gradient changed most."""
    best, text = 1.0, ""
    for index in path or ():
        if index not in seen:
            continue
        given, found = seen[index]
        before, after = _norm(given), _norm(found)
        if before > 0.0 and after > 0.0:
            change = max(after / before, before / after)
            if change > best:
                best, text = change, f"Its norm changes most at {eqns[index].op}: {before:.3g} → {after:.3g}."
    return text


def _norm(grads: Sequence[Any]) -> float:
    total = 0.0
    for grad in grads:
        if grad is not None:
            values = grad.values if isinstance(grad, tf.IndexedSlices) else grad
            total += float(tf.reduce_sum(tf.square(tf.abs(tf.cast(values, tf.float64)))))
    return total**0.5
