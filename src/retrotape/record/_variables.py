"""Reads and writes of variables on one thread: every value is on the tape, or known to be missing."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Sequence
from typing import Any

from retrotape._types import Tensor
from retrotape.record._openings import Openings
from retrotape.record._recorder import Recorder
from retrotape.record._traits import traits
from retrotape.tf import functions, hooks, replicas
from retrotape.tf.core import PlainVariable, identity_of, tf, whole_of
from retrotape.tf.hooks_ops import WriteStamp
from retrotape.tf.nests import unwrap
from retrotape.tf.scopes import setting
from retrotape.tf.stock import stop_stock_tapes


class Variables(Openings):
    """What the recorders open on one thread know about variables."""

    @abstractmethod
    def flush(self) -> None:
        """Record all pending events."""

    def read_assigned(self, recorder: Recorder) -> None:
        """Read variables that were assigned but not read since, while their values are certainly unchanged."""
        self.flush()
        handles = recorder.unread()
        if not handles:
            return
        with self.without(recorder):  # other tapes record this read, or a path of theirs would end in its result
            for handle in handles:
                held = functions.handle_type(handle)
                if held is not None and self._is_set(handle):
                    recorder.hold(handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=held[0]))

    def hold_copied(self, recorder: Recorder) -> None:
        """Hold the buffers of variables whose reads are copies: from a copy, a later write cannot be detected."""
        self.flush()
        handles = recorder.copied()
        if not handles:
            return
        with self.without(recorder):
            for handle in handles:
                tf.raw_ops.DisableCopyOnRead(resource=handle)  # until slices of it are updated again
                held = functions.handle_type(handle)
                if held is not None and not recorder.is_stale(handle) and self._is_set(handle):
                    recorder.hold(handle, tf.raw_ops.ReadVariableOp(resource=handle, dtype=held[0]))

    def adopt(self, handle: Tensor, value: Tensor) -> None:
        """Record on all active recorders that the variable behind `handle` holds `value`."""
        self.flush()
        for recorder in self.active:
            recorder.adopt(handle, value)

    def on_variable(self, variable: Any) -> None:
        """Record that a variable is read."""
        plain = type(variable) is PlainVariable
        key = identity_of(variable.handle if plain else replicas.handle_of(variable))
        for recorder in self.active:
            if key not in recorder.variables:
                recorder.variables[key] = variable
                whole = whole_of(variable)
                if whole is not None:
                    recorder.wholes[key] = whole

    def on_keras_variable(self, variable: Any) -> None:
        """Record the Keras variable that owns a `tf.Variable`."""
        for recorder in self.active:
            recorder.owners[id(unwrap(variable))] = variable

    def on_read(self, handle: Tensor) -> None:
        """Mark the value of a variable, which is about to be read, as known; detect unrecorded writes before."""
        identity = identity_of(handle)
        self._known.add(identity)
        if hooks.writes:
            self._notice_writes(identity)

    def _notice_writes(self, identity: int) -> None:
        """Mark writes that the recorders do not have: on another thread, or by an op that then failed."""
        written = hooks.writes.get(identity, 0)
        if written == self._seen.get(identity, 0):
            return
        self.flush()
        for recorder in {id(one): one for one in (*self._open, *self.active)}.values():
            if written > self._seen.get(identity, recorder.began):
                recorder.mark_written(identity)
        self._seen[identity] = written

    def on_gather(self, handles: Sequence[Tensor]) -> None:
        """Read the whole variable before a slice of it is read, if it may have changed."""
        for handle in handles:
            self._notice_writes(identity_of(handle))
            if any(recorder.is_stale(handle) for recorder in self.active):
                self._read(handle)

    def on_update(self, op: str, handles: Sequence[Tensor]) -> None:
        """Read what is about to be overwritten, if it is not known: every value has to be on the tape."""
        for handle in handles:
            self._notice_writes(identity_of(handle))
        self._notify_paused(handles)
        if not self.active:
            return
        for handle in handles:
            if identity_of(handle) not in self._known or any(recorder.is_stale(handle) for recorder in self.active):
                self._read(handle)
            if traits(op).opaque:
                self._known.discard(identity_of(handle))

    def on_updated(self, stamp: WriteStamp) -> None:
        """Mark a write as seen: active recorders have recorded it, paused ones were notified."""
        for identity, before in stamp.before.items():
            if before != self._seen.get(identity, before):  # another thread wrote in between
                for recorder in (*self._open, *self.active):
                    recorder.mark_written(identity)
            self._seen[identity] = stamp.when

    def _notify_paused(self, handles: Sequence[Tensor]) -> None:
        """Mark variables as written on paused recorders: even an equal value is an unrecorded update."""
        for recorder in self._open:
            if recorder not in self.active:
                for handle in handles:
                    recorder.mark_written(identity_of(handle))

    def _is_set(self, handle: Tensor) -> bool:
        # Not `unrecorded`, which clears `_known`. A forward accumulator would look up a derivative rule.
        with setting(self, active=[]), stop_stock_tapes():
            return bool(tf.raw_ops.VarIsInitializedOp(resource=handle))

    def _read_unheld(self, handles: Iterable[Tensor]) -> None:
        """Record the values of variables that a backward function will read: they may change before it runs."""
        self.flush()
        for handle in handles:
            self._notice_writes(identity_of(handle))
            if not all(recorder.holds(handle) for recorder in self.active):
                self._read(handle)

    def _read(self, handle: Tensor) -> None:
        held = functions.handle_type(handle)
        if held is not None and self._is_set(handle):
            tf.raw_ops.ReadVariableOp(resource=handle, dtype=held[0])
