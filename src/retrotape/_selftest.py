"""A check that TensorFlow still tells what we rely on, for versions that nobody has tried.

retrotape listens where TensorFlow has no public door. On a version that moved the door, recording could miss an op and
give a wrong number; this finds out first, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrotape._tf import StockTape, tf
from retrotape.errors import IncompatibleTensorFlowError

TRIED = ((2, 16), (2, 21))


def is_tried(version: str) -> bool:
    """Say whether a version of TensorFlow is one that the tests have run on.

    >>> is_tried("2.21.0"), is_tried("2.15.1"), is_tried("3.0.0-rc1")
    (True, False, False)
    """
    first, second = (int(part) for part in version.split(".")[:2])
    return TRIED[0] <= (first, second) <= TRIED[1]


_checked = False


def check_once(make_tape: Callable[[], Any]) -> None:
    """Raise if recording on an untried TensorFlow does not give the stock tape's gradients."""
    global _checked
    if _checked:
        return
    _checked = True  # before the check, which records
    try:
        if not is_tried(tf.__version__):
            check(make_tape)
    except BaseException:
        _checked = False
        raise


def check(make_tape: Callable[[], Any]) -> None:
    """Record a read, a custom gradient and a function, and compare with the stock tape."""
    x, v = tf.constant([0.3, -1.2]), tf.Variable([2.0, 0.5])
    function = tf.function(lambda value: value * tf.tanh(v))
    with StockTape() as stock, make_tape() as tape:
        stock.watch(x)
        y = tf.reduce_sum(function(tf.nn.silu(tf.sin(v) * x)))
    ours = tape.gradient(y, [x, v])
    for got, expected in zip(ours, stock.gradient(y, [x, v]), strict=True):
        if got is None or not bool(tf.reduce_all(tf.abs(got - expected) < 1e-6)):
            raise IncompatibleTensorFlowError(tf.__version__, "a recorded gradient differs from the stock tape's")
