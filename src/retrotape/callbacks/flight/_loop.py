"""A flight recorder around the steps of a custom loop."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from math import isfinite
from typing import Any

import numpy as np

from retrotape._locks import Turn
from retrotape.callbacks.flight._account import gist_of
from retrotape.callbacks.flight._batches import Batch, named_batch
from retrotape.callbacks.flight._crash import Account, Crash, write_crash
from retrotape.callbacks.flight._folder import Recording
from retrotape.callbacks.flight._pace import Pace
from retrotape.callbacks.flight._recorded import known, used_variables
from retrotape.callbacks.flight._replay import Steps
from retrotape.callbacks.flight._search import CAUSES, CLOSE, numbers
from retrotape.callbacks.flight._settings import Settings
from retrotape.callbacks.flight._template import is_complete
from retrotape.callbacks.flight._trouble import Trouble
from retrotape.callbacks.flight._variables import RESERVED, Variables, unique_name
from retrotape.errors import RetrotapeError, TapeUseError
from retrotape.tape.live import Tape
from retrotape.tf.core import EagerTensor, tf

_TEMPLATES, _ATTEMPTS = 8, 3  # shapes of batches for which a step is recorded; how often at most
_UNREPORTED = "Nothing was reported to compare a replay with: call `step.report(loss=loss)` in the block."


class Step:
    """One step of a custom loop, as a `with` block; `FlightRecorder.step` makes it."""

    def __init__(self, session: LoopSession, batch: Batch) -> None:
        self._session, self.batch = session, batch
        self.reported: dict[str, Any] = {}
        self.tape: Tape | None = None
        self.number = self.layout = -1
        self.open = ExitStack()

    def report(self, **values: Any) -> None:
        """Name the loss, and other scalars: what is checked, compared with a replay, and named on the tape.

        Args:
          **values: Tensors, by name: `step.report(loss=loss)`.
        """
        for name, value in values.items():
            if not isinstance(value, EagerTensor) or value.shape.rank != 0:
                raise TypeError(
                    f"report takes tensors that are scalars, got {name}={value!r}: `step.report(loss=loss)`."
                )
        self.reported.update(values)

    def __enter__(self) -> Step:
        self._session.begin(self)
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        self._session.end(self, error)


class LoopSession:
    """The steps of a custom loop.

    Args:
      settings: Of the recorder.
      on_crash: Called with each crash.
    """

    def __init__(self, settings: Settings, on_crash: Callable[[Crash], None]) -> None:
        self._settings, self._on_crash = settings, on_crash
        self._recording = Recording(settings.folder, settings.keep)
        self._pace = Pace(settings.every)
        self._busy = Turn()
        self._count = 0
        self._variables: dict[str, Any] = {}
        self._state: Variables | None = None
        self._attempts: dict[int, int] = {}  # by layout
        self._complete: set[int] = set()
        self._reported: dict[int, dict[str, Any]] = {}  # since the snapshot, by step
        self._was_bad = self._was_true = False
        self._trouble = Trouble()

    def step(self, batch: Any) -> Step:
        """Return the block of a step, or raise for a batch whose tensors could not be recognized in it."""
        found = named_batch(batch)
        if not tf.executing_eagerly():
            raise TapeUseError("recorder.step was called inside a tf.function. Use it around the call of the function.")
        for name, tensor in zip(found.names, found.tensors, strict=True):
            if not isinstance(tensor, EagerTensor):
                raise TypeError(
                    f"recorder.step takes tensors, as only these can be recognized in the step; {name} is of type "
                    f"{type(tensor).__name__}. Convert it before: `batch = tf.nest.map_structure(tf.constant, batch)`."
                )
        return Step(self, found)

    def begin(self, step: Step) -> None:
        """Write the batch of a step to the log, and record it if there is no recorded one for its shape."""
        if not self._busy.take(step):
            raise TapeUseError("This recorder is inside a step already. Leave it first, or use one for each thread.")
        self._trouble.attempt(partial(self._begin, step))

    def _begin(self, step: Step) -> None:
        step.number = self._count
        if self._state is not None and self._pace.is_due(self._count, self._recording.log.bytes):
            self._check()
            self._snapshot()
        arrays = [tensor.numpy() for tensor in step.batch.tensors]
        step.layout = self._recording.layout("batch", step.batch.layout(arrays))
        if self._state is not None:
            self._recording.log.batch(self._count, step.layout, arrays)
        attempt = self._attempts.get(step.layout, 0)
        if step.layout not in self._complete and attempt < _ATTEMPTS and len(self._complete) < _TEMPLATES:
            self._attempts[step.layout] = attempt + 1
            step.tape = step.open.enter_context(Tape())

    def end(self, step: Step, error: BaseException | None) -> None:
        """Look at a step that has run."""
        try:
            step.open.close()
            self._trouble.attempt(partial(self._end, step, error))
            if error is None and self._trouble.reason is None:
                self._evaluate(step)  # not an attempt: what the user's function raises is the user's
        finally:
            self._busy.holder = None

    def _end(self, step: Step, error: BaseException | None) -> None:
        self._count += 1
        self._reported[step.number] = step.reported
        if isinstance(error, Exception):
            self._look_back(f"it raised {gist_of(error)}", step, raised=True)
        elif error is None and step.tape is not None:
            self._adopt(step, step.tape)

    def _evaluate(self, step: Step) -> None:
        if self._settings.predicate is not None:
            was_true, self._was_true = self._was_true, self._settings.is_met(numbers(step.reported))
            if self._was_true and not was_true:
                self._trouble.attempt(partial(self._look_back, "on= was true", step))

    def _adopt(self, step: Step, tape: Tape) -> None:
        """Learn from a recorded step which variables there are, and keep it as a template."""
        trace, names = tape._recorded().trace, self._names(step)
        have = {id(variable) for variable in self._variables.values()}
        new = [variable for variable in used_variables(tape) if id(variable) not in have]
        for variable in new:
            taken = [*RESERVED, *names, *self._variables]
            self._variables[unique_name(trace.path_of(variable), taken)] = variable
        if new or self._state is None:
            self._state = Variables(self._variables, earlier=self._state)
            self._pace = Pace(self._settings.every)
        if self._settings.nonfinite and _is_bad(step.reported):
            self._was_bad = True
            self._look_back("the loss is not finite", step)
        names = known(tape, {**self._variables, **names})
        if is_complete(tape, names):
            self._complete.add(step.layout)
            try:
                tape.save(self._recording.template(step.layout), names)
            except RetrotapeError as error:
                text = f"If a step goes wrong, it cannot be replayed: {error}"
                warnings.warn(text, RuntimeWarning, stacklevel=5)

    def _names(self, step: Step) -> dict[str, Any]:
        return {**dict(zip(step.batch.names, step.batch.tensors, strict=True)), **step.reported}

    def _snapshot(self) -> None:
        assert self._state is not None
        began = time.perf_counter()
        values, is_finite = self._state.read()
        if is_finite and not any(map(_is_bad, self._reported.values())):
            self._was_bad = False
        layout = self._recording.layout("state", self._state.layout(values))
        self._recording.log.snapshot(self._count, layout, [value.numpy() for value in values])
        self._reported.clear()
        self._recording.forget_layouts()
        self._pace.taken(self._count, began)

    # ------------------------------------------------------------------ what went wrong

    def _check(self) -> None:
        if not self._settings.nonfinite or self._state is None or self._was_bad or not self._reported:
            return
        bad = any(map(_is_bad, self._reported.values()))
        if bad or not self._state.read()[1]:
            self._was_bad = True
            self._look_back("the loss is not finite" if bad else "a variable is no longer finite")

    def _look_back(self, what: str, step: Step | None = None, raised: bool = False) -> None:
        """Write the step that went wrong: from its own tape if it was recorded, or else replayed.

        Args:
          what: What happened.
          step: The one that was noticed, if it is known.
          raised: Whether it raised.
        """
        if step is not None and step.tape is not None:
            names = known(step.tape, {**self._variables, **self._names(step)})
            return self._write(Account(step.number, f"step {step.number}: {what}"), step.tape, names)
        found = Steps(self._recording.path, self._compare).search(None if raised else self._wanted(step))
        remarks = [*found.remarks, *([] if any(self._reported.values()) else [_UNREPORTED])]
        if found.is_bad and not raised:
            return self._write(Account(found.step, f"step {found.step}: {what}", remarks), found.tape)
        if found.is_complete and not raised:  # although the run went wrong
            remarks.append(f"It could not be reproduced: no step of the replay went wrong. {CAUSES}")
            return self._write(Account(None, f"{self._where(step)}: {what}", remarks), None)
        is_it = raised and step is not None and found.step == step.number
        if found.tape is not None:
            remarks.append(f"The tape is of step {found.step}, replayed on the ops of an earlier one.")
        return self._write(Account(found.step if is_it else None, f"{self._where(step)}: {what}", remarks), found.tape)

    def _where(self, step: Step | None) -> str:
        """Return which step went wrong, as far as the run itself shows it."""
        bad = [number for number, values in self._reported.items() if _is_bad(values)]
        if step is not None or bad:
            return f"step {step.number if step is not None else min(bad)}"
        return f"one of the steps {min(self._reported, default=0)} to {self._count - 1}"

    def _wanted(self, step: Step | None) -> Any:
        if step is None or self._settings.predicate is None:
            return None
        return lambda tape: self._settings.is_met({name: float(tape.value(name)) for name in step.reported})

    def _compare(self, step: int, tape: Any) -> str | None:
        reported = {name: value for name, value in self._reported.get(step, {}).items() if name in tape.names}
        for name, value in reported.items():
            now, before = float(tape.value(name)), float(value)
            if not np.isclose(now, before, rtol=CLOSE, atol=1e-30, equal_nan=True):
                return f"The replay of step {step} gave {name} {now:.6g} where the run had {before:.6g}"
        return "" if reported else None

    def _write(self, account: Account, tape: Any, names: Any = None) -> None:
        self._on_crash(write_crash(self._settings.folder, self._settings.keep, account, tape, names))

    def finish(self) -> None:
        """Look at everything once more, and end."""
        try:
            self._trouble.attempt(self._check)
        finally:
            self._recording.close()


def _is_bad(reported: Any) -> bool:
    values = numbers(reported)
    return not all(map(isfinite, [values["loss"]] if "loss" in values else values.values()))
