"""The value of a tensor as bytes: equal for equal values only."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.transform._shard_checks import digest
from retrotape.transform._value_bytes import value_bytes


@pytest.mark.parametrize(
    ("value", "other"),
    [
        ("a", "b"),
        (["a", "b"], ["ab", ""]),
        ([["a"]], [["b"]]),
        ("\xff", "\xfe"),
        (1.0, 2.0),
        ([1, 2], [2, 1]),
        (True, False),
    ],
)
def test_equal_values_only(value: Any, other: Any):
    same, again, different = (value_bytes(tf.constant(one)) for one in (value, value, other))
    assert same == again
    assert same != different


def test_equal_strings_in_other_places():
    """An array of strings holds their addresses."""
    built = tf.strings.join([tf.constant(["a" * 50]), tf.constant(["b" * 50])])
    assert value_bytes(built) == value_bytes(tf.constant(["a" * 50 + "b" * 50]))


@pytest.mark.parametrize("text", ["a", ["a", "b"]])
def test_digests_of_leaves(text: Any):
    digests = []
    for _ in range(2):
        x = tf.constant(text)
        with rt.Tape() as tape:
            tf.strings.length(x)
        trace = tape._eager("test").trace
        trace.flush()
        var = trace.tensors.find(x)
        trace.values[var] = x
        digests.append(digest(trace, var))
    assert digests[0] == digests[1] is not None
