from __future__ import annotations

import gc
import inspect
import json
import os
import subprocess
import sys
import weakref

import keras
import numpy as np
import pytest
import tensorflow as tf

import retrotape as rt

KB = 4 * 250  # bytes of 250 float32


def alive(references: list[weakref.ref]) -> int:
    gc.collect()
    return sum(reference() is not None for reference in references)


# ------------------------------------------------------------------ what a tape says that it holds


def test_memory_counts_what_rules_look_at_and_no_more():
    x = tf.ones(250)
    with rt.Tape() as tape:
        y = tf.sin(x)  # looks at x
        z = tf.negative(y)  # looks at nothing
        tf.exp(z)  # looks at its result
    assert 2 * KB <= tape.memory().bytes < 2 * KB + 100
    assert tape.memory().variables == 0


def test_memory_counts_a_tensor_once():
    x = tf.ones(250)
    with rt.Tape() as tape:
        for _ in range(5):
            tf.sin(x)
    assert KB <= tape.memory().bytes < KB + 100


def test_memory_is_given_by_line_largest_first():
    x, small = tf.ones(250), tf.ones(10)
    with rt.Tape(keep="all") as tape:
        first = inspect.currentframe().f_lineno
        tf.sin(small)
        y = tf.sin(x)
        tf.sin(y), tf.cos(y)
    memory = tape.memory()
    lines = {line.frame.line - first: (line.bytes, line.tensors) for line in memory.lines}
    assert lines == {1: (80, 2), 2: (2 * KB, 2), 3: (2 * KB, 2)}
    assert memory.bytes == sum(line.bytes for line in memory.lines)
    assert [line.bytes for line in memory.lines] == sorted((line.bytes for line in memory.lines), reverse=True)
    assert all(line.frame.file == __file__ for line in memory.lines)


def test_memory_counts_variables_apart():
    w = tf.Variable(tf.ones((10, 25)))
    x = tf.ones((1, 10))
    with rt.Tape() as tape:
        x @ w
    memory = tape.memory()
    assert memory.variables == KB
    assert memory.bytes == 40


def test_memory_prints_a_table():
    x = tf.ones(250_000)
    with rt.Tape() as tape:
        line = inspect.currentframe().f_lineno + 1
        tf.sin(x)
    text = str(tape.memory()).splitlines()
    assert text[0].strip() == "1.0 MB  held, and 0 B of variables"
    assert text[1].split() == ["1.0", "MB", "1", "tensors", f"{__file__}:{line}"]


# ------------------------------------------------------------------ what a tape lets go


def forward(x: tf.Tensor) -> tuple[tf.Tensor, list[weakref.ref]]:
    references = []
    for _ in range(5):
        x = tf.sin(x)
        references.append(weakref.ref(x))
    return tf.reduce_sum(x), references


def test_a_tape_holds_what_it_needs():
    with rt.Tape() as tape:
        _, references = forward(tf.ones(10))
    assert alive(references) >= 4
    assert tape.memory().bytes >= 4 * 40


def test_dropping_the_tape_frees_the_tensors():
    with rt.Tape() as tape:
        loss, references = forward(tf.ones(10))
    assert alive(references)
    del tape, loss
    assert alive(references) == 0


def test_dropping_the_tape_needs_no_collector():
    gc.collect()
    gc.disable()
    try:
        with rt.Tape() as tape:
            _, references = forward(tf.ones(10))
        del tape, _
        assert sum(reference() is not None for reference in references) == 0
    finally:
        gc.enable()


def test_dropping_the_tape_after_questions_frees_the_tensors():
    x = tf.ones(10)
    with rt.Tape() as tape:
        loss, references = forward(x)
    first = tape.gradient(loss, x)
    second = tape.gradient(first, x)
    del tape, loss, first, second
    assert alive(references) == 0


def test_dropping_the_tape_frees_what_functions_and_models_made():
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dropout(0.5), keras.layers.Dense(1)])
    call = tf.function(net)
    x = tf.ones((2, 3))
    call(x, training=True)
    with rt.Tape() as tape:
        out = call(tf.sin(x), training=True)
        references = [weakref.ref(out)]
        loss = tf.reduce_sum(net(x, training=True)) + tf.reduce_sum(out)
        references.append(weakref.ref(loss))
    tape.gradient(loss, net.trainable_variables)
    del tape, out, loss
    assert alive(references) == 0


def test_reset_frees_the_tensors():
    tape = rt.Tape()
    with tape:
        _, references = forward(tf.ones(10))
    del _
    tape.reset()
    assert alive(references) == 0


def test_reset_inside_frees_the_tensors():
    with rt.Tape() as tape:
        _, references = forward(tf.ones(10))
        del _
        tape.reset()
        assert alive(references) == 0


def test_a_tensor_that_is_not_needed_is_not_held():
    with rt.Tape() as tape:
        y = tf.ones(10) * 2.0
        reference = weakref.ref(y)
        z = tf.negative(y)
        del y
    assert tape.gradient(z, z) is not None
    assert alive([reference]) == 0


def test_large_tensors_that_are_not_needed_are_dropped_inside_the_block():
    references = []
    with rt.Tape() as tape:
        y = tf.ones(300_000)
        for _ in range(100):
            y = tf.negative(y)
            references.append(weakref.ref(y))
        assert alive(references) <= 3
    assert len(tape.program.eqns) >= 100


# ------------------------------------------------------------------ many steps


def training_step(net: keras.Model, x: tf.Tensor) -> None:
    with rt.Tape() as tape:
        loss = tf.reduce_mean(net(x, training=True) ** 2)
    gradients = tape.gradient(loss, net.trainable_variables)
    for weight, gradient in zip(net.trainable_variables, gradients, strict=True):
        weight.assign_sub(0.01 * gradient)


def small_net() -> tuple[keras.Model, tf.Tensor]:
    keras.utils.set_random_seed(0)
    net = keras.Sequential([keras.layers.Dense(8, "relu"), keras.layers.Dropout(0.2), keras.layers.Dense(1)])
    x = tf.constant(np.random.default_rng(0).normal(size=(4, 5)).astype("float32"))
    net(x)
    return net, x


def growth(steps: int, warm_up: int = 50) -> int:
    """Return by how many objects Python's heap grows from the end of the warm-up to the end of the steps."""
    net, x = small_net()
    for _ in range(warm_up):
        training_step(net, x)
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(steps):
        training_step(net, x)
    gc.collect()
    return len(gc.get_objects()) - before


def test_300_steps_leave_nothing_behind():
    assert growth(300) < 100


def test_a_leak_of_one_object_each_step_would_be_noticed(monkeypatch):
    kept: list[object] = []
    leave = rt.Tape.__exit__
    monkeypatch.setattr(rt.Tape, "__exit__", lambda self, *rest: (kept.append([self]), leave(self, *rest))[1])
    assert growth(110, warm_up=5) >= 100


def test_one_tape_that_is_reset_each_step_does_not_grow():
    net, x = small_net()
    tape = rt.Tape()

    def step() -> None:
        tape.reset()
        with tape:
            loss = tf.reduce_sum(net(x))
        tape.gradient(loss, net.trainable_variables)

    for _ in range(20):
        step()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(100):
        step()
    gc.collect()
    assert len(gc.get_objects()) - before < 50


# Large blocks straight from the system and straight back: what is resident is what is held.
EXACT = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536", "MALLOC_ARENA_MAX": "1"}


def in_child(code: str) -> dict[str, float]:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **EXACT})
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


LONG = """
import gc, json, resource, sys
sys.path.insert(0, {folder!r})
from test_memory import small_net, training_step

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

net, x = small_net()
for _ in range(500):
    training_step(net, x)
gc.collect()
objects = len(gc.get_objects())
before = resident()
for _ in range(10_000):
    training_step(net, x)
gc.collect()
grown = resident() - before
print(json.dumps({{"bytes": grown, "objects": len(gc.get_objects()) - objects}}))
"""


@pytest.mark.slow
def test_10_000_steps_leave_nothing_behind():
    folder = __file__.rpartition("/")[0]
    grown = in_child(LONG.format(folder=folder))
    print("10 000 steps:", grown)
    assert grown["objects"] < 100
    assert grown["bytes"] < 10e6


# ------------------------------------------------------------------ beside the stock tape

DEEP = """
import functools, gc, json, resource, threading, time
import keras, tensorflow as tf
import retrotape as rt

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

class Peak(threading.Thread):
    def __init__(self):
        super().__init__(daemon=True)
        self.top, self.going = 0, True
    def run(self):
        while self.going:
            self.top = max(self.top, resident())
            time.sleep(0.001)

tf.config.threading.set_inter_op_parallelism_threads(1)
keras.utils.set_random_seed(0)
net = keras.Sequential([keras.layers.Dense(2048, {activation!r}) for _ in range(20)])
x = tf.random.normal((512, 2048))
net(x)
small = {kind}()
with small:
    tiny = tf.reduce_sum(net.layers[0](x[:1]))
small.gradient(tiny, net.layers[0].trainable_variables)
del small, tiny
gc.collect()
base = resident()
with {kind}() as tape:
    loss = tf.reduce_mean(net(x) ** 2)
gc.collect()
held = resident() - base
del tape, loss
gc.collect()
peak = Peak()
peak.start()
with {kind}() as tape:
    loss = tf.reduce_mean(net(x) ** 2)
gradients = tape.gradient(loss, net.trainable_variables)
peak.going = False
peak.join()
print(json.dumps({{"held": held, "peak": peak.top - base, "total": peak.top}}))
"""


@pytest.mark.slow
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_a_deep_net_holds_no_more_than_on_the_stock_tape(activation):
    stock = in_child(DEEP.format(kind="tf.GradientTape", activation=activation))
    ours = in_child(DEEP.format(kind="rt.Tape", activation=activation))
    print(f"{activation}: stock {stock}, ours {ours}")
    assert ours["held"] <= 1.05 * stock["held"]
    # A tape that can be asked again holds its values while it answers. The stock tape lets go of them, unless it is
    # persistent; that shows where activations are larger than gradients.
    kind = "functools.partial(tf.GradientTape, persistent=True)"
    persistent = in_child(DEEP.format(kind=kind, activation=activation))
    assert ours["peak"] <= 1.05 * persistent["peak"]
    if activation == "relu":
        assert ours["peak"] <= 1.3 * stock["peak"]
