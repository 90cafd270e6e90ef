"""However a block ends, or does not, nothing of it is left in TensorFlow, and what was recorded can be asked about."""

from __future__ import annotations

import gc
import os
import subprocess
import threading
from contextlib import ExitStack
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.processes import PYTHON, TAKEN_DOWN
from helpers.recording import in_threads
from helpers.untouched import is_untouched, touched
from retrotape.record import _expected
from retrotape.tf import hooks

X = tf.constant(3.0)


@pytest.fixture(autouse=True)
def _leaves_tensorflow_as_it_was():
    assert touched() == []
    yield
    assert touched() == []


def assert_next_is_right() -> None:
    with rt.Tape() as tape:
        y = X * X
    assert float(tape.gradient(y, X)) == 6.0


def recording(made: list[Any]):
    """Yield inside of a block."""
    with rt.Tape() as tape:
        made += [tape, X * X]
        yield
        made.append(X * X * X)


def test_a_generator_that_is_suspended_closed_or_dropped():
    for end in ("close", "drop", "go on"):
        made: list[Any] = []
        suspended = recording(made)
        next(suspended)
        assert not is_untouched()
        if end == "close":
            suspended.close()
        elif end == "go on":
            assert next(suspended, "ended") == "ended"
        suspended = None
        assert is_untouched()
        assert [float(made[0].gradient(y, X)) for y in made[1:]] == [6.0, 27.0][: len(made) - 1]
        assert_next_is_right()


def test_a_generator_that_another_thread_drops_while_this_one_records():
    made: list[Any] = []
    held = [recording(made)]
    next(held[0])
    with rt.Tape() as tape:
        y = X * 1.0
        in_threads(held.clear)
        z = y * X
    assert is_untouched()
    assert float(tape.gradient(z, X)) == 6.0
    assert float(made[0].gradient(made[1], X)) == 6.0


def test_a_block_left_on_another_thread_keeps_what_it_has():
    tape, other = rt.Tape(), rt.Tape()
    tape.__enter__()
    with other:
        y = X * X
        in_threads(lambda: tape.__exit__(None, None, None))
        z = y * X
    assert is_untouched()
    assert float(tape.gradient(y, X)) == 6.0
    assert float(other.gradient(z, X)) == 27.0
    with pytest.raises(rt.errors.NotRecordedError, match="made after recording ended"):
        tape.gradient(z, X)
    assert_next_is_right()


def test_a_thread_that_ends_inside_of_a_block():
    tape, made = rt.Tape(), []

    def work() -> None:
        tape.__enter__()
        made.append(X * X)

    in_threads(work)
    assert is_untouched()
    assert float(tape.gradient(made[0], X)) == 6.0
    with tape:
        z = made[0] * X
    assert float(tape.gradient(z, X)) == 27.0


def test_a_thread_that_dies_of_an_exception_inside_of_a_block(monkeypatch):
    monkeypatch.setattr(threading, "excepthook", lambda args: None)
    made: list[Any] = []

    def work() -> None:
        next(recording(made))
        with rt.Tape() as tape:
            made[:] = [tape, X * X]
            raise SystemExit

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert is_untouched()
    assert float(made[0].gradient(made[1], X)) == 6.0


def test_a_tape_that_is_dropped_while_it_records():
    tape = rt.Tape().__enter__()
    _ = X * X
    assert not is_untouched()
    del tape
    assert is_untouched()
    assert_next_is_right()


def test_a_tape_in_a_cycle_that_is_collected_on_another_thread():
    tape = rt.Tape()
    tape.itself = tape  # type: ignore[attr-defined]
    tape.__enter__()
    del tape
    with rt.Tape() as other:
        y = X * 1.0
        in_threads(gc.collect)
        z = y * X
    assert is_untouched()
    assert float(other.gradient(z, X)) == 6.0


def test_a_tape_that_is_dropped_inside_of_a_graph():
    @tf.function
    def function(x):
        tape = rt.Tape().__enter__()
        y = x * x
        del tape
        return y

    assert float(function(X)) == 9.0
    assert is_untouched()


def test_looking_at_exit_does_not_leave():
    tape = rt.Tape()
    assert hasattr(tape, "__exit__")
    tape.__enter__()
    assert callable(tape.__exit__)
    y = X * X
    tape.__exit__(None, None, None)
    assert float(tape.gradient(y, X)) == 6.0


def test_an_exit_stack_and_a_subclass():
    class Counting(rt.Tape):
        left = 0

        def __exit__(self, *error: Any) -> None:
            self.left += 1
            super().__exit__(*error)

    with ExitStack() as stack:
        tape, counting = stack.enter_context(rt.Tape()), stack.enter_context(Counting())
        y = X * X
    assert counting.left == 1
    assert [float(one.gradient(y, X)) for one in (tape, counting)] == [6.0, 6.0]
    with Counting() as counting:
        y = X * X
    assert counting.left == 1
    assert float(counting.gradient(y, X)) == 6.0


def test_a_tape_that_is_opened_in_a_pause_goes_on_after_it():
    with rt.Tape() as tape:
        inner = rt.Tape()
        with tape.stop_recording():
            inner.__enter__()
        y = X * X
        inner.__exit__(None, None, None)
    assert [float(one.gradient(y, X)) for one in (tape, inner)] == [6.0, 6.0]


def test_a_tape_that_is_left_in_a_pause_stays_left():
    with rt.Tape() as tape:
        inner = rt.Tape().__enter__()
        y = X * X
        with tape.stop_recording():
            inner.__exit__(None, None, None)
        z = y * X
    assert float(tape.gradient(z, X)) == 27.0
    assert len(inner.program.eqns) == 1


def test_what_somebody_else_has_put_on_top_of_a_hook_stays(monkeypatch):
    from tensorflow.python.ops import array_ops

    before, calls = array_ops.stop_gradient, []
    with rt.Tape():
        ours = array_ops.stop_gradient
        array_ops.stop_gradient = theirs = lambda *args, **kw: (calls.append(1), ours(*args, **kw))[1]
    assert array_ops.stop_gradient is theirs
    with rt.Tape() as tape:
        y = X * array_ops.stop_gradient(X)
    assert array_ops.stop_gradient is theirs
    assert float(tape.gradient(y, X)) == 3.0
    assert calls == [1]
    array_ops.stop_gradient = ours  # as whoever takes his own away does
    assert_next_is_right()
    assert array_ops.stop_gradient is before


def test_a_tape_that_was_interrupted_says_so(monkeypatch):
    with rt.Tape() as tape:
        y = X * X
        trace = tape._session.trace
        monkeypatch.setattr(trace.frames.__class__, "number", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            tape.gradient(y, X)
        monkeypatch.undo()
        z = y * X
        assert repr(tape) == "<tape: interrupted>"
    with pytest.raises(
        rt.errors.InterruptedTapeError,
        match=r"interrupted, by Ctrl-C or another.*Record again: `with rt.Tape\(\) as tape: ...`, or `tape",
    ):
        tape.gradient(z, X)
    tape.reset()
    with tape:
        y = X * X
    assert float(tape.gradient(y, X)) == 6.0


def test_a_tape_that_is_reset_inside_of_its_block_records_again(monkeypatch):
    with rt.Tape() as tape:
        y = X * X
        monkeypatch.setattr(tape._session.trace.frames.__class__, "number", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            tape.gradient(y, X)
        monkeypatch.undo()
        _ = y * X
        tape.reset()
        z = X * X * X
    assert float(tape.gradient(z, X)) == 27.0


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


def _interrupted_once(patch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
    """Let the next call of a function be interrupted before it has done anything."""

    def once(*args: Any, **kw: Any) -> Any:
        patch.setattr(owner, name, before)
        raise KeyboardInterrupt

    before = getattr(owner, name)
    patch.setattr(owner, name, once)


@pytest.mark.parametrize("by", ["hand", "stack", "with"])
def test_an_interrupt_while_a_block_is_left(monkeypatch, by):
    tape = rt.Tape()
    with pytest.raises(KeyboardInterrupt), ExitStack() as stack:  # noqa: PT012
        if by == "stack":
            stack.enter_context(tape)
        elif by == "hand":
            stack.callback(lambda: tape.__exit__(None, None, None))
            tape.__enter__()
        else:
            stack.callback(next, block := recording([]), None)
            next(block)
        y = X * X
        _interrupted_once(monkeypatch, hooks, "detach")
    assert is_untouched()
    if by != "with":
        assert float(tape.gradient(y, X)) == 6.0
    assert_next_is_right()


def test_a_value_whose_read_was_interrupted_is_read_before_it_is_overwritten(monkeypatch):
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        _interrupted_once(monkeypatch, _expected, "here")
        with pytest.raises(KeyboardInterrupt):
            v.read_value()
        v.assign(5.0)
        y = v * v
    assert [float(version.value) for version in tape.versions(v)] == [2.0, 5.0]
    assert tape.gradient(y, v, through_updates=True) is None


def test_an_update_whose_recording_was_interrupted_is_known_to_be_missing(monkeypatch):
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        _ = v * 1.0
        _interrupted_once(monkeypatch, _expected, "here")
        with pytest.raises(KeyboardInterrupt):
            v.assign(5.0)
        y = v * v
    assert float(tape.gradient(y, v)) == 10.0
    with pytest.raises(rt.errors.UnseenUpdateError):
        tape.gradient(y, v, through_updates=True)


def test_a_call_whose_recording_was_interrupted_is_not_taken_for_another(monkeypatch):
    function = tf.function(lambda x: x * x)
    function(X)
    with rt.Tape() as tape:
        _interrupted_once(monkeypatch, tape._session.trace._builder.__class__, "append")
        with pytest.raises(KeyboardInterrupt):
            function(X)
        y = X * X
    with pytest.raises(rt.errors.InterruptedTapeError):
        tape.gradient(y, X)


@pytest.mark.parametrize(
    "ending",
    [
        "tape.__enter__(); y = x * x",
        "g = block(); next(g)",
        "atexit.register(lambda: tape.__exit__(None, None, None)); tape.__enter__()",
        "atexit.register(ask)",
        "threading.Thread(target=forever, daemon=True).start(); started.wait()",
        "tape.itself = tape; tape.__enter__(); del tape",
    ],
)
def test_the_end_of_the_program(ending):
    program = f"""
import atexit, threading
import tensorflow as tf
import retrotape as rt
x, tape, started = tf.constant(3.0), rt.Tape(), threading.Event()
def block():
    with rt.Tape():
        yield x * x
def forever():
    while True:
        with rt.Tape() as tape:
            for _ in range(20):
                y = x * x
            started.set()
def ask():
    with rt.Tape() as tape:
        y = x * x
    assert float(tape.gradient(y, x)) == 6.0
{ending}
"""
    done = subprocess.run([PYTHON, "-c", program], capture_output=True, text=True, env={**os.environ, **TAKEN_DOWN})
    lines = [line for line in done.stderr.splitlines() if "absl::InitializeLog" not in line and line[:1] not in "IWE0"]
    assert (done.returncode, lines, done.stdout) == (0, [], "")


@pytest.mark.slow
def test_a_hundred_thousand_steps():
    def step() -> None:
        with rt.Tape() as tape:
            y = X * X
        tape.gradient(y, X)

    def objects(steps: int) -> tuple[int, int]:
        for _ in range(steps):
            step()
        gc.collect()
        with open("/proc/self/statm") as file:
            return len(gc.get_objects()), int(file.read().split()[1]) * 4096

    objects(20_000)
    count, memory = objects(10_000)
    later_count, later_memory = objects(70_000)
    assert later_count - count < 100
    assert later_memory - memory < 20 * 2**20
