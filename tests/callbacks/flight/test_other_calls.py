"""What other callbacks do with the train function during a `fit` that is recorded."""

from __future__ import annotations

import gc

import keras
import numpy as np
import pytest

import retrotape as rt
from callbacks.flight.programs import SIZE, state, training

MODES = {"compiled": {}, "eager": {"run_eagerly": True}}


class TrainsToo(keras.callbacks.Callback):
    """Trains on a batch of its own, now and then."""

    def __init__(self, method: str, program) -> None:
        super().__init__()
        self._data = program.x[:SIZE], program.y[:SIZE]
        self._calls = 0
        setattr(self, method, self._train)

    def _train(self, *args, **options):
        self._calls += 1
        if self._calls % 3 == 1:
            self.model.train_on_batch(*self._data)


METHODS = ["on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end", "on_epoch_end"]


@pytest.mark.parametrize(
    ("method", "first"),
    [
        pytest.param(method, first, marks=[] if first == (number % 2 == 0) else [pytest.mark.slow])
        for number, method in enumerate(METHODS)
        for first in (False, True)
    ],
)
def test_train_on_batch_runs_as_without_a_recorder(tmp_path, method, first):
    program, found = training(0), []
    for recorders in ([], [rt.FlightRecorder(tmp_path, every=4)]):
        model, other = program.make(), TrainsToo(method, program)
        callbacks = [other, *recorders] if first else [*recorders, other]
        history = program.fit(model, 4, epochs=2, callbacks=callbacks).history
        found.append((history, {name: value.tobytes() for name, value in state(model).items()}))
        assert model.train_function.__module__.startswith("keras")
    assert found[0] == found[1]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["on_train_batch_begin", "on_train_batch_end"])
def test_the_step_is_found_all_the_same(tmp_path, method, mode):
    program = training(4)
    recorder = rt.FlightRecorder(tmp_path, every=4)
    program.fit(program.make(**MODES[mode]), callbacks=[recorder, TrainsToo(method, program)])
    assert recorder.crashes[0].step == program.bad, recorder.crashes[0].message
    assert recorder.crashes[0].nonfinite.op == program.kind.op


def test_a_fit_in_a_callback(tmp_path):
    class Nested(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            if epoch == 0:
                program.fit(self.model, 2)

    program = training(0)
    recorder = rt.FlightRecorder(tmp_path, every=4)
    program.fit(program.make(), callbacks=[recorder, Nested()])
    assert recorder.crashes[0].step == program.bad


def test_two_recorders_of_one_fit_are_refused(tmp_path):
    text = r"Another FlightRecorder records this model already. Use one: `callbacks=\[recorder\]`"
    program = training(0)
    model = program.make()
    with pytest.raises(rt.errors.TapeUseError, match=text):
        program.fit(model, callbacks=[rt.FlightRecorder(tmp_path / "a"), rt.FlightRecorder(tmp_path / "b")])
    gc.collect()
    assert model.train_function.__module__.startswith("keras")
    assert list(tmp_path.glob("*/*")) == []


class Raises(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        if batch == 2:
            raise ZeroDivisionError


def callbacks_of(names, folder):
    made = {
        "log": lambda: rt.callbacks.GradientLog(lambda metrics, step: None, every=1),
        "other_log": lambda: rt.callbacks.GradientLog(lambda metrics, step: None, every=2),
        "recorder": lambda: rt.FlightRecorder(folder, every=3),
    }
    return [made[name]() for name in names]


@pytest.mark.parametrize(
    ("names", "is_held"),
    [
        pytest.param(names.split(), is_held, marks=marks, id=f"{names}-{'held' if is_held else 'dropped'}")
        for names, is_held, *marks in (
            ("log", True),
            ("log other_log", False),
            ("log recorder", True),
            ("recorder log other_log", False),
            ("log", False, pytest.mark.slow),
            ("log other_log", True, pytest.mark.slow),
            ("log recorder", False, pytest.mark.slow),
            ("recorder log other_log", True, pytest.mark.slow),
        )
    ],
)
def test_no_hook_is_left_when_a_callback_raises(tmp_path, names, is_held):
    program = training(0)
    model = program.make()
    with pytest.raises(ZeroDivisionError) as raised:
        program.fit(model, callbacks=[*callbacks_of(names, tmp_path), Raises()])
    if not is_held:
        del raised
        gc.collect()
        assert model.train_function.__module__.startswith("keras")
    later = rt.FlightRecorder(tmp_path, every=4)
    program.fit(model, callbacks=[later])
    assert later.crashes[0].step == program.bad
    assert model.train_function.__module__.startswith("keras")


def test_a_log_whose_fit_has_raised_logs_nothing_in_the_next(tmp_path):
    program, steps = training(0), []
    model = program.make()
    log = rt.callbacks.GradientLog(lambda metrics, step: steps.append(step), every=1)
    with pytest.raises(ZeroDivisionError) as held:
        program.fit(model, callbacks=[log, Raises()])
    assert steps == [0, 1]
    program.fit(model, 3)
    assert steps == [0, 1]
    assert model.train_function.__module__.startswith("keras")
    del held


def test_gradients_are_logged_where_another_callback_trains_too():
    program, steps = training(0), []
    log = rt.callbacks.GradientLog(lambda metrics, step: steps.append(np.isfinite(metrics["gradients/norm"])), every=1)
    program.fit(program.make(), 4, callbacks=[log, TrainsToo("on_train_batch_begin", program)])
    assert len(steps) > 1  # the optimizer counts the other steps too
    assert all(steps)
