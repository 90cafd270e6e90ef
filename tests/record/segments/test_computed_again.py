"""How often an op is computed again, and a moved value read."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.recording import set_segment
from record.segments.tools import LAYER, Watched, long
from retrotape.execute import _values

pytestmark = pytest.mark.slow  # every program four times, in segments of a hundred bytes


def test_every_layer_is_computed_again_once(op_by_op: None, watched: Watched):
    tape, x, loss = long("segments", 256)
    tape.gradient(loss, x)
    assert set(watched.times.values()) == {1}
    assert 0.75 * 512 < len(watched.times) < 512


@pytest.mark.parametrize(
    "segment",
    [
        pytest.param(16 * LAYER, id="sixteen layers"),
        pytest.param(LAYER, id="one layer"),
    ],
)
def test_from_leaves_every_layer_is_computed_again_twice(
    watched: Watched, monkeypatch: pytest.MonkeyPatch, segment: int
):
    set_segment(monkeypatch, segment)
    tape, x, loss = long("leaves", 256)
    tape.gradient(loss, x)
    assert set(watched.times.values()) <= {1, 2}
    assert len(watched.times) > 500


def test_what_was_moved_is_read_once(watched: Watched, monkeypatch: pytest.MonkeyPatch):
    reads: list[int] = []
    fetch = _values.Values._load
    monkeypatch.setattr(_values.Values, "_load", lambda self, var: (reads.append(var), fetch(self, var))[1])
    tape, x, loss = long("disk", 64)
    tape.gradient(loss, x)
    assert len(reads) == len(set(reads)) >= 60
    assert not watched.times  # and nothing is computed again


def heads(x: tf.Tensor, width: int) -> tf.Tensor:
    trunk = x
    for _ in range(8):
        trunk = tf.sin(trunk)
    ends = []
    for number in range(width):
        end = trunk * float(number)
        for _ in range(4):
            end = tf.sin(end)
        ends.append(end)
    return tf.add_n(ends)


def braid(x: tf.Tensor, width: int) -> tf.Tensor:
    strands = [x * float(number) for number in range(8)]
    for _ in range(width):
        strands = [tf.sin(one) * two for one, two in zip(strands, strands[1:] + strands[:1], strict=True)]
    return tf.add_n(strands)


def side_by_side(x: tf.Tensor, width: int) -> tf.Tensor:
    ends = []
    for number in range(4):  # one after the other; the walk goes back through all of them in turn
        end = x
        for _ in range(width):
            end = tf.sin(end) * (1.0 + 0.1 * number)
        ends.append(end)
    return tf.add_n(ends)


def everything_before(x: tf.Tensor, width: int) -> tf.Tensor:
    made = [x]
    for _ in range(width // 2):
        made.append(tf.sin(tf.add_n(made)))
    return made[-1]


@pytest.mark.parametrize("keep", ["leaves", "segments", "disk"])
@pytest.mark.parametrize("graph", [heads, braid, side_by_side, everything_before])
def test_wide_graphs_are_not_computed_again_and_again(op_by_op: None, watched: Watched, graph: Callable, keep: str):
    x, times = tf.fill([LAYER // 4], 0.5), []
    for width in (8, 32):
        with rt.Tape(keep=keep) as tape:
            loss = tf.reduce_sum(graph(x, width))
        watched.times.clear()
        tape.gradient(loss, x)
        times.append(sum(watched.times.values()) / len(tape.program.eqns))
    assert times[1] <= {"leaves": 4.0, "segments": 1.0, "disk": 0.2}[keep]
    assert times[1] <= 1.7 * times[0] + 0.3  # four times the width
