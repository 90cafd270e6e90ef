"""A step that is recorded once, and played back as one function."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Hashable
from functools import update_wrapper
from types import MethodType
from typing import Any

from retrotape._locks import new_lock
from retrotape._types import Tensor
from retrotape.errors import PlaybackError, PlaybackWarning, TapeUseError
from retrotape.lower import NotCompilableError
from retrotape.playback._arguments import Arguments, with_tensors
from retrotape.playback._known import Call, Entry, Known, Missing, Variant, playing
from retrotape.playback._last_call import trace_of
from retrotape.playback._recorded import NotSettledError, Recorded, Recording
from retrotape.playback._table import Recordings, in_words
from retrotape.playback._tree import Options
from retrotape.python import NewObjects, is_observable
from retrotape.record import Trace, current_stack, stacklevel
from retrotape.tf import core, hooks, keras_api
from retrotape.tf.core import tf

UNSETTLED = 4  # calls that may create variables, or build layers, before the step counts as one that always does
KINDS = 8  # kinds of arguments, times the limit of recordings of one kind
_WARNED = 4  # kinds of arguments in a row of which none came again


class Step:
    """A step that is recorded when it is first called, and played back later; see `rt.compile`.

    Args:
      function: The step.
      options: How functions are made.
      strict: Whether to raise if calls cannot be played back.
      limit: How many recordings there may be for one kind of arguments.
      of_library: Whether nobody has asked for it: then only calls without user code are played back, and nothing warns.
      audit: Whether some calls are recorded anew, to compare.

    Attributes:
      audits: Whether some calls are recorded anew, to compare.
      lock: Held while a call is recorded or played back.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        options: Options,
        strict: bool,
        limit: int,
        of_library: bool = False,
        audit: bool = True,
    ) -> None:
        self._function, self._options, self._strict, self._limit = function, options, strict, limit
        self.audits = audit
        self._of_library = of_library
        self._known: dict[Any, Known] = {}
        self._last: Call | Entry | Trace | None = None
        self._reason: str | None = "it has not been called"
        self._noted = self._is_full = False
        self._in_a_row: list[Hashable] = []  # kinds of arguments that were recorded since a call was played back
        self._met: set[Hashable] = set()  # those that were not recorded
        self.lock = new_lock()
        update_wrapper(self, function, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Return the step as a method of an object."""
        return self if instance is None else MethodType(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the step."""
        if not is_plain():
            return self._function(*args, **kwargs)
        last, self._last = self._last, None  # so that the old values of variables are free
        if isinstance(last, Entry):
            last.release()
        del last
        arguments = Arguments(args, kwargs)
        known = self._known.get(arguments.key)
        why = Missing("first call with such arguments")
        variant: Variant | None = None
        if known is not None:
            if known.reason is not None:
                self._reason = known.reason
                if self._strict:
                    raise PlaybackError(self._name(), known.reason)
                return self._function(*args, **kwargs)
            variant, text = known.find(arguments)
            why = Missing(text)
            is_due = variant is not None and self.audits and variant.is_due() and is_observable()
            if variant is not None:
                variant.calls += 1
            if is_due:
                why = Missing("an audit", is_audit=True)
            elif variant is not None:
                found = self._play(variant, arguments)
                if isinstance(found, Call):
                    self._last, self._reason = found, None
                    self._in_a_row.clear()
                    return found.entry.pack(found.entry.tensors(found.values))
                why = found
        return self._record(arguments.key, args, kwargs, variant, why)

    def _play(self, variant: Variant, arguments: Arguments) -> Call | Missing:
        try:
            with self.lock, playing:
                return variant.play(arguments)
        except Exception as error:  # nothing was assigned: eager code raises what there is to raise
            text = str(error).partition("\n")[0][:200]
            return Missing(f"playing it back raised {type(error).__name__}: {text}", failed=True)

    # ------------------------------------------------------------------ recording

    def _run_as_new_kind(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a call of one kind of arguments too many in eager code."""
        if self._strict or not self._is_full:
            self._is_full = True
            self._refuse(
                Known([]),
                f"it was called with more than {KINDS * self._limit} kinds of arguments; pass numbers that change as "
                "tensors, and pad to a few shapes",
            )
        return self._function(*args, **kwargs)

    def _is_another_each_time(self, key: Hashable) -> bool:
        """Return whether no kind of arguments comes again: then a new one is recorded when it comes the second time."""
        row = self._in_a_row
        row.append(key)
        if len(row) == _WARNED and not self._of_library:
            warnings.warn(
                f"{self._name()} was recorded for {_WARNED} kinds of arguments in a row, and none came again: "
                f"{in_words(row[-2])}, then {in_words(row[-1])}. Pass what changes as a tensor: a Python number is "
                "part of what is recorded.",
                PlaybackWarning,
                stacklevel=stacklevel(),
            )
        if len(row) <= KINDS or key in self._met:
            return False
        row.pop()
        if len(self._met) >= KINDS * KINDS:
            self._met.clear()
        self._met.add(key)
        self._reason = "its arguments are of another kind each time"
        return True

    def _record(
        self, key: Hashable, args: tuple[Any, ...], kwargs: dict[str, Any], variant: Variant | None, why: Missing
    ) -> Any:
        if not is_observable():
            self._reason = "a profiler is active"
            return self._function(*args, **kwargs)
        if key not in self._known and len(self._known) >= KINDS * self._limit:
            return self._run_as_new_kind(args, kwargs)
        if key not in self._known and self._is_another_each_time(key):
            return self._function(*args, **kwargs)
        with self.lock:
            turn, holder = NewObjects.turn, object()
            try:
                if turn.take(holder):
                    return self._record_kind(args, kwargs, variant, why)
            finally:
                if turn.holder is holder:
                    turn.holder = None
            self._reason = "another step is being recorded on another thread"
            return self._function(*args, **kwargs)

    def _record_kind(self, args: tuple[Any, ...], kwargs: dict[str, Any], variant: Variant | None, why: Missing) -> Any:
        args = tuple(map(with_tensors, args))
        kwargs = {name: with_tensors(value) for name, value in kwargs.items()}
        arguments = Arguments(args, kwargs)
        known = self._known.setdefault(arguments.key, Known(arguments.objects))
        try:
            recording = Recording(self._function, args, kwargs, arguments)
        except Exception as error:
            self._refuse(known, f"its state cannot be compared: {error}")
            return self._function(*args, **kwargs)
        result = recording.run()
        try:
            self._add(known, recording.recorded(), variant, arguments, why)
            self._reason, known.unsettled = None, 0
        except NotSettledError as error:
            known.unsettled += 1
            self._last = recording.trace
            self._reason = f"the last call was not kept: {error}"
            if known.unsettled > (1 if error.is_users else UNSETTLED) or (why.is_audit and error.is_users):
                self._refuse(known, str(error))
        except NotCompilableError as error:
            self._refuse(known, str(error))
        except Exception as error:
            self._refuse(known, f"making a function of it raised {type(error).__name__}: {error}")
        return result

    def _add(
        self, known: Known, recorded: Recorded, variant: Variant | None, arguments: Arguments, why: Missing
    ) -> None:
        if why.failed:
            raise NotCompilableError(why.why)
        if why.is_audit and variant is not None:
            difference = variant.difference(recorded.path)
            if difference is not None:
                raise NotCompilableError(difference)
            self._last = Entry(recorded, arguments, why.why, "")
            return
        if self._of_library and (recorded.notes or recorded.runs_user_code):
            raise NotCompilableError("it runs user code, which may depend on anything")
        if known.count() >= self._limit:
            raise NotCompilableError(
                f"it was recorded {known.count()} times already, and again since {why.why}; "
                f"pass what changes as a tensor, or allow more: `rt.compile(step, limit={2 * self._limit})`"
            )
        entry = Entry(recorded, arguments, why.why, in_words(arguments.key))
        with playing:
            if variant is None:
                variant = Variant(arguments, self._options)
                variant.add(entry, arguments)
                known.variants.insert(0, variant)
            else:
                variant.add(entry, arguments)
        self._last = entry
        self._note(recorded.notes)

    def _note(self, notes: list[str]) -> None:
        if notes and not self._of_library and not self._noted:
            self._noted = True
            warnings.warn(
                f"While {self._name()} was recorded, {notes[0]}. It does not do so when it is played back; use "
                "`tf.print`, or do it outside the step.",
                PlaybackWarning,
                stacklevel=stacklevel(),
            )

    def _refuse(self, known: Known, reason: str) -> None:
        known.reason = self._reason = reason
        known.variants.clear()
        if self._strict:
            raise PlaybackError(self._name(), reason)
        if not self._of_library:
            text = f"{self._name()} runs in eager code, it is not played back: {reason}."
            warnings.warn(text, PlaybackWarning, stacklevel=stacklevel())

    def _name(self) -> str:
        return repr(getattr(self._function, "__name__", type(self._function).__name__))

    # ------------------------------------------------------------------ what is known

    def why_not_compiled(self) -> str | None:
        """Return why the last call was not played back, or will not be the next time; None if it was."""
        return self._reason

    def recordings(self) -> Recordings:
        """Return the recordings; it prints as a table."""
        entries = [entry for known in self._known.values() for one in known.variants for entry in one.entries.values()]
        return Recordings(sorted(entries, key=lambda entry: entry.number))

    def last_trace(self) -> Trace:
        """Return the last call as a trace."""
        last = self._last
        if last is None:
            raise TapeUseError(
                f"{self._name()} has no tape of its last call: {self._reason or 'the call failed'}. "
                "Call it once more, or record it: `with rt.Tape() as tape: ...`."
            )
        if isinstance(last, Call):
            return trace_of(last, self._options.keeps_state)
        return (last.trace if isinstance(last, Entry) else last).fork()  # the next call drops values

    def ready(self, arguments: Arguments) -> Variant | None:
        """Return the recordings that fit a call; None if it has to be recorded, or runs in eager code."""
        known = self._known.get(arguments.key) if is_plain() else None
        return None if known is None or known.reason is not None else known.find(arguments)[0]

    def played(self, entry: Entry, arguments: Arguments, values: dict[int, Tensor]) -> None:
        """Note that a call was played back as part of a longer one."""
        self._last, self._reason = Call(entry, arguments.tensors, values), None
        self._in_a_row.clear()

    def drop_last(self) -> None:
        """Drop the arguments of the last call, and what it computed."""
        last, self._last, self._reason = self._last, None, self._reason or "its values were dropped"
        if isinstance(last, Entry):
            last.release()

    def forget(self) -> None:
        """Forget all recordings: the next call is recorded."""
        with self.lock:
            for noted in (self._known, self._in_a_row, self._met):
                noted.clear()
            self._noted = self._is_full = False
            self._last, self._reason = None, "it has not been called since `forget()`"


def is_plain() -> bool:
    """Return whether this is eager code that nothing records."""
    return (
        tf.executing_eagerly()
        and not current_stack().observed()
        and not core.stock_tape_listens()
        and not core.accumulating()
        and not hooks.others_listen()
        and not tf.distribute.has_strategy()
        and not keras_api.is_stateless()
    )
