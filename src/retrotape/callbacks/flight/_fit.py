"""A flight recorder in `fit`: observes each call of the train function, and looks back when a step went wrong."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import isfinite, log2
from typing import Any

from retrotape._types import Tensor
from retrotape.callbacks._draws import XLA
from retrotape.callbacks._hooks import Fit, Hook, hooks_of, is_of_train_on_batch, remove_stale
from retrotape.callbacks.flight._account import Epoch, account_of, gist_of, recorded_remarks
from retrotape.callbacks.flight._batches import Batch, BatchSpec, named_batch
from retrotape.callbacks.flight._crash import Crash, write_crash
from retrotape.callbacks.flight._folder import Recording, Segment, segments
from retrotape.callbacks.flight._model import ObservedModel
from retrotape.callbacks.flight._pace import Pace
from retrotape.callbacks.flight._recorded import known
from retrotape.callbacks.flight._search import Call, Ran, numbers, search
from retrotape.callbacks.flight._settings import Settings
from retrotape.callbacks.flight._trouble import Trouble
from retrotape.callbacks.flight._writer import Writer
from retrotape.errors import RetrotapeError, TapeUseError
from retrotape.tf.core import tf

_DROPS = 8  # times that a loss scale is halved between two snapshots: more than it takes to find its level
_TEMPLATES = 8  # shapes of batches for which a step is recorded
_DATA_ENDED = (StopIteration, tf.errors.OutOfRangeError)
_LOSS, _STATE = "the loss is not finite", "a weight or a variable of the optimizer is no longer finite"


class FitSession:
    """One `fit` of a model.

    Args:
      settings: Of the recorder.
      model: The model, about to be trained.
      on_crash: Called with each crash.
    """

    def __init__(self, settings: Settings, model: Any, on_crash: Callable[[Crash], None]) -> None:
        self._settings, self._on_crash = settings, on_crash
        remove_stale(model)
        if hooks_of(model):
            raise TapeUseError("Another FlightRecorder records this model already. Use one: `callbacks=[recorder]`.")
        self._observed = ObservedModel(model, self._on_batch)
        self._recording = Recording(settings.folder, settings.keep)
        self._writer = Writer()
        self._pace = Pace(settings.every)
        self._step = 0  # the next one
        self._calls: list[Call] = []  # since the snapshot
        self._specs: dict[int, BatchSpec] = {}  # by layout: how to put a batch together
        self._new_layouts: list[int] = []  # for which no step was recorded yet
        self._templates = 0  # steps that were recorded
        self._epochs: list[Epoch] = []
        self._scale: float | None = None
        self._was_bad = self._was_true = self._is_lost = self._is_new_epoch = False
        self._asleep = False  # while steps run again
        self._has_ended = False
        self._trouble = Trouble()
        self.is_expected = False  # whether `fit` is about to call the train function
        model.make_train_function()
        self._hook = Hook(model, Fit(self.end), self._observed_call)

    @property
    def model(self) -> Any:
        """The model."""
        return self._observed.model

    @property
    def is_running(self) -> bool:
        """Whether `fit` has neither returned nor raised."""
        return not self._has_ended and self._hook.fit.is_running

    # ------------------------------------------------------------------ the run

    def _on_batch(self, data: Any) -> list[Any]:
        """Write a batch to the log; in a graph, return the operation that does so."""
        if self._asleep:
            return []
        batch = named_batch(data)
        if not tf.executing_eagerly():
            return [tf.numpy_function(partial(self._note, batch), list(batch.tensors), [])]
        self._note(batch, *(tensor.numpy() for tensor in batch.tensors))
        return []

    def _note(self, batch: Batch, *arrays: Any) -> None:
        if self._trouble.reason is not None or self._asleep:
            return
        try:
            layout = self._recording.layout("batch", batch.layout(arrays))
            if layout not in self._specs:
                self._specs[layout] = batch.spec()
                self._new_layouts.append(layout)
            self._writer.put(partial(self._recording.log.batch, self._step, layout, arrays))
            self._step += 1
            if self._writer.error is not None:
                raise self._writer.error
        except Exception as error:  # any: on this thread of TensorFlow it would end the training
            self._trouble.reason = f"a batch could not be written: {error}"

    def _observed_call(self, hook: Hook, iterator: Any) -> Any:
        if not self.is_expected or self._has_ended or is_of_train_on_batch(iterator):
            return self._other_call(hook, iterator)
        self.is_expected = False
        self._trouble.attempt(self._before_call)
        first = self._step
        try:
            logs = self._observed.function(iterator)
        except _DATA_ENDED:
            raise
        except BaseException as error:
            try:
                if isinstance(error, Exception) and self._step > first:  # else there was no batch: the data raised
                    self._trouble.attempt(partial(self._raised, Call(first, self._step, None), error))
            finally:
                self.end()
            raise
        try:
            self._after_call(Call(first, self._step, logs))
        except BaseException:
            self.end()
            raise
        return logs

    def _other_call(self, hook: Hook, iterator: Any) -> Any:
        """Run steps that are not of this `fit`: of `train_on_batch` in a callback, or of a `fit` after this one."""
        if not hook.fit.is_running:  # it has raised, and callbacks are not notified of that
            self.end()
        self._pace = Pace(self._settings.every)  # a snapshot before the next step, as variables change
        return hook.train(iterator)

    def _before_call(self) -> None:
        if self._pace.is_due(self._step, self._recording.log.bytes):
            began = time.perf_counter()
            self._observed.refresh()
            values, is_finite = self._observed.variables.read()
            self._check(is_finite)
            self._snapshot(values)
            self._is_lost = not is_finite
            self._was_bad, self._is_new_epoch = self._was_bad and not self._is_new_epoch, False
            self._pace.taken(self._step, began)

    def _after_call(self, call: Call) -> None:
        self._trouble.attempt(partial(self._returned, call))
        if self._trouble.reason is None:
            # Not an attempt: what the user's function raises ends the training.
            was_true, self._was_true = self._was_true, self._is_met(call.logs)
            if self._was_true and not was_true:
                self._trouble.attempt(partial(self._look_back, "on= was true", self._satisfies))

    def _returned(self, call: Call) -> None:
        self._calls.append(call)
        if call.first == 0 and self._observed.refresh():  # the first call makes the variables of metrics
            self._pace = Pace(self._settings.every)
        layouts, self._new_layouts = self._new_layouts, []
        for layout in layouts[: _TEMPLATES - self._templates]:
            self._record_template(layout)

    def _is_met(self, logs: Any) -> bool:
        return self._settings.predicate is not None and self._settings.is_met(numbers(logs))  # reading logs takes time

    def _satisfies(self, ran: Ran) -> bool:
        return ran.logs is not None and self._settings.is_met(ran.logs)

    def begin_epoch(self, number: int) -> None:
        """Take a snapshot before the next step: callbacks may have changed anything since the last."""
        self._epochs.append(Epoch(number, self._step))
        self._pace = Pace(self._settings.every)
        self._was_true, self._is_new_epoch = False, True  # the calls of the last epoch are still to be looked at

    def end_epoch(self) -> None:
        """Look at the loss, which is reset for the next epoch."""
        if not self._has_ended:
            self._trouble.attempt(self._check_loss)

    def finish(self) -> None:
        """Look at everything once more, and end."""
        try:
            if not self._has_ended:
                self._trouble.attempt(lambda: self._check(self._observed.variables.read()[1]))
        finally:
            self.end()

    def end(self) -> None:
        """Leave the model as it was."""
        self._hook.remove()
        self._has_ended = self._asleep = True
        self._writer.close()
        self._recording.close()

    # ------------------------------------------------------------------ what is recorded

    def _snapshot(self, values: Sequence[Tensor]) -> None:
        self._writer.flush()
        layout = self._recording.layout("state", self._observed.variables.layout(values))
        self._recording.log.snapshot(self._step, layout, [value.numpy() for value in values])
        self._calls.clear()
        self._scale = self._observed.loss_scale
        kept = self._recording.forget_layouts()
        self._specs = {layout: spec for layout, spec in self._specs.items() if layout in kept}

    def _record_template(self, layout: int) -> None:
        """Record a step on a batch of a new layout, from which a killed process is recovered; undo what it did."""
        self._templates += 1
        segment = self._segment()
        step = next((segment.step + at for at, (found, _) in enumerate(segment.batches) if found == layout), None)
        if step is None:
            return
        with self._rerunning():
            recorded = self._observed.record_template(self._data(segment, step))
        if self._observed.refresh():
            self._pace = Pace(self._settings.every)
        try:
            drawn = self._observed.draws_otherwise(recorded)
            if drawn is not None:
                self._recording.refuse(layout, f"{drawn} draws random numbers, and {XLA}")
            elif recorded.error is None:
                names = known(recorded.tape, {**self._observed.variables.named, **recorded.names})
                recorded.tape.save(self._recording.template(layout), names)
        except RetrotapeError as error:
            text = f"If this process is killed, its last steps cannot be recovered: {error}"
            warnings.warn(text, RuntimeWarning, stacklevel=6)

    def _segment(self) -> Segment:
        self._writer.flush()
        found = segments(self._recording.path)
        if not found:
            raise FileNotFoundError(f"there is no recording in {self._recording.path} any more: was it removed?")
        return found[0]

    def _data(self, segment: Segment, step: int) -> Any:
        layout, arrays = segment.batches[step - segment.step]
        return self._specs[layout].packed(arrays)

    @contextmanager
    def _rerunning(self) -> Iterator[None]:
        self._asleep = True
        try:
            with self._observed.rerunning():
                yield
        finally:
            self._asleep = False

    # ------------------------------------------------------------------ what went wrong

    def _check(self, is_finite: bool) -> None:
        self._check_loss()
        if self._watches_numbers and not is_finite:
            wanted = _is_state_bad if self._was_bad else _is_bad  # the mean loss of an epoch stays as it is
            self._look_back(_STATE, wanted, nonfinite=True)
        if self._watches_numbers and not self._was_bad:
            self._check_scale()

    def _check_loss(self) -> None:
        """Look for the step if the loss is not finite, and was before."""
        is_news = self._watches_numbers and not self._was_bad
        if is_news and not isfinite(numbers(self._calls[-1].logs).get("loss", 0.0)):
            self._was_bad = True
            self._look_back(_LOSS, _is_bad, nonfinite=True)

    @property
    def _watches_numbers(self) -> bool:
        """Whether a state that is not finite would be news: that of the snapshot was."""
        return self._settings.nonfinite and bool(self._calls) and not self._is_lost

    def _check_scale(self) -> None:
        before, now = self._scale, self._observed.loss_scale
        if before and now and log2(before / now) >= _DROPS:
            what = f"the loss scale fell from {before:g} to {now:g}, since gradients were not finite again and again"
            self._look_back(what, lambda ran: ran.dropped, last=True, nonfinite=True)

    def _raised(self, call: Call, error: Exception) -> None:
        self._calls.append(call)
        self._look_back(f"the step raised {gist_of(error)}", lambda ran: ran.error is not None)

    def _look_back(
        self, what: str, is_wanted: Callable[[Ran], bool], *, last: bool = False, nonfinite: bool = False
    ) -> None:
        """Run the steps since the snapshot again, record the one that is wanted, and write its tape.

        Args:
          what: What happened.
          is_wanted: Whether a step is the one.
          last: Whether it is the last such step, not the first.
          nonfinite: Whether its tape has to have something on it that is not finite.
        """
        segment, observed = self._segment(), self._observed
        with self._rerunning():
            observed.restore(segment.state)

            def run(step: int) -> Ran:
                return observed.run(self._data(segment, step))

            steps = range(segment.step, segment.end)
            outcome = search(steps, run, lambda: observed.variables.read()[0], self._calls, is_wanted, last)
            recorded, difference = None, ""
            if outcome.step is not None and not outcome.difference:
                recorded, difference = observed.record_from(outcome.before, self._data(segment, outcome.step))
        if what == _LOSS and outcome.is_loss_finite:  # that of a later step is not, which has shown it
            what = _STATE
        account = account_of(what, segment.step, outcome, self._calls, self._epochs)
        tape: tuple[Any, ...] = ()
        if recorded is not None:
            drawn = observed.draws_otherwise(recorded)
            account = account.with_remarks(*recorded_remarks(recorded.remarks, difference, drawn))
            tape = () if difference else (recorded.tape, recorded.names)
        crash = write_crash(self._settings.folder, self._settings.keep, account, *tape, nonfinite=nonfinite)
        self._on_crash(crash)
        self._is_lost = not observed.variables.read()[1]
        if self._settings.stop and self._is_lost:
            observed.model.stop_training = True


def _is_state_bad(ran: Ran) -> bool:
    return not ran.is_finite


def _is_bad(ran: Ran) -> bool:
    return ran.is_bad
