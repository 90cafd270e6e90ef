"""What a tape of segments holds, counted, and how it grows with the length of the recording."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from record.segments.tools import KEEPS, LAYER, LAYERS, Watched, close, long

pytestmark = pytest.mark.slow  # every program four times, in segments of a hundred bytes


@pytest.mark.parametrize("layer", LAYERS)
def test_memory_of_segments_grows_with_the_square_root(op_by_op: None, watched: Watched, layer: str):
    held, peaks = [], []
    for length in (64, 256):
        tape, x, loss = long("segments", length, layer)
        held.append(tape.memory().bytes)
        total = long("needed", length, layer)[0].memory().bytes
        watched.peak = 0
        tape.gradient(loss, x)
        peaks.append(watched.peak)
        assert held[-1] < 3.5 * np.sqrt(total * LAYER)
        assert peaks[-1] < 3.5 * np.sqrt(total * LAYER)
        assert peaks[-1] < total / 1.5
    for few, many in (held, peaks):
        assert 1.3 < many / few < 3.2  # four times the length


def test_a_second_gradient_needs_little_more(watched: Watched):
    tape, x, loss = long("segments", 256)
    total = long("needed", 256)[0].memory().bytes
    for _ in range(3):
        watched.peak = 0
        tape.gradient(loss, x)
        assert watched.peak < 4 * np.sqrt(total * LAYER)
    assert watched.peak > 0


def test_memory_of_leaves_grows_with_the_square_root_while_it_is_asked(watched: Watched):
    peaks = []
    for length in (64, 256):
        tape, x, loss = long("leaves", length)
        assert tape.memory().bytes < 4 * LAYER
        watched.peak = 0
        tape.gradient(loss, x)
        peaks.append(watched.peak)
        assert watched.peak < 4 * np.sqrt(length) * LAYER
    assert 1.3 < peaks[1] / peaks[0] < 2.8


@pytest.mark.parametrize("layer", LAYERS)
def test_memory_of_disk_does_not_grow(watched: Watched, layer: str):
    held, peaks = [], []
    for length in (64, 256):
        tape, x, loss = long("disk", length, layer)
        memory, needed = tape.memory(), long("needed", length, layer)[0].memory().bytes
        assert abs(memory.bytes + memory.away - needed) < 0.4 * needed
        held.append(memory.bytes - 8 * length)  # numbers that stand in the code are leaves
        watched.peak = 0
        tape.gradient(loss, x)
        peaks.append(watched.peak - 8 * length)
    assert held[1] < held[0] + 3 * LAYER
    assert peaks[1] < peaks[0] + 4 * LAYER


@pytest.mark.parametrize("keep", KEEPS)
def test_second_order_leaves_nothing_behind(watched: Watched, keep: str):
    tape, x, loss = long(keep, 64)
    held = tape.memory().bytes
    first = tape.hvp(loss, x, tf.ones_like(x))
    assert tape.memory().bytes <= held + 3 * LAYER
    close(tape.hvp(loss, x, tf.ones_like(x)), first)
    assert tape.memory().bytes <= held + 3 * LAYER


@pytest.mark.parametrize("keep", ["needed", "all", *KEEPS])
def test_asking_keeps_nothing(watched: Watched, keep: str):
    tape, x, loss = long(keep, 40)
    before = tape.memory()
    tape.gradient(loss, x)
    tape.gradient(loss, x)
    tape.hvp(loss, x, x)
    tape.jvp(loss, x, x)
    list(tape.stream(loss, [x]))
    after = tape.memory()
    assert after.bytes <= before.bytes + 3 * LAYER
    assert after.away == before.away


@pytest.mark.parametrize("keep", ["needed", "all", *KEEPS])
def test_asking_again_does_not_make_the_tape_grow(keep: str):
    tape, x, loss = long(keep, 20)
    known = tape._session.trace.tensors.by_identity
    tape.gradient(loss, x)
    before = len(known)
    for _ in range(10):
        tape.gradient(loss, x)
    assert len(known) == before


def test_segments_begin_anew_after_reset(op_by_op: None, watched: Watched):
    tape, x, loss = long("segments", 256)
    tape.reset()
    with tape:
        y = x
        for _ in range(64):
            y = LAYERS["looks at its result"](y)
        loss = tf.reduce_sum(y)
    assert tape.memory().bytes == long("segments", 64)[0].memory().bytes
    tape.gradient(loss, x)
    assert set(watched.times.values()) == {1}
