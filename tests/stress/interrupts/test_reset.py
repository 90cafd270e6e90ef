"""A reset that is interrupted at any line: the tape gives no result, or the right one, and can be reset again."""

from __future__ import annotations

import os
import sys
from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.errors import EmptyTapeError, InterruptedTapeError

ROOT = os.path.dirname(rt.__file__) + os.sep


@tf.custom_gradient
def tripled(x: Any) -> Any:
    return x * 1.0, lambda d: d * 3.0


def record(tape: rt.Tape, x: Any, w: Any) -> Any:
    with tape:
        w.assign(w * 2.0)
        return tripled(x * w) * x


def interrupted(tape: rt.Tape, line: int) -> bool:
    """Reset a tape and raise at a line of retrotape, counted from the first; say whether there are so many."""
    seen = 0

    def local(frame: Any, event: str, _: Any) -> Any:
        nonlocal seen
        if event == "line":
            seen += 1
            if seen == line:
                sys.settrace(None)
                raise KeyboardInterrupt
        return local

    def trace(frame: Any, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(ROOT) else None

    sys.settrace(trace)
    try:
        tape.reset()
    except KeyboardInterrupt:
        return True
    finally:
        sys.settrace(None)
    return False


def test_every_line_of_a_reset():
    x, w = tf.constant(3.0), tf.Variable(1.0)
    line, raised = 0, 0
    while True:
        line += 1
        tape = rt.Tape()
        w.assign(1.0)
        record(tape, x, w)
        if not interrupted(tape, line):
            break
        w.assign(1.0)
        try:
            y = record(tape, x, w)
            found = float(tape.gradient(y, x))
        except (InterruptedTapeError, EmptyTapeError):
            raised += 1
        else:
            assert found == pytest.approx(2.0 * 3.0 + 3.0 * 2.0 * 3.0), line
        tape.reset()
        w.assign(1.0)
        assert float(tape.gradient(record(tape, x, w), x)) == pytest.approx(24.0)
    assert line > 30
    assert raised > 20
