"""Twice as many sources, tapes or queries take twice the work: lines of Python that run are counted, not time."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.record import Recorder

_HERE = str(Path(rt.__file__).parent)
Run = Callable[[], Any]


def lines_of(run: Run) -> int:
    """Return how many lines of this library run, each iteration of a loop included."""
    count = 0

    def local(_: Any, event: str, __: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    before = sys.gettrace()
    sys.settrace(lambda frame, *_: local if frame.f_code.co_filename.startswith(_HERE) else None)
    try:
        run()
    finally:
        sys.settrace(before)
    return count


def _variables(count: int) -> list[Any]:
    return [tf.Variable(1.0) for _ in range(count)]


def aside(count: int) -> Run:
    used, others = tf.Variable(1.0), _variables(count)
    with rt.Tape() as tape:
        loss = used * 2.0
        for other in others:
            other + 1.0
    return lambda: tape.backward(loss, others)


def stopped(count: int) -> Run:
    sources = _variables(count)
    with rt.Tape() as tape:
        loss = tf.add_n([tf.stop_gradient(source * 2.0) for source in sources])
    return lambda: tape.backward(loss, sources)


def assigned(count: int) -> Run:
    sources = _variables(count)
    with rt.Tape() as tape:
        for source in sources:
            source.assign(source * 2.0)
        loss = tf.add_n([source * 1.0 for source in sources])
    return lambda: tape.gradient(loss, [tape.at(source, 0) for source in sources])


def table(count: int) -> Run:
    sources = _variables(count)
    with rt.Tape() as tape:
        loss = tf.add_n(list(sources))
    grads = tape.backward(loss)
    return lambda: str(grads)


def watched(count: int) -> Run:
    sources = _variables(count)
    with rt.Tape() as tape:
        for source in sources:
            source + 1.0
    return tape.watched_variables


def many_targets(count: int) -> Run:
    sources = _variables(count)
    with rt.Tape() as tape:
        targets = [source * 2.0 for source in sources]
    return lambda: tape.gradient(targets, [*sources, *targets])


def joined(count: int) -> Run:
    x, tapes, h = tf.Variable(0.5), [], tf.constant(1.0)
    for _ in range(count // 5):
        with rt.Tape() as tape:
            h = tf.sin(h * x)
        tapes.append(tape)

    def run() -> None:
        whole: Any = tapes[0]
        for tape in tapes[1:]:
            whole = rt.join(whole, tape)
        whole.gradient(h, x)

    return run


def why(count: int) -> Run:
    w = tf.Variable(1.0)
    with rt.Tape() as tape:
        h = w * 1.0
        for _ in range(20 * count):  # beyond what used to be explained without a gradient
            h = tf.sin(h)
    return lambda: str(tape.why(h, w))


KINDS = [aside, stopped, assigned, table, watched, many_targets, joined, why]


@pytest.mark.parametrize("kind", KINDS)
def test_lines_grow_with_the_number(kind):
    lines_of(kind(20))  # what is done once
    small, large = (lines_of(kind(count)) for count in (100, 200))
    assert large / small < 2.1, (small, large)


def test_in_a_graph_each_operation_is_read_once_however_many_queries(monkeypatch):
    read, record = [], Recorder.record

    def counting(self: Any, events: Any) -> None:
        read.extend(event.place.name for event in events if hasattr(event.place, "graph"))
        record(self, events)

    monkeypatch.setattr(Recorder, "record", counting)
    w = tf.Variable(2.0)

    @tf.function
    def several() -> Any:
        with rt.Tape() as tape:
            losses = [tf.sin(w * number) for number in (1.0, 2.0, 3.0, 4.0)]
        return [tape.gradient(loss, w) for loss in losses]

    several()
    assert read
    assert len(read) == len(set(read))
