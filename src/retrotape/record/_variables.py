"""Reads and writes of variables on one thread: every value that one had is on the tape, or known to be missing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.record._openings import Openings
from retrotape.record._recorder import Recorder
from retrotape.record._traits import traits
from retrotape.tf import functions, hooks, replicas
from retrotape.tf.core import identity_of, tf
from retrotape.tf.hooks_ops import Noted
from retrotape.tf.nests import unwrap
from retrotape.tf.scopes import setting
from retrotape.tf.stock import stop_stock_tapes


class Variables(Openings):
    """What the recorders that are open on one thread know of variables."""

    @abstractmethod
    def flush(self) -> None:
        """Bring all recorders up to date."""

    def read_assigned(self, recorder: Recorder) -> None:
        """Read what was assigned last, while it is sure that nobody has changed it since."""
        self.flush()
        handles = recorder.unread()
        if not handles:
            return
        with self.without(recorder):  # other tapes must know this tensor, or a path of theirs would end in it
            for handle in handles:
                held = functions.handle_type(handle)
                if held is not None and self._is_set(handle):
                    recorder.hold(handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=held[0]))

    def hold_copied(self, recorder: Recorder) -> None:
        """Hold what variables that hand out copies really hold, or a later change could not be noticed."""
        self.flush()
        handles = recorder.copied()
        if not handles:
            return
        with self.without(recorder):
            for handle in handles:
                tf.raw_ops.DisableCopyOnRead(resource=handle)  # until its rows are changed again
                held = functions.handle_type(handle)
                if held is not None and not recorder.is_stale(handle) and self._is_set(handle):
                    recorder.hold(handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=held[0]))

    def adopt(self, handle: Tensor, value: Tensor) -> None:
        """Let every open recorder know that the variable behind `handle` holds `value`."""
        self.flush()
        for recorder in self.active:
            recorder.adopt(handle, value)

    def on_variable(self, variable: Any) -> None:
        """Note which variable is read."""
        for recorder in self.active:
            recorder.variables.setdefault(identity_of(replicas.handle_of(variable)), variable)

    def on_keras_variable(self, variable: Any) -> None:
        """Note which Keras variable a variable is inside of."""
        for recorder in self.active:
            recorder.owners[id(unwrap(variable))] = variable

    def on_read(self, handle: Tensor) -> None:
        """Note that the value of a variable is about to be known, and whether somebody else has changed it."""
        self._known.add(identity_of(handle))
        self._notice_writes(identity_of(handle))

    def _notice_writes(self, identity: int) -> None:
        """Tell the recorders of writes that they do not have: on another thread, or by what then failed."""
        written = hooks.writes.get(identity, 0)
        if written == self._seen.get(identity, 0):
            return
        self.flush()
        for recorder in {id(one): one for one in (*self._open, *self.active)}.values():
            if written > self._seen.get(identity, recorder.began):
                recorder.mark_written(identity)
        self._seen[identity] = written

    def on_gather(self, handles: Sequence[Tensor]) -> None:
        """Read the whole of a variable before a part of it is read, where it may have changed."""
        for handle in handles:
            self._notice_writes(identity_of(handle))
            if any(recorder.is_stale(handle) for recorder in self.active):
                self._read(handle)

    def on_update(self, op: str, handles: Sequence[Tensor]) -> None:
        """Read what is about to be overwritten, where nobody has: every value that a variable had is on the tape."""
        for handle in handles:
            self._notice_writes(identity_of(handle))
        self._tell_paused(handles)
        if not self.active:
            return
        for handle in handles:
            if identity_of(handle) not in self._known or any(recorder.is_stale(handle) for recorder in self.active):
                self._read(handle)
            if traits(op).opaque:
                self._known.discard(identity_of(handle))

    def on_updated(self, noted: Noted) -> None:
        """Note that a write has been recorded, or that those who do not record it have been told."""
        for identity, before in noted.before.items():
            if before != self._seen.get(identity, before):  # somebody else wrote in between
                for recorder in (*self._open, *self.active):
                    recorder.mark_written(identity)
            self._seen[identity] = noted.when

    def _tell_paused(self, handles: Sequence[Tensor]) -> None:
        """Tell recorders in a pause of a write: the value may come out the same, and still has no past."""
        for recorder in self._open:
            if recorder not in self.active:
                for handle in handles:
                    recorder.mark_written(identity_of(handle))

    def _is_set(self, handle: Tensor) -> bool:
        # Not `unheard`, which forgets what is known. A forward accumulator would look for the derivative.
        with setting(self, active=[]), stop_stock_tapes():
            return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))

    def _read_unheld(self, handles: Iterable[Tensor]) -> None:
        """Record the values of variables that something is going to look at: by then they may have changed."""
        self.flush()
        for handle in handles:
            self._notice_writes(identity_of(handle))
            if not all(recorder.holds(handle) for recorder in self.active):
                self._read(handle)

    def _read(self, handle: Tensor) -> None:
        held = functions.handle_type(handle)
        if held is not None and self._is_set(handle):
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=held[0])
