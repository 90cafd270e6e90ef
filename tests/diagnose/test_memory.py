"""What a tape says that it holds, and what it lets go."""

from __future__ import annotations

import gc
import inspect
import weakref

import keras
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
