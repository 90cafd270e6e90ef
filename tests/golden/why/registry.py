"""The list of the programs: each returns its tape, the target, and the source."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import retrotape as rt

Asked = tuple[rt.Tape, Any, Any]
PROGRAMS: dict[str, Callable[[], Asked]] = {}


def program(function: Callable[[], Asked]) -> Callable[[], Asked]:
    PROGRAMS[function.__name__] = function
    return function


def weights() -> tf.Variable:
    return tf.Variable([0.5, -1.5, 2.5], name="w")
