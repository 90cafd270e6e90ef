"""Processes that are forked after TensorFlow has run: its threads are not there, and what needs them would hang."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from helpers.processes import PYTHON

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")

SETUP = """
import multiprocessing, os, sys, threading, time, warnings
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, about fork and threads
import numpy as np, tensorflow as tf, retrotape as rt
v, w = tf.Variable([1.0, 2.0, 3.0], name="v"), tf.Variable([[0.5, -1.0, 2.0]] * 20)
optimizer = tf.keras.optimizers.SGD(0.0)

def gradient():
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3)
    return tape.gradient(loss, v)

def inside():
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3)
        return tape.gradient(loss, v)

def in_segments():
    with rt.Tape(keep="segments") as tape:
        loss = tf.reduce_sum(v**3)
    return tape.gradient(loss, v)

def jacobian():
    with rt.Tape() as tape:
        y = tf.linalg.matvec(w, v**3)
    return tape.jacobian(y, v)

def hessian():
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3)
    return tape.hessian(loss, v)

def hvp():
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3)
    return tape.hvp(loss, v, tf.ones(3))

def per_example():
    with rt.Tape() as tape:
        losses = tf.reduce_sum(w * v, 1)
    return tape.per_example(losses, v)

def combined():
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(v**3), tf.reduce_sum(v)]
    return tape.backward_each(losses, [v]).combine(rt.aggregate.UPGrad())[v]

def gramian():
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(v**3), tf.reduce_sum(v)]
    return tape.gramian(losses, [v])

def joined():
    with rt.Tape() as first:
        y = v**3
    with rt.Tape() as second:
        loss = tf.reduce_sum(y)
    return rt.join(first, second).gradient(loss, v)

def applied():
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3)
    tape.backward(loss, [v]).apply(optimizer)
    return v

@rt.compile
def compiled(x):
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3 * x)
    return tape.gradient(loss, v)

def step():
    return compiled(tf.constant(2.0))

def loaded():
    return rt.load(path).gradient("loss", "v")

path = os.path.join(os.getcwd(), "a.tape")
with rt.Tape() as tape:
    loss = tf.reduce_sum(v**3)
tape.save(path, {"loss": loss, "v": v})
KINDS = [gradient, inside, in_segments, jacobian, hessian, hvp, per_example]
KINDS += [combined, gramian, joined, applied, step, loaded]
warm = {one.__name__: [one().numpy() for _ in range(12)][-1] for one in KINDS}

def same(name):
    return name, bool(np.array_equal(globals()[name]().numpy(), warm[name]))
"""

POOL = """
with multiprocessing.get_context("fork").Pool(2) as pool:
    found = dict(pool.map_async(same, [one.__name__ for one in KINDS]).get(60))
print({name for name, right in found.items() if not right} or "all the same")
"""


def run(tmp_path: Path, program: str) -> str:
    """Run a program, and return what it printed."""
    path = tmp_path / "program.py"
    path.write_text(SETUP + program)
    done = subprocess.run([PYTHON, str(path)], capture_output=True, text=True, timeout=150, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.strip()


def test_queries_in_a_pool_give_what_they_gave_before(tmp_path):
    assert run(tmp_path, POOL) == "all the same"


def test_workers_beside_a_training_with_threads(tmp_path):
    """As those of a data loader: the parent goes on, and its threads hold locks of ours when it forks."""
    program = """
going = True

def train():
    while going:
        gradient(), inside(), joined()

threads = [threading.Thread(target=train) for _ in range(3)]
for one in threads:
    one.start()

def work(queue):
    for name in ("gradient", "joined", "inside", "loaded"):
        queue.put(same(name))

fork = multiprocessing.get_context("fork")
found = []
for _ in range(12):
    queue = fork.SimpleQueue()
    worker = fork.Process(target=work, args=(queue,))
    worker.start()
    gradient()
    worker.join(30)
    found.append(worker.exitcode)
    worker.kill()
    if found[-1] == 0:
        found += [right for _, right in (queue.get() for _ in range(4))]
going = False
for one in threads:
    one.join()
print(found == [0, True, True, True, True] * 12 or found)
"""
    assert run(tmp_path, program) == "True"


def test_a_farm(tmp_path):
    program = """
for number in range(6):
    with rt.Tape() as tape:
        loss = tf.reduce_sum(v**3 * float(number))
    tape.save(f"part_{number}.tape", {"loss": loss, "v": v})

def farm(queue):
    with ThreadPoolExecutor(2) as pool:
        options = {"chunk": 2, "executor": pool}
        queue.put([rt.farm.backward("part_*.tape", "loss", **more)["v"].numpy() for more in ({}, options)])

from concurrent.futures import ThreadPoolExecutor
expected = rt.farm.backward("part_*.tape", "loss")["v"].numpy()
fork = multiprocessing.get_context("fork")
queue = fork.Queue()
worker = fork.Process(target=farm, args=(queue,))
worker.start()
print(all(np.array_equal(one, expected) for one in queue.get(timeout=60)))
"""
    assert run(tmp_path, program) == "True"


def test_a_step_goes_on_in_the_child_and_says_why(tmp_path):
    program = """
with rt.Tape() as tape:
    loss = tf.reduce_sum(tf.function(lambda x: x**3)(v))
step()
if os.fork() == 0:
    from retrotape.tf import threads
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        right = step().numpy().tolist() == step().numpy().tolist() == warm["step"].tolist()
    assert right and len(told) == 1 and threads.GONE in str(told[0].message), told
    with rt.Tape() as other:
        y = v**3
    other.gradient(y, v)
    print(other.why_not_compiled())
    try:
        tape.gradient(loss, v)
    except rt.errors.TapeUseError as error:
        print(error)
    sys.stdout.flush()
    os._exit(0)
sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
"""
    reason, error = run(tmp_path, program).splitlines()
    gone = (
        "this process was forked from one in which TensorFlow had run: its threads, which run functions, are not here."
    )
    remedy = " Start processes anew to have them: `multiprocessing.get_context('spawn')`"
    assert reason == gone + remedy
    before = "The path leads through a call of a tf.function that ran before the fork: "
    assert error == before + gone + remedy + ". Or query the tape before the fork."


def test_before_tensorflow_has_run_a_fork_changes_nothing(tmp_path):
    program = """
import tensorflow as tf, retrotape as rt, os
rt.Tape
if os.fork() == 0:
    v = tf.Variable([1.0])
    for _ in range(8):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(v**3)
        tape.gradient(loss, v)
    print(tape.why_not_compiled(), flush=True)
    os._exit(0)
os.wait()
"""
    path = tmp_path / "program.py"
    path.write_text(program)
    done = subprocess.run([PYTHON, str(path)], capture_output=True, text=True, timeout=100, check=True)
    assert done.stdout.strip() == "None"
