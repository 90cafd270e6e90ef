"""From what users say to questions in terms of vars, and what is remembered of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple
from weakref import ReferenceType, ref

from retrotape.errors import NotDifferentiableError, NotRecordedError, ReplicaError, TapeUseError
from retrotape.execute import Question, Request, Values, add, answer, make_plan
from retrotape.record import EagerLog, GraphLog, Log, Recording
from retrotape.tf import core
from retrotape.tf.core import tf
from retrotape.tf.nests import (
    Parts,
    describe,
    has_derivative,
    is_variable,
    ones_like,
    seeds_for,
    take_apart,
    zeros_like,
)
from retrotape.tf.replicas import differs_by_replica
from retrotape.tf.version import Version

Tensor = Any


_LOCAL = "Ask about the parts, one for each replica: `strategy.experimental_local_results(variable)`."


def pose(
    log: Log,
    answers: Answers,
    target: Any,
    sources: Parts,
    output_gradients: Any = None,
    through_updates: bool = False,
    since: int | None = None,
    ones: bool = True,
    leave_out: bool = False,
) -> Request:
    """Return the request for the gradients of `target` by `sources`.

    A target of a dtype without derivative raises, or with `leave_out` is listed there instead: whoever says so has to
    warn of it.
    """
    parts, given = sources.flat(), take_apart(target, "target").flat()
    log.recording.owners.update(sources.owners())
    targets, left_out = [part for part in given if has_derivative(part)], _without_derivative(given)
    if left_out and not leave_out:
        raise NotDifferentiableError(describe(left_out[0]), left_out[0].dtype.name)
    stand_ins: dict[int, int] = {}
    for part in targets:  # a target that is also a source took part, if only by being asked about
        is_source = any(part is source for source in parts)
        if is_variable(part) and log.cell(part) is None and (is_source or log.watches(part)):
            stand_ins[id(part)] = log.stand_in(part)
        elif is_source and not is_variable(part):
            log.take_part(part)
    found = tuple(stand_ins[id(part)] if id(part) in stand_ins else _target(log, answers, part) for part in targets)
    tensors = [part for part in targets if not is_variable(part)]
    seeds = tuple(seeds_for(given, output_gradients, ones_like)) if ones else ()
    return Request(
        found,
        seeds,
        tuple(_source(log, part, through_updates, since, stand_ins) for part in parts),
        tuple(through_updates or isinstance(part, Version) for part in parts),
        since,
        tuple(request for request in map(answers.request_of, tensors) if request is not None),
        () if log.outer is None else tuple(_source(log.outer, part, through_updates, since, {}) for part in parts),
        tuple(left_out),
    )


def _without_derivative(parts: Sequence[Any]) -> list[Any]:
    found = [part for part in parts if not has_derivative(part)]
    for part in found:
        if part.dtype.base_dtype in (tf.resource, tf.variant):  # what is in it may well have one
            raise NotDifferentiableError(describe(part), part.dtype.name)
    return found


def _target(log: Log, answers: Answers, part: Any) -> int:
    if is_variable(part):
        cell = log.cell(part)
        if cell is None:
            raise NotRecordedError(describe(part), "it was not read while recording", "Read it inside the block.")
        return cell.current
    var = answers.var(part, log)
    if var is None:
        var = log.find(part)
    if var is None:
        reason = log.why_absent(part)
        if reason is not None:
            raise NotRecordedError(describe(part), *reason)
        var = log.take_part(part)  # made in the block, but by no op: it is what it is, and no path leads to it
    return var


def _source(
    log: Log, part: Any, through_updates: bool, since: int | None, stand_ins: dict[int, int]
) -> tuple[int, ...]:
    if isinstance(part, Version):
        if part.token is not log.token:
            raise TapeUseError(
                f"{part!r} belongs to another tape, or to what this one had recorded before it was reset. "
                "Take it from the tape that you ask: `tape.at(variable, k)`."
            )
        cell = log.cell(part.variable)
        assert cell is not None
        return (cell.versions[part.number],)
    if is_variable(part):
        cells = log.cells_of(part)
        if not cells:
            return (stand_ins[id(part)],) if id(part) in stand_ins else ()
        if len(cells) > 1 and differs_by_replica(part):
            raise ReplicaError(f"The source {describe(part)} has a value of its own in each replica", _LOCAL)
        if through_updates:
            return tuple(cell.number(since or 0) for cell in cells)
        return tuple(version for cell in cells for version in cell.versions)
    var = log.find(part)
    return () if var is None else (var,)


def versions_of(log: Log, variable: Any) -> tuple[Version, ...]:
    """Return the values that a variable had, or raise where it had none."""
    cell = log.cell(variable) if is_variable(variable) else None
    if cell is None:
        if not is_variable(variable):
            raise TypeError(f"Only a variable has versions, got {type(variable).__name__}; a tensor has one value.")
        reason = "no op read or assigned it while recording"
        raise NotRecordedError(describe(variable), reason, "Use it inside the block.", role="variable")
    if len(log.cells_of(variable)) > 1:
        raise ReplicaError(f"{describe(variable)} has values of its own in each replica", _LOCAL)
    fetch = Values(log.recording)
    count = len(cell.versions)
    token = log.token
    return tuple(Version(variable, number, count, var, token, fetch) for number, var in enumerate(cell.versions))


def solve(log: Log, request: Request) -> list[Any]:
    """Return one gradient for each source, None where no path leads to it."""
    found: list[Any] = [None] * len(request.sources)
    for positions, question in request.questions():
        grads = answer(log.recording, question, log.operations)
        for position, grad in zip(positions, grads, strict=True):
            found[position] = grad
    return _with_outside(log, request, found) if isinstance(log, GraphLog) and any(request.outside) else found


def _with_outside(log: GraphLog, request: Request, found: list[Any]) -> list[Any]:
    """Follow paths that leave the graph through tensors which the same tape recorded before, in eager code."""
    refuse_outside(request, any(request.through), "through updates")
    assert log.outer is not None
    crossings = log.crossings()
    inner = Question(request.targets, request.flowing(), tuple((here,) for here, _ in crossings), False)
    flowing = [
        (there, grad)
        for (_, there), grad in zip(crossings, answer(log.recording, inner, log.operations), strict=True)
        if grad is not None
    ]
    outer = Question(tuple(var for var, _ in flowing), tuple(grad for _, grad in flowing), request.outside, False)
    rest = answer(log.outer.recording, outer)
    cells = log.outer.recording.cell_of
    return [
        # What a tensor is given inside the graph is among what crosses; what is read of a variable there is not.
        grad if not source else _sum(grad, more) if source[0] in cells else more
        for source, grad, more in zip(request.outside, found, rest, strict=True)
    ]


def _sum(left: Any, right: Any) -> Any:
    return add([left, right]) if left is not None and right is not None else right if left is None else left


def refuse_outside(request: Request, refused: bool, what: str) -> None:
    """Raise where a query would have to pass from a graph to what was recorded in eager code, and cannot."""
    if refused and any(request.outside):
        raise TapeUseError(
            f"This tape was recorded in eager code and entered again inside a tf.function. There it is asked {what}, "
            "which is possible within one of the two only. Record both in eager code, or both in the function."
        )


def fill_constants(log: Log, request: Request, parts: Parts, found: list[Any]) -> list[Any]:
    """Put zeros for derivatives of a gradient that is constant: there is a path, and the value is zero."""
    return [
        zeros_like(part) if grad is None and source and _is_constant(log.recording, request, request, source) else grad
        for part, grad, source in zip(parts.flat(), found, request.sources, strict=True)
    ]


def _is_constant(recording: Recording, asked: Request, request: Request, source: tuple[int, ...]) -> bool:
    """Say whether a target is the derivative of something that does depend on the source."""
    for earlier in request.derived_from:
        plan = make_plan(recording, earlier.targets, source, any(asked.through), asked.since)
        if not plan.reached.isdisjoint(earlier.targets) or _is_constant(recording, asked, earlier, source):
            return True
    return False


class _Answer(NamedTuple):
    alive: ReferenceType[Any] | None
    request: Request
    compute: Callable[[], list[Any]] | None  # None where it was written down when it was made
    position: int


class Answers:
    """The tensors that were handed out as answers, for as long as somebody holds them, and how to compute each again.

    An answer is not written down when it is given. If somebody asks for its derivative, it is computed again and
    written down then: most answers are never asked about, and they would double what a tape holds.
    """

    def __init__(self) -> None:
        self._answers: dict[int, _Answer] = {}
        self._vars: dict[int, int] = {}  # of those that were written down meanwhile

    def remember(self, request: Request, compute: Callable[[], list[Any]] | None, found: Sequence[Any]) -> None:
        """Note what was handed out."""
        for position, grad in enumerate(found):
            given = any(grad is seed for seed in request.seeds)  # handed back as it was handed in
            if grad is not None and not given:
                tensor = _main(grad)
                # A graph keeps its tensors anyway, and they cannot be referred to weakly.
                eager = isinstance(tensor, core.EagerTensor)
                alive = ref(tensor, partial(_forget, ref(self), tensor._id)) if eager else None
                self._answers[tensor._id] = _Answer(alive, request, compute, position)

    def request_of(self, tensor: Tensor) -> Request | None:
        """Return the question that a tensor was the answer to."""
        found = self._answers.get(tensor._id)
        return None if found is None else found.request

    def var(self, tensor: Tensor, log: Log) -> int | None:
        """Return the var of an answer that is asked about, computing it again and writing it down if need be."""
        found = self._answers.get(tensor._id)
        if found is None or found.compute is None or not isinstance(log, EagerLog):
            return None
        if tensor._id not in self._vars:
            with log.extended():
                grads = found.compute()
            log.refresh()
            for identity, other in list(self._answers.items()):  # any thread may drop one meanwhile
                if other.compute is found.compute and grads[other.position] is not None:
                    self._vars[identity] = log.recording.operand(_main(grads[other.position]))
        return self._vars.get(tensor._id)

    def drop(self, identity: int) -> None:
        """Forget an answer that nobody holds any more."""
        self._answers.pop(identity, None)
        self._vars.pop(identity, None)

    def clear(self) -> None:
        """Forget everything."""
        self._answers.clear()
        self._vars.clear()


def _forget(owner: ReferenceType[Answers], identity: int, _: Any) -> None:
    answers = owner()  # weakly, or a tape would live until the garbage is collected
    if answers is not None:
        answers.drop(identity)


def _main(grad: Any) -> Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad
