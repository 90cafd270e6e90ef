"""Draws that leave no trace: whatever is drawn afterwards is what would have been drawn anyway."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

from retrotape.tf.seeds import apart


def draws() -> list[float]:
    return [
        float(tf.random.uniform([])),
        float(tf.random.uniform([], seed=5)),
        float(tf.random.normal([])),
        random.random(),
        float(np.random.rand()),
    ]


def seed() -> None:
    tf.random.set_seed(4)
    random.seed(4)
    np.random.seed(4)


def test_later_draws_are_the_same():
    seed()
    expected = draws() + draws()
    seed()
    got = draws()
    with apart(7):
        between = draws()
    assert got + draws() == expected
    assert between[0] not in expected


def test_they_are_the_same_after_an_exception():
    seed()
    expected = draws()
    seed()

    def fail() -> None:
        with apart(7):
            draws()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert draws() == expected


def test_the_same_seed_draws_the_same():
    found = []
    for _ in range(2):
        seed()
        with apart(7):
            found.append(float(tf.random.uniform([])))
    assert found[0] == found[1]


def test_without_a_seed_there_is_none_afterwards():
    tf.random.set_seed(None)
    with apart(7):
        tf.random.uniform([])
    assert float(tf.random.uniform([])) != float(tf.random.uniform([]))
    assert tf.compat.v1.get_default_graph().seed is None


def test_blocks_of_two_threads_that_overlap():
    seed()
    expected = draws()
    seed()
    first, second = apart(7), apart(8)
    leave_first, leave_second = first.__exit__, second.__exit__
    first.__enter__()
    second.__enter__()
    leave_first(None, None, None)  # before the second, which began later
    draws()
    leave_second(None, None, None)
    assert draws() == expected


def test_a_block_in_a_block():
    seed()
    expected = draws()
    seed()
    with apart(7):
        with apart(7):
            draws()
        draws()
    assert draws() == expected


def test_what_another_thread_draws_meanwhile_is_drawn_again():
    """The exception that is documented: there is one global generator for all threads."""
    with apart(7):
        drawn = random.random(), np.random.random()
    assert drawn == (random.random(), np.random.random())
