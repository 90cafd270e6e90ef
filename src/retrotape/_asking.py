"""From what users say to questions in terms of vars, and what is remembered of the answers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrotape._nests import Parts, describe, is_variable, seeds_for, take_apart, zeros_like
from retrotape._tf import tf
from retrotape._versions import Version
from retrotape.errors import NotDifferentiableError, NotRecordedError
from retrotape.execute import Question, Values, answer, make_plan
from retrotape.record import EagerLog, GraphLog, Recording

Tensor = Any
Log = EagerLog | GraphLog


class Request(NamedTuple):
    """A question as it was posed: the targets, and sources of both kinds in the order in which they came."""

    targets: tuple[int, ...]
    identities: tuple[int, ...]  # of the targets
    seeds: tuple[Tensor | None, ...]
    sources: tuple[tuple[int, ...], ...]
    through: tuple[bool, ...]
    since: int | None

    def questions(self) -> list[tuple[list[int], Question]]:
        """Return one question for sources that end at assignments and one for those that do not."""
        kinds = []
        for through in (False, True):
            positions = [position for position, kind in enumerate(self.through) if kind is through]
            if positions:
                chosen = tuple(self.sources[position] for position in positions)
                kinds.append((positions, Question(self.targets, self.seeds, chosen, through, self.since)))
        return kinds


def pose(
    log: Log,
    target: Any,
    sources: Parts,
    output_gradients: Any = None,
    through_updates: bool = False,
    since: int | None = None,
    ones: bool = True,
) -> Request:
    """Return the request for the gradients of `target` by `sources`."""
    parts, targets = sources.flat(), take_apart(target, "target").flat()
    for part in targets:  # a target that is also a source took part, if only by being asked about
        if not is_variable(part) and any(part is source for source in parts):
            log.take_part(part)
    found = tuple(_target(log, part) for part in targets)
    seeds = tuple(seeds_for(targets, output_gradients, tf.ones_like)) if ones else ()
    return Request(
        found,
        tuple(0 if is_variable(part) else part._id for part in targets),
        seeds,
        tuple(_source(log, part, through_updates, since) for part in parts),
        tuple(through_updates or isinstance(part, Version) for part in parts),
        since,
    )


def _target(log: Log, part: Any) -> int:
    if not (part.dtype.is_floating or part.dtype.is_complex):
        raise NotDifferentiableError(describe(part), part.dtype.name)
    if is_variable(part):
        cell = log.cell(part)
        if cell is None:
            raise NotRecordedError(describe(part), "it was not read while recording", "Read it inside the block.")
        return cell.current
    var = log.find(part)
    if var is None:
        reason = log.why_absent(part)
        if reason is not None:
            raise NotRecordedError(describe(part), *reason)
        var = log.take_part(part)  # made in the block, but by no op: it is what it is, and no path leads to it
    return var


def _source(log: Log, part: Any, through_updates: bool, since: int | None) -> tuple[int, ...]:
    if isinstance(part, Version):
        return (part.var,)
    if is_variable(part):
        cell = log.cell(part)
        if cell is None:
            return ()
        if through_updates:
            return (cell.number(since or 0),)
        return tuple(cell.versions)
    var = log.find(part)
    return () if var is None else (var,)


def versions_of(log: Log, variable: Any) -> tuple[Version, ...]:
    """Return the values that a variable had, or raise where it had none."""
    cell = log.cell(variable) if is_variable(variable) else None
    if cell is None:
        name = describe(variable) if is_variable(variable) else repr(variable)
        raise NotRecordedError(name, "no op read or assigned it while recording", "Use it inside the block.")
    fetch = Values(log.recording)
    count = len(cell.versions)
    return tuple(Version(variable, number, count, var, fetch) for number, var in enumerate(cell.versions))


def solve(log: Log, request: Request) -> list[Any]:
    """Return one gradient for each source, None where no path leads to it."""
    found: list[Any] = [None] * len(request.sources)
    for positions, question in request.questions():
        grads = answer(log.recording, question, log.operations)
        for position, grad in zip(positions, grads, strict=True):
            found[position] = grad
    return found


def fill_constants(
    log: Log, request: Request, parts: Parts, derived: dict[int, Request], found: list[Any]
) -> list[Any]:
    """Put zeros for derivatives of a gradient that is constant: there is a path, and the value is zero."""
    return [
        zeros_like(part) if grad is None and source and _is_constant(log.recording, request, source, derived) else grad
        for part, grad, source in zip(parts.flat(), found, request.sources, strict=True)
    ]


def _is_constant(recording: Recording, request: Request, source: tuple[int, ...], derived: dict[int, Request]) -> bool:
    """Say whether a target is the derivative of something that does depend on the source."""
    for identity in request.identities:
        earlier = derived.get(identity)
        if earlier is None:
            continue
        plan = make_plan(recording, earlier.targets, source, any(request.through), request.since)
        if not plan.reached.isdisjoint(earlier.targets) or _is_constant(recording, earlier, source, derived):
            return True
    return False


class Answers:
    """The tensors that were handed out as answers, and how to compute each again.

    An answer is not written down when it is given. If somebody asks for its derivative, it is computed again and
    written down then: most answers are never asked about, and they would double what a tape holds.
    """

    def __init__(self) -> None:
        self._again: dict[int, tuple[Callable[[], list[Any]], int]] = {}
        self.derived: dict[int, Request] = {}  # what each answer is the derivative of

    def remember(self, request: Request, compute: Callable[[], list[Any]] | None, found: Sequence[Any]) -> None:
        """Note what was handed out; `compute` is None where it was written down when it was made."""
        for position, grad in enumerate(found):
            if grad is not None:
                identity = _main(grad)._id
                self.derived[identity] = request
                if compute is not None:
                    self._again[identity] = (compute, position)

    def expand(self, identity: int, log: EagerLog) -> bool:
        """Compute the answer with that identity again, writing it down; say whether there was one."""
        if identity not in self._again:
            return False
        compute = self._again[identity][0]
        with log.extended():
            found = compute()
        for known, (other, position) in list(self._again.items()):
            if other is compute:
                del self._again[known]
                if found[position] is not None:
                    log.recording.alias(known, log.recording.operand(_main(found[position])))
        return True

    def clear(self) -> None:
        """Forget everything."""
        self._again.clear()
        self.derived.clear()


def _main(grad: Any) -> Tensor:
    return grad.values if isinstance(grad, tf.IndexedSlices) else grad
