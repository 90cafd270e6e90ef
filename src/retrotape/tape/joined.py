"""Several tapes as one."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from threading import RLock
from typing import Any

from retrotape.errors import TapeUseError, UnknownNameError
from retrotape.execute import Values
from retrotape.ir import LEAF
from retrotape.query import Answers
from retrotape.record import EagerLog, next_stamp
from retrotape.tape.live import Tape
from retrotape.tape.loaded import LoadedLog, LoadedTape, NamedTape
from retrotape.tf.core import StockTape
from retrotape.tf.nests import is_variable
from retrotape.transform import merge


class JoinedTape(NamedTape):
    """What several tapes have recorded, as one tape that answers every question; `rt.join` makes it."""

    def __init__(
        self, logs: list[EagerLog], names: Mapping[str, Any], twice: Collection[str] = (), links: Any = None
    ) -> None:
        self._log = (LoadedLog if all(isinstance(log, LoadedLog) for log in logs) else EagerLog).of(
            logs, merge([log.recording for log in logs], links)
        )
        self._loaded = all(isinstance(log, LoadedLog) for log in logs)
        self._answers = Answers()
        self._lock = RLock()
        self._named, self._tensors, self._twice = dict(names), {}, frozenset(twice)

    def __repr__(self) -> str:
        return f"<joined tape: {len(self._log.recording.builder.eqns)} equations, {len(self._named)} names>"

    def _meant_by(self, name: Any) -> Any:
        if name in self._twice:
            raise TapeUseError(
                f"More than one of the joined tapes has the name {name!r}. Say which: give `tape[{name!r}]` of one."
            )
        return super()._meant_by(name)


def join(*tapes: Tape | JoinedTape | LoadedTape, connect: Mapping[str, str] | None = None) -> JoinedTape:
    """Return one tape over several, in the order in which they ran, whatever the order given.

    Shared tensors and variables connect them, and an op that two of them recorded counts once. Loaded tapes share
    nothing, so `connect` says by name what is what. The tapes stay as they are; what they record later is not part of
    the joined one.

    Args:
      *tapes: Tapes that were recorded in eager code, or loaded.
      connect: For inputs of loaded tapes, by name, the name of the tensor on another tape that each one is.

    Raises:
      TapeUseError: If there is no tape, one that is empty, or one that was recorded inside a tf.function; or if what
        is connected cannot be the same.

    >>> x = tf.constant(1.0)
    >>> with rt.Tape() as first:
    ...     y = x ** 2
    >>> with rt.Tape() as second:
    ...     z = tf.sin(y)
    >>> round(float(rt.join(second, first).gradient(z, x)), 4)
    1.0806
    """
    if not tapes:
        raise TapeUseError("join takes one or more tapes, got none: `rt.join(first, second)`.")
    if not isinstance(connect or {}, Mapping):
        raise TypeError(f"connect= takes a mapping of names, got {connect!r}: `connect={{'head/x': 'trunk/y'}}`.")
    logs = [_log_of(tape) for tape in tapes]
    names, twice = _names_of(tapes)
    links = _Links(tapes, logs, connect or {})
    links.put_in_order()
    joined = JoinedTape(logs, names, twice, links.places)
    for tape in tapes:
        if isinstance(tape, NamedTape):  # what it gives for a name is known here too
            tape._kin.add(joined._log.recording)
    return joined


def _names_of(tapes: tuple[Any, ...]) -> tuple[dict[str, Any], set[str]]:
    """Return the names, and apart those that two tapes have, for it is not clear which is meant."""
    found: dict[str, Any] = {}
    twice: set[str] = set()
    for tape in tapes:
        for name, what in tape._names().items():
            twice.update({name} if name in found else ())
            found[name] = what
    return {name: what for name, what in found.items() if name not in twice}, twice


class _Links:
    """What `connect` means in terms of recordings."""

    def __init__(self, tapes: tuple[Any, ...], logs: list[EagerLog], connect: Mapping[str, str]) -> None:
        self._tapes, self._logs = tapes, logs
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        for left, right in connect.items():
            self._add(left, right)

    def _find(self, name: str, but: int | None = None) -> tuple[int, int]:
        found = [which for which, tape in enumerate(self._tapes) if which != but and tape._has_name(name)]
        if len(found) != 1:
            known = [name for tape in self._tapes for name in tape._names()]
            if found:
                raise TapeUseError(
                    f"{len(found)} of the tapes have the name {name!r}. Save them with names of their own."
                )
            raise UnknownNameError(name, known)
        which, recording = found[0], self._logs[found[0]].recording
        what = self._tapes[which]._meant_by(name)
        if is_variable(what):
            return which, recording.cells[what.handle._id].versions[0]
        var = recording.known(what._id)
        assert var is not None
        return which, var

    def _add(self, left: str, right: str) -> None:
        here = self._find(left)
        there = self._find(right, but=here[0])
        recording = self._logs[here[0]].recording
        if not _was_loaded(self._tapes[here[0]]) or recording.builder.producers[here[1]] != LEAF:
            raise TapeUseError(
                f"connect={{{left!r}: ...}} must name an input of a loaded tape, and this is no input. "
                f'Write the input first: connect={{"head/x": "trunk/y"}}.'
            )
        ours, theirs = (Values(self._logs[which].recording)(var) for which, var in (here, there))
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not _is_close(ours, theirs):
            raise TapeUseError(
                f"{left!r} is {_shown(ours)} and {right!r} is {_shown(theirs)}: they are not the same, so the tapes "
                f"belong to different runs. Run one on the other first: `head.replay({{{left!r}: trunk[{right!r}]}})`."
            )
        self.places[here] = there

    def put_in_order(self) -> None:
        """Let loaded tapes, which know no common clock, come after those whose tensors they take."""
        done: set[int] = {which for which, tape in enumerate(self._tapes) if not _was_loaded(tape)}
        waiting = [which for which in range(len(self._tapes)) if which not in done]
        while waiting:
            ready = [which for which in waiting if self._needs(which) <= done]
            if not ready:
                raise TapeUseError("connect goes in a circle: each tape takes something from another one.")
            for which in ready:
                recording = self._logs[which].recording
                if not all(recording.runs_after(self._logs[other].recording) for other in self._needs(which)):
                    recording.restamp(next_stamp)
            done.update(ready)
            waiting = [which for which in waiting if which not in done]

    def _needs(self, which: int) -> set[int]:
        return {there[0] for here, there in self.places.items() if here[0] == which}


def _was_loaded(tape: Any) -> bool:
    return isinstance(tape, LoadedTape) or (isinstance(tape, JoinedTape) and tape._loaded)


def _is_close(left: Any, right: Any) -> bool:
    if not left.dtype.is_floating:
        return bool((left.numpy() == right.numpy()).all())
    gap = abs(left.numpy().astype("float64") - right.numpy().astype("float64"))
    return bool((gap <= 1e-5 + 1e-4 * abs(right.numpy().astype("float64"))).all())


def _shown(value: Any) -> str:
    return f"{value.dtype.name}{list(value.shape)}" + (f" {value.numpy()!r}" if value.shape.rank == 0 else "")


def _log_of(tape: Any) -> EagerLog:
    if isinstance(tape, StockTape) or not isinstance(tape, (Tape, JoinedTape, LoadedTape)):
        raise TapeUseError(f"join takes tapes, got {type(tape).__name__}: `rt.join(first, second)`.")
    log = tape._asked()
    if not isinstance(log, EagerLog):
        raise TapeUseError(
            "join takes tapes that were recorded in eager code, and one was recorded inside a tf.function. "
            "There, one tape over everything does the same."
        )
    return log
