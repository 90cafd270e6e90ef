"""A TensorFlow that nobody has tried is checked before it is trusted."""

from __future__ import annotations

import sys
import warnings
from threading import Event, Thread
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import IncompatibleTensorFlowError, UntriedTensorFlowWarning
from retrotape.tf import hook_table, selftest

TRUSTED = ["2.16.1", "2.21.0"]
CHECKED = ["2.20.0rc1", "2.19.0+nv24.5", "2.21.0-dev20251101"]  # silently: builds of versions that were tried
UNTRIED = ["2.22.0", "2.22.0-dev20261101", "3.0", "2.15.1", "unknown", "", None]


@pytest.fixture
def checks(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Forget that the self test has run, and count how often it does."""
    check, done = selftest.check, []
    monkeypatch.setattr(selftest, "_checked", False)
    monkeypatch.setattr(selftest, "check", lambda make_tape: done.append(check(make_tape)))
    return done


def six() -> float:
    x = tf.constant(3.0)
    with rt.Tape() as tape:
        y = x * x
    return float(tape.gradient(y, x))


@pytest.mark.parametrize("version", UNTRIED)
def test_an_untried_version_is_checked_and_warned_about_once(version: Any, checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", version)
    with pytest.warns(UntriedTensorFlowWarning) as caught:
        assert six() == six() == 6.0
    caught = [each for each in caught if each.category is UntriedTensorFlowWarning]  # AutoGraph warns on Python 3.13
    assert len(caught) == len(checks) == 1
    text = f"retrotape has not been tested with TensorFlow {version or '(unknown version)'}, only with 2.16 to 2.21. "
    assert str(caught[0].message).startswith(text)
    assert 'message="retrotape has not been tested"' in str(caught[0].message)
    assert caught[0].filename == __file__


def test_the_advice_about_the_warning_works(checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", "2.22.0")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="retrotape has not been tested")
        assert six() == 6.0


def test_a_tensorflow_without_a_version(checks: list, monkeypatch: Any) -> None:
    monkeypatch.delattr(tf, "__version__")
    with pytest.warns(UntriedTensorFlowWarning, match=r"TensorFlow \(unknown version\)"):
        assert six() == 6.0


@pytest.mark.parametrize("version", CHECKED)
def test_another_build_of_a_tried_version_is_checked(version: str, checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", version)
    assert six() == 6.0
    assert len(checks) == 1


@pytest.mark.parametrize("version", TRUSTED)
def test_a_tried_version_is_not_checked(version: str, checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", version)
    assert six() == 6.0
    assert checks == []


def test_it_runs_apart_from_what_is_open(checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", "2.19.0+nv24.5")

    @tf.function
    def square(value: tf.Tensor) -> Any:
        with rt.Tape() as tape:
            y = value * value
        return tape.gradient(y, value)

    with tf.GradientTape() as stock:
        assert float(square(tf.constant(3.0))) == 6.0
    assert len(checks) == 1
    assert stock.watched_variables() == ()


def test_a_tape_on_another_thread_waits_for_the_result(checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", "2.19.0+nv24.5")
    entered, go_on, found = Event(), Event(), []

    def wait(make_tape: Any) -> list:
        entered.set()
        assert go_on.wait(60)
        return []

    monkeypatch.setitem(selftest._PROGRAMS, "gathers", wait)
    threads = [Thread(target=lambda: found.append(six())) for _ in range(2)]
    threads[0].start()
    assert entered.wait(60)
    threads[1].start()
    threads[1].join(0.2)
    assert found == []
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert found == [6.0, 6.0]
    assert len(checks) == 1


# ------------------------------------------------------------------ what it finds


# The others are on ways that few programs take, or are needed for explanations only.
NEEDED = ["TFE_Py_FastPathExecute", "execute", "record_operation", "variable_accessed", "_call_flat", "__call__"]


@pytest.mark.parametrize("name", NEEDED)
def test_a_tensorflow_that_passes_a_hook_by_is_refused(name: str, checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", "2.22.0")
    owner = next(owner for owner, attribute, _ in hook_table.hooks if attribute == name)
    monkeypatch.setattr(hook_table, "hooks", [hook for hook in hook_table.hooks if hook.key[1] != name])
    monkeypatch.setitem(hook_table.original, (owner, name), getattr(owner, name))
    for _ in range(2):  # and not only the first time
        with pytest.raises(
            IncompatibleTensorFlowError, match=r"on TensorFlow 2\.22\.0: the self test of .* install one of"
        ):
            six()


@pytest.mark.parametrize("what", selftest._PROGRAMS)
def test_an_error_in_the_self_test_is_the_versions(what: str, checks: list, monkeypatch: Any) -> None:
    monkeypatch.setattr(tf, "__version__", "2.22.0")

    def fail(make_tape: Any) -> Any:
        raise AttributeError("module 'x' has no attribute 'y'.")

    monkeypatch.setitem(selftest._PROGRAMS, what, fail)
    text = rf"the self test of {what} failed with AttributeError: module 'x' has no attribute 'y'\. Tested versions"
    with pytest.raises(IncompatibleTensorFlowError, match=text) as caught:
        six()
    assert isinstance(caught.value.__cause__, AttributeError)


@pytest.mark.parametrize("what", selftest._PROGRAMS)
def test_every_result_of_the_self_test_counts(what: str, checks: list, monkeypatch: Any) -> None:
    """One after the other is taken for wrong."""
    program = selftest._PROGRAMS[what]
    count = len(program(rt.Tape))
    for wrong in range(count):

        def off(make_tape: Any, wrong: int = wrong) -> Any:
            return [(got, right + (number == wrong)) for number, (got, right) in enumerate(pairs(make_tape))]

        def pairs(make_tape: Any) -> list:
            return [(got, tf.convert_to_tensor(right)) for got, right in program(make_tape)]

        monkeypatch.setitem(selftest._PROGRAMS, what, off)
        with pytest.raises(IncompatibleTensorFlowError, match=f"the self test of {what} gave a wrong result"):
            selftest.check(rt.Tape)


def test_a_result_that_is_none_is_wrong(checks: list, monkeypatch: Any) -> None:
    monkeypatch.setitem(selftest._PROGRAMS, "gathers", lambda make_tape: [(None, 1.0)])
    with pytest.raises(IncompatibleTensorFlowError, match="the self test of gathers gave a wrong result"):
        selftest.check(rt.Tape)


def test_want_of_memory_is_not_the_versions_fault(checks: list, monkeypatch: Any) -> None:
    def fail(make_tape: Any) -> Any:
        raise MemoryError

    monkeypatch.setitem(selftest._PROGRAMS, "gathers", fail)
    with pytest.raises(MemoryError):
        selftest.check(rt.Tape)


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), MemoryError("full")])
def test_what_is_no_verdict_is_raised(error: BaseException) -> None:
    def program(make_tape: Any) -> Any:
        raise error

    with pytest.raises(type(error)) as caught:
        list(selftest.run(rt.Tape, {"it": program}))
    assert caught.value is error


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_is_stopped_from_outside(monkeypatch: Any) -> None:
    monkeypatch.setattr(selftest, "_problem", lambda *_: sys.exit())
    assert list(selftest.run(rt.Tape, {"it": lambda make_tape: []})) == [("it", "did not end")]
