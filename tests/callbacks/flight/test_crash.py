"""What stays in the folder of a flight recorder: tapes are never displaced by what has none, and numbers are unique."""

from __future__ import annotations

import os
import shutil
import threading

import pytest
import tensorflow as tf

import retrotape as rt
from callbacks.flight.logs import XS, recorded
from cli.making import Runner
from retrotape.callbacks.flight import _crash
from retrotape.callbacks.flight._crash import Account, write_crash
from retrotape.callbacks.flight._folder import Recording


def small_tape() -> rt.Tape:
    x = tf.Variable(0.0)
    with rt.Tape() as tape:
        tf.math.log(x)
    return tape


def names(folder, kind="*") -> list[str]:
    return sorted(path.name for path in folder.glob(f"crash*.{kind}"))


def test_crashes_without_a_tape_displace_none_with_one(tmp_path):
    for number in range(2):
        write_crash(str(tmp_path), 2, Account(number, "it went wrong"), small_tape())
    for _ in range(5):
        write_crash(str(tmp_path), 2, Account(None, "nothing is known"))
    assert names(tmp_path, "tape") == ["crash-0001-step-0.tape", "crash-0002-step-1.tape"]
    assert names(tmp_path, "txt") == [
        "crash-0001-step-0.txt",
        "crash-0002-step-1.txt",
        "crash-0006.txt",
        "crash-0007.txt",
    ]
    write_crash(str(tmp_path), 2, Account(9, "it went wrong"), small_tape())
    assert names(tmp_path, "tape") == ["crash-0002-step-1.tape", "crash-0008-step-9.tape"]
    assert names(tmp_path, "lock") == []


def test_a_number_that_another_process_took_meanwhile_is_not_taken_again(tmp_path, monkeypatch):
    listed, real = [], _crash._crashes

    def stale(folder):  # first as the folder was before the other process wrote to it
        listed.append(folder)
        return {} if len(listed) == 1 else real(folder)

    write_crash(str(tmp_path), 9, Account(3, "of the other process"))
    (tmp_path / "crash-0002.lock").touch()  # a third one is writing
    monkeypatch.setattr(_crash, "_crashes", stale)
    found = write_crash(str(tmp_path), 9, Account(5, "of this one"))
    assert os.path.basename(found.report) == "crash-0003-step-5.txt"
    assert names(tmp_path) == ["crash-0001-step-3.txt", "crash-0002.lock", "crash-0003-step-5.txt"]


def test_threads_that_write_to_one_folder(tmp_path):
    def write(number):
        accounts = [Account(5 * number + step, "it went wrong") for step in range(5)]
        reports.extend(write_crash(str(tmp_path), 2, account).report for account in accounts)

    reports: list[str] = []
    threads = [threading.Thread(target=write, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    numbers = {os.path.basename(report).split("-")[1] for report in reports}
    assert len(numbers) == len(reports) == 20
    assert len(names(tmp_path)) == 2


@pytest.fixture
def left_behind(tmp_path):
    """A recording of a process that was killed, of which nothing can be recovered."""
    recording = Recording(str(tmp_path), 1)
    recorded(recording, XS, [0], lost=["template"])
    path = tmp_path / "recording-0"
    shutil.copytree(recording.path, path)
    recording.close()
    return path


def test_recover_without_a_result_only_prints_however_often(tmp_path, left_behind):
    write_crash(str(tmp_path), 1, Account(3, "it went wrong"), small_tape())
    before = sorted(tmp_path.rglob("*"))
    for _ in range(3):
        done = Runner()("recover", str(tmp_path))
        assert done.code == 1
        assert "the process of recording-0 was killed in step 6 or after it. " in done.out
        assert "no step was recorded for batches of its shape. There is no tape." in done.out
    assert sorted(tmp_path.rglob("*")) == before
