"""Several tapes as one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from retrotape.errors import TapeUseError, UnknownNameError
from retrotape.execute import Values
from retrotape.ir import LEAF
from retrotape.record import EagerSession
from retrotape.tape._joining import Joining, Named
from retrotape.tape.live import Tape
from retrotape.tape.loaded import LoadedTape, NamedTape
from retrotape.tf import core
from retrotape.tf.core import StockTape
from retrotape.tf.nests import is_variable
from retrotape.transform import Joint


class JoinedTape(NamedTape):
    """Several tapes as one tape that supports every query; `rt.join` makes it."""

    def __init__(self, joining: Joining, names: Mapping[str, Any], twice: Collection[str] = ()) -> None:
        super().__init__(names)
        self._twice, self._loaded, self._named_tapes = frozenset(twice), joining.loaded, joining.named
        self._joining: Joining | None = joining  # until it is built
        self._built: tuple[EagerSession, Joint | None] | None = None
        joining.register(self)

    @property
    def _session(self) -> EagerSession:
        """The joined session, built on first use.

        A tape that one more is joined to at once, as in a loop, is never built.
        """
        with self._lock:
            if self._built is None:
                assert self._joining is not None
                built = self._joining.build(self)
                self._relatives.add(built[0].trace)
                self._built = built
            self._joining = None
            return self._built[0]

    def _begin(self) -> Joining:
        """Return what joins with this tape begin with."""
        joining = self._joining if self._built is None else Joining.onto(*self._built)
        assert joining is not None
        return joining._replace(named=(*self._named_tapes, *_named([self])))

    def __repr__(self) -> str:
        return f"<joined tape: {len(self._session.trace.program.eqns)} equations, {len(self._by_name)} names>"

    def _matches(self, name: str) -> list[str]:
        if name in self._twice:
            raise TapeUseError(
                f"More than one of the joined tapes has the name {name!r}. Choose one: give `tape[{name!r}]` of it."
            )
        return super()._matches(name)


def join(*tapes: Tape | JoinedTape | LoadedTape, connect: Mapping[str, str] | None = None) -> JoinedTape:
    """Return one tape over several, in execution order, whatever the order given.

    Shared tensors and variables connect the tapes, and an op that two of them recorded counts once. Loaded tapes share
    no tensors, so `connect` links them by name. The tapes themselves do not change; what they record later is not part
    of the joined one.

    Args:
      *tapes: Tapes that were recorded in eager code, or loaded.
      connect: From the name of an input of a loaded tape to the name of the same tensor on another tape.

    Raises:
      TapeUseError: If there is no tape, one that is empty, or one that was recorded inside a tf.function; or if
        connected tensors have different values.

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
    for tape in tapes:
        if isinstance(tape, StockTape) or not isinstance(tape, (Tape, JoinedTape, LoadedTape)):
            raise TapeUseError(f"join takes tapes, got {type(tape).__name__}: `rt.join(first, second)`.")
    names, twice = _names_of(tapes)
    first, rest = tapes[0], tapes[1:]
    if isinstance(first, JoinedTape) and not connect:  # built when it is used: another tape may be joined to it first
        others = [_session_of(tape).frozen() for tape in rest]
        with first._lock:  # not while it is built, which may use up what it begins with
            return JoinedTape(first._begin().plus(others, _named(rest)), names, twice)
    sessions = [_session_of(tape) for tape in tapes]
    links = _Links(tapes, sessions, connect or {}).places
    joined = JoinedTape(Joining(tuple(sessions), links=links, named=_named(tapes)), names, twice)
    joined._session  # noqa: B018 - built at once: the tapes may record more
    return joined


def _named(tapes: Iterable[Any]) -> tuple[Named, ...]:
    named = [tape for tape in tapes if isinstance(tape, NamedTape) and tape.names]
    return tuple(Named(tape._tensors, tape._relatives) for tape in named)


def _names_of(tapes: Sequence[Any]) -> tuple[dict[str, Any], set[str]]:
    """Return the unique names, and separately the ambiguous ones, which more than one tape has."""
    found = dict(tapes[0]._names())
    twice: set[str] = set()
    for tape in tapes:
        twice.update(tape._twice if isinstance(tape, JoinedTape) else ())
    for tape in tapes[1:]:
        twice.update(name for name in tape._names() if name in found)
        found.update(tape._names())
    for name in twice:
        found.pop(name, None)
    return found, twice


class _Links:
    """Translates `connect` to links between traces."""

    def __init__(self, tapes: tuple[Any, ...], sessions: list[EagerSession], connect: Mapping[str, str]) -> None:
        self._tapes, self._sessions = tapes, sessions
        self.places: dict[tuple[int, int], tuple[int, int]] = {}
        for left, right in connect.items():
            self._add(left, right)

    def _find(self, name: str, but: int | None = None) -> tuple[int, int]:
        found = [
            which
            for which, tape in enumerate(self._tapes)
            if which != but and isinstance(tape, NamedTape) and tape._matches(name)
        ]
        if len(found) != 1:
            known = [name for tape in self._tapes for name in tape._names()]
            if found:
                raise TapeUseError(
                    f"{len(found)} of the tapes have the name {name!r}. Save them with names of their own."
                )
            raise UnknownNameError(name, known)
        which, trace = found[0], self._sessions[found[0]].trace
        what = self._tapes[which]._named(name)
        if is_variable(what):
            return which, trace.facts.histories[core.identity_of(what.handle)].versions[0]
        return which, trace.tensors.by_identity[core.identity_of(what)]

    def _add(self, left: str, right: str) -> None:
        here = self._find(left)
        there = self._find(right, but=here[0])
        trace = self._sessions[here[0]].trace
        if not _was_loaded(self._tapes[here[0]]) or trace.program.producers[here[1]] != LEAF:
            raise TapeUseError(
                f"connect={{{left!r}: ...}} must name an input of a loaded tape, and this is no input. "
                f'Write the input first: connect={{"head/x": "trunk/y"}}.'
            )
        ours, theirs = (Values(self._sessions[which].trace)(var) for which, var in (here, there))
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape or not _is_close(ours, theirs):
            raise TapeUseError(
                f"{left!r} is {_shown(ours)} and {right!r} is {_shown(theirs)}: they are not the same, so the tapes "
                f"belong to different runs. Run one on the other first: `head.replay({{{left!r}: trunk[{right!r}]}})`."
            )
        self.places[here] = there


def _was_loaded(tape: Any) -> bool:
    return isinstance(tape, LoadedTape) or (isinstance(tape, JoinedTape) and tape._loaded)


def _is_close(left: Any, right: Any) -> bool:
    if not left.dtype.is_floating:
        return bool((left.numpy() == right.numpy()).all())
    gap = abs(left.numpy().astype("float64") - right.numpy().astype("float64"))
    return bool((gap <= 1e-5 + 1e-4 * abs(right.numpy().astype("float64"))).all())


def _shown(value: Any) -> str:
    return f"{value.dtype.name}{list(value.shape)}" + (f" {value.numpy()!r}" if value.shape.rank == 0 else "")


def _session_of(tape: Any) -> EagerSession:
    session = tape._recorded()
    if not isinstance(session, EagerSession):
        raise TapeUseError(
            "join takes tapes that were recorded in eager code, and one was recorded inside a tf.function. "
            "Inside a tf.function, use one tape for everything."
        )
    return session
