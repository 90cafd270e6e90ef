"""Tapes that are held by a process of their own: the whole way, and how it ends."""

from __future__ import annotations

import os
import re
import signal
import threading
import time

import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt
from files.mutations import take_apart
from helpers.isolating import quickly
from retrotape import errors
from retrotape.files.isolated import _deaths, _process
from retrotape.files.isolated._note import read_note

linux_only = pytest.mark.skipif(os.uname().sysname != "Linux", reason="what a process may take is bounded on Linux")


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    x = tf.constant([0.5, -0.2])
    with rt.Tape() as tape:
        y = x
        for _ in range(50):
            y = tf.sin(y)
        wide = tf.tile(y, [4_000])
        loss = tf.reduce_sum(y**3)
    target = tmp_path_factory.mktemp("tapes") / "a.tape"
    tape.save(target, {"x": x, "wide": wide, "loss": loss})
    return target


def take_long(held):
    """Ask for what takes half a minute at least: 8,000 rows of 50 ops, one after the other."""
    return held.jacobian("wide", "x", experimental_use_pfor=False, chunk=1)


def when_it_runs_an_op(held, action, *args) -> None:
    """Do something from another thread as soon as the process is in the middle of a query."""

    def wait() -> None:
        while "equation" not in read_note(held._process._note):
            time.sleep(0.01)
        action(*args)

    threading.Thread(target=wait, daemon=True).start()


def gone(process, within: float = 5.0) -> bool:
    end = time.monotonic() + within
    while process.poll() is None and time.monotonic() < end:
        time.sleep(0.01)
    return process.poll() is not None


@pytest.mark.usefixtures("quick_isolation")
def test_errors_come_out_as_they_are(path):
    with rt.load(path, isolate=True) as held:
        with pytest.raises(errors.UnknownNameError, match="This tape has nothing named 'nobody'; its names are") as got:
            held.gradient("nobody", "x")
        assert got.value.name == "nobody"
        with pytest.raises(errors.ShapeMismatchError, match="hessian takes a scalar target"):
            held.hessian("wide", "x")
        with pytest.raises(ValueError, match="since= limits how far to go through updates"):
            held.gradient("loss", "x", since=1)
        np.testing.assert_array_equal(held["loss"], rt.load(path)["loss"])  # and it goes on


@pytest.mark.usefixtures("quick_isolation")
def test_a_damaged_file_is_named_as_such(path, tmp_path):
    damaged = tmp_path / "damaged.tape"
    damaged.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(errors.CorruptTapeError, match=r"damaged\.tape"):
        rt.load(damaged, isolate=True)


@pytest.mark.usefixtures("quick_isolation")
def test_after_closing_nothing_is_answered(path):
    held = rt.load(path, isolate=True)
    again, child = held.replay({"x": [1.0, 2.0]}), held._process._child
    held.close()
    assert child.poll() is not None
    for tape in (held, again):
        with pytest.raises(
            errors.IsolationError,
            match=r"^This isolated tape can no longer be queried\. It was closed\. Load the tape again: "
            r"`rt\.load\('.*a\.tape', isolate=True\)`\.$",
        ):
            tape.gradient("loss", "x")


@pytest.mark.usefixtures("quick_isolation")
def test_nothing_is_left_when_nobody_has_the_tape(path):
    held = rt.load(path, isolate=True)
    child, variable_or_tensor = held._process._child, held["x"]
    del held
    assert gone(child)
    assert variable_or_tensor.shape == (2,)


@pytest.mark.usefixtures("quick_isolation")
def test_a_query_that_takes_too_long(path):
    held = rt.load(path, isolate=True, timeout=3.0)
    held.gradient("loss", "x")  # what takes a moment the first time
    with pytest.raises(
        errors.IsolationError,
        match=r"^The isolated process ran longer than timeout=3 s, the last of it while it ran (the gradient of )?"
        r"\w+ \(equation \d+, .*test_isolated\.py:\d+\), and was stopped\. "
        r"Allow more: `rt\.load\(path, isolate=True, timeout=6\)`\.$",
    ):
        take_long(held)
    with pytest.raises(errors.IsolationError, match=r"be queried\. The isolated process ran longer than"):
        held.value("x")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (
            signal.SIGABRT,
            r"^The isolated process was ended by SIGABRT while it ran .*\(equation \d+, .*\.py:\d+\)\. For",
        ),
        (
            signal.SIGKILL,
            "was ended by SIGKILL while it ran .*, by the system if it is short of memory, or by another process",
        ),
        (signal.SIGALRM, "was ended by SIGALRM while it ran .*, its own clock: it ran longer than timeout= allows"),
        (signal.SIGSYS, "was ended by SIGSYS while it ran .*, because it made a forbidden system call"),
    ],
)
def test_a_death_says_what_it_ran(path, number, text, monkeypatch):
    if number != signal.SIGABRT:  # one of a process as users have it
        quickly(monkeypatch)
    held = rt.load(path, isolate=True)
    child = held._process._child
    when_it_runs_an_op(held, os.kill, child.pid, number)
    with pytest.raises(errors.IsolationError, match=text):
        take_long(held)


@linux_only
def test_more_memory_than_allowed(tmp_path):
    x = tf.constant([2.0**14, 2.0**14])
    with rt.Tape() as tape:
        y = tf.reduce_sum(tf.fill(tf.cast(x, tf.int32), 1.0)[0, :1] * x[0])
    path = tmp_path / "large.tape"
    tape.save(path, {"x": x, "y": y})
    with (
        rt.load(path, isolate=True, memory=2**29) as held,
        pytest.raises(
            errors.IsolationError,
            match=r"needed more than memory=536870912 \(536\.9 MB\) while it ran Fill \(equation \d+, .*\)\. "
            r"If you trust the file, allow more: `rt\.load\(path, isolate=True, memory=1073741824\)`",
        ),
    ):
        held.gradient("y", "x")  # a gigabyte, computed again


PRINTED = {
    "terminate called after throwing an instance of 'std::bad_alloc'": "needed more than memory=1000 (1.0 kB) while it",
    "F0000 tensor.h:1 Check failed: 1 == 0 (1 vs. 0)\n@ 0x12": "by SIGABRT while it ran Sin (Check failed: 1 == 0",
    "": "by SIGABRT while it ran Sin. For another query load it again: `rt.load(path, isolate=True)`.",
}


@pytest.mark.parametrize("printed", PRINTED)
def test_want_of_memory_is_said_only_where_it_is_so(printed):
    assert PRINTED[printed] in str(_deaths.ended(-signal.SIGABRT, "ran Sin", printed, 1000))


def test_what_a_process_prints_is_safe_to_print():
    found = _deaths.ended(3, "started", "x\n\x1b[2Jevil" + "y" * 1000, 1000)
    assert str(found).startswith("The isolated process ended with code 3 while it started: ?[2Jevilyyy")
    assert len(str(found)) < 500


@pytest.fixture
def ctrl_c_raises():
    """Let SIGINT raise as in a terminal: a shell has its background jobs ignore it, and Python leaves that so."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c_raises", "quick_isolation")
def test_ctrl_c_ends_the_query_and_never_gives_its_result_to_another(path):
    held = rt.load(path, isolate=True)
    child = held._process._child
    when_it_runs_an_op(held, signal.pthread_kill, threading.main_thread().ident, signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        take_long(held)
    assert gone(child)
    with pytest.raises(errors.IsolationError, match=r"be queried\. A query was interrupted\. Load the tape"):
        held.value("loss")


@pytest.mark.usefixtures("quick_isolation")
def test_a_process_that_talks_nonsense_is_ended(path, monkeypatch):
    held = rt.load(path, isolate=True)
    real = _process._wire.receive
    monkeypatch.setattr(_process._wire, "receive", lambda *args, **options: [real(*args, **options)])
    with pytest.raises(
        errors.IsolationError, match=r"sent an invalid message while it answered value, and was stopped\. Do not trust"
    ):
        held.value("x")
    assert held._process._child.poll() is not None


@pytest.mark.usefixtures("quick_isolation")
def test_a_folder_and_its_store(tmp_path):
    x = tf.constant(np.arange(50_000, dtype=np.float32))
    with rt.Tape() as tape:
        loss = tf.reduce_sum(x**2)
    (tmp_path / "tapes").mkdir()
    tape.save(tmp_path / "tapes" / "a", {"x": x, "loss": loss}, store=tmp_path / "store")
    with rt.load(tmp_path / "tapes" / "a", isolate="strict") as held:
        np.testing.assert_array_equal(held.gradient("loss", "x"), 2 * x)


@linux_only
def test_files_cannot_be_read_whatever_ops_are_allowed(tmp_path):
    secret = tmp_path / "secret"
    secret.write_text("a secret")
    name = tf.constant(str(secret))
    with rt.Tape() as tape:
        text = tf.strings.upper(name)
    tape.save(tmp_path / "a.tape", {"text": text})
    parts = take_apart(tmp_path / "a.tape")
    program = re.sub(r"= StringUpper.* @0", "= ReadFile(%0) @0", parts.program())
    forged = parts.with_program(program).write(tmp_path / "forged.tape")
    assert rt.load(forged, allow_ops=["ReadFile"]).value("text").numpy() == b"a secret"
    with rt.load(forged, isolate=True, allow_ops=["ReadFile"]) as held:
        with pytest.raises(errors.RetrotapeError, match="PermissionDenied"):
            held.value("text")
        np.testing.assert_array_equal(held.names, ["text"])  # it lives
