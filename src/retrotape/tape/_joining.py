"""Which sessions a joined tape is made of, before they are joined."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple
from weakref import WeakSet

from retrotape._types import Tensor
from retrotape.ir import Builder
from retrotape.record import EagerSession, FrameTable, LoadedSession, Trace, new_trace
from retrotape.tf.core import identity_of
from retrotape.transform import Joint, TraceVar, join_from


class Named(NamedTuple):
    """The names of a tape.

    Attributes:
      tensors: The tensors that names have been replaced by, by identity of the reference.
      relatives: The traces that know these tensors.
    """

    tensors: Mapping[int, Tensor]
    relatives: WeakSet[Trace]


class Joining(NamedTuple):
    """Sessions to be joined.

    Attributes:
      sessions: The sessions; if there is a joint, the first is a session of what that has recorded, without its trace.
      joint: What the join begins with.
      links: As for `transform.join`.
      named: The names of the tapes.
    """

    sessions: tuple[EagerSession, ...]
    joint: Joint | None = None
    links: Mapping[TraceVar, TraceVar] | None = None
    named: tuple[Named, ...] = ()

    @staticmethod
    def onto(session: EagerSession, joint: Joint | None) -> Joining:
        """Return what begins with a joined session."""
        if joint is None:
            return Joining((session.frozen(),))
        outline = type(session).of([session], new_trace(Builder(frames=FrameTable())))
        return Joining((outline,), joint)

    def plus(self, sessions: Iterable[EagerSession], named: Iterable[Named]) -> Joining:
        """Return the join of these sessions and others."""
        return self._replace(sessions=(*self.sessions, *sessions), named=(*self.named, *named))

    @property
    def loaded(self) -> bool:
        """Whether all sessions were loaded."""
        return all(isinstance(session, LoadedSession) for session in self.sessions)

    def register(self, heir: Any) -> None:
        """Keep what the join begins with for `heir`, which will call `build`."""
        if self.joint is not None:
            self.joint.heirs.add(heir)

    def build(self, heir: Any) -> tuple[EagerSession, Joint | None]:
        """Return the joined session, and what longer joins begin with; None if they begin with the session."""
        if self.joint is None:
            trace, joint = join_from(_traces(self.sessions), self.links)
        else:
            trace, joint = self.joint.then(_traces(self.sessions[1:]), heir)
            self.joint.heirs.discard(heir)
        session = (LoadedSession if self.loaded else EagerSession).of(self.sessions, trace)
        for tensors, relatives in self.named:
            relatives.add(trace)
            for identity, tensor in list(tensors.items()):
                trace.tensors.recognize(identity_of(tensor), [identity])
        return session, joint


def _traces(sessions: Sequence[EagerSession]) -> list[Trace]:
    return [session.trace for session in sessions]
