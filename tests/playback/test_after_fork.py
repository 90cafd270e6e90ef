"""A fork while another thread records a step, or holds a lock of ours: the child goes on."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from helpers.processes import PYTHON

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

PROGRAM = """
import gc, os, signal, threading, time, warnings
warnings.simplefilter("ignore")
import tensorflow as tf, retrotape as rt
from retrotape.playback import _known
gc.unfreeze()  # the process may come from one that has frozen objects
inside, ended = threading.Event(), threading.Event()

@rt.compile
def other(x):
    inside.set()
    ended.wait()
    return x * 2.0

@rt.compile
def step(x):
    return x * 3.0

def hold():
    with _known.playing, step.lock:
        inside.set()
        ended.wait()

def in_child(thread, what):
    thread.start()
    inside.wait()
    time.sleep(0.2)
    child = os.fork()
    if not child:
        signal.alarm(20)
        print(what(), flush=True)
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    ended.set()
    thread.join()
    inside.clear(), ended.clear()

def state():
    step(x)
    return gc.isenabled(), gc.get_freeze_count() < 10_000, step.why_not_compiled(), memoryview(x).tolist()

x = tf.constant([2.0, 1.0])
in_child(threading.Thread(target=other, args=(x,)), state)
step(x)
in_child(threading.Thread(target=hold), lambda: step(x).numpy().tolist())
print(gc.isenabled(), memoryview(x).tolist())
"""


def test_a_child_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    done = subprocess.run([PYTHON, str(path)], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    expected = ["(True, True, None, [2.0, 1.0])", "[6.0, 3.0]", "True [2.0, 1.0]"]
    assert done.stdout.splitlines() == expected
