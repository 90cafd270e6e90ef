"""What a killed process has reserved does not stay reserved."""

from __future__ import annotations

import os
import subprocess
import sys
import time

import pytest

from retrotape.callbacks.flight import _lock
from retrotape.callbacks.flight._crash import Account, write_crash
from retrotape.callbacks.flight._lock import Lock, remove_if_left

KILLED = """
import os, signal, sys
from retrotape.callbacks.flight._lock import Lock
Lock(sys.argv[1])
os.kill(os.getpid(), signal.SIGKILL)
"""


def aged(path, seconds):
    os.utime(path, (time.time() - seconds,) * 2)


def test_a_lock_is_there_until_it_is_removed(tmp_path):
    path = str(tmp_path / "crash-0001.lock")
    lock = Lock(path)
    with pytest.raises(FileExistsError):
        Lock(path)
    aged(path, 100.0)
    remove_if_left(path)  # it is locked, by this very process
    assert os.path.exists(path)
    lock.remove()
    assert not os.path.exists(path)
    remove_if_left(path)


def test_the_lock_of_a_killed_process_is_removed_by_the_next_crash(tmp_path):
    path = tmp_path / "crash-0001.lock"
    subprocess.run([sys.executable, "-c", KILLED, str(path)], check=False)
    (tmp_path / "crash-0001.txt").write_text("half of it")
    assert path.exists()
    write_crash(str(tmp_path), 1, Account(3, "it went wrong"))
    assert path.exists()  # young: perhaps it is about to be locked
    aged(path, 100.0)
    write_crash(str(tmp_path), 1, Account(4, "it went wrong"))
    assert sorted(os.listdir(tmp_path)) == ["crash-0003-step-4.txt"]


def test_without_locks_the_age_decides(tmp_path, monkeypatch):
    monkeypatch.setattr(_lock, "fcntl", None)
    path = tmp_path / "crash-0001.lock"
    path.touch()
    remove_if_left(str(path))
    assert path.exists()
    aged(path, 2 * 24 * 3600.0)
    remove_if_left(str(path))
    assert not path.exists()
