"""Which structures are remembered: those that come again, up to a bound."""

from __future__ import annotations

import gc

import pytest
import tensorflow as tf

import retrotape as rt
from helpers.warm import FIRST, reasons
from retrotape.lower import _queries, _structures, cache
from retrotape.record._sites import forget_sites
from retrotape.tf.core import context

W = tf.Variable([1.0, -2.0, 3.0])


def chain(length: int):
    """Record a program whose structure the length decides."""
    with rt.Tape() as tape:
        y = W * 1.0
        for _ in range(length):
            y = tf.sin(y)
        loss = tf.reduce_sum(y)
    return tape, tape.gradient(loss, [W])


EARLIER: set[str] = set()


@pytest.fixture(autouse=True)
def _other_tests_may_hold_functions() -> None:
    EARLIER.clear()
    EARLIER.update(context.context().list_function_names())


def functions() -> int:
    """Return how many functions were compiled in this test and are known to TensorFlow."""
    names = set(context.context().list_function_names()) - EARLIER
    return sum(name.startswith("__retrotape_") for name in names)


@pytest.fixture
def observations(monkeypatch) -> list[int]:
    """Count how often a query is observed."""
    found, observe = [], _queries.observe
    monkeypatch.setattr(_queries, "observe", lambda *args: found.append(1) or observe(*args))
    return found


def test_a_new_structure_each_time_is_not_observed_each_time(observations):
    for length in range(20):
        chain(length)
    assert len(observations) == _structures.CREDIT
    assert functions() == 0


def test_a_structure_that_comes_again_is_compiled_after_the_credit_is_used_up():
    for length in range(20):
        chain(length)
    assert reasons(chain, *[30] * 5) == [FIRST, FIRST, FIRST, None, None]


def test_structures_that_come_again_give_the_credit_back(observations):
    for length in range(8):
        for _ in range(3):
            chain(length)
    assert chain(3)[0].why_not_compiled() is None
    assert len(observations) == 16


def test_the_least_recently_used_structures_are_forgotten_with_their_functions(monkeypatch):
    monkeypatch.setattr(_structures, "STRUCTURES", 3)
    with rt.config(compile="always"):
        for length in range(9):
            for _ in range(2):
                chain(length)
        assert len(cache._structures) == 3
    forget_sites()  # templates refer to structures too
    gc.collect()
    assert functions() <= 3


def test_hashes_of_structures_seen_once_are_bounded(monkeypatch):
    monkeypatch.setattr(_structures, "STRUCTURES", 2)
    for length in range(30):
        chain(length)
    assert len(cache._seen) <= 8


def test_clearing_forgets_everything():
    reasons(chain, 3, 3, 3)
    cache.clear()
    assert not cache._structures
    assert not cache._seen
    assert cache._credit == _structures.CREDIT


def test_programs_that_differ_in_one_attribute_do_not_share_a_function():
    def leaky(alpha):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(tf.nn.leaky_relu(W, alpha) ** 2)
        return tape, tape.gradient(loss, [W])

    assert reasons(leaky, 0.1, 0.1, 0.1, 0.3, 0.3, 0.3, 0.1)[2:] == [None, FIRST, FIRST, None, None]


def test_the_identity_of_variables_is_not_part_of_the_key():
    def step(variable):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(variable**2)
        return tape, tape.gradient(loss, [variable])

    some = [tf.Variable([float(number), 1.0, 2.0]) for number in range(5)]
    assert reasons(step, *some) == [FIRST, FIRST, None, None, None]


def test_many_queries_of_one_structure_are_observed_only_when_they_come_again(observations):
    with rt.Tape() as tape:
        y = tf.sin(W)
        losses = [tf.reduce_sum(y * float(number)) for number in range(12)]
    for loss in losses:
        tape.gradient(loss, [W])
    assert len(observations) == _structures.AT_ONCE
    for loss in losses:
        tape.gradient(loss, [W])
    assert len(observations) == _structures.AT_ONCE + len(losses)


def test_queries_of_one_structure_are_bounded(monkeypatch):
    monkeypatch.setattr(_structures, "QUERIES", 5)
    with rt.Tape() as tape:
        losses = [tf.reduce_sum(tf.sin(W) * float(number)) for number in range(12)]
    for loss in [*losses, *losses]:
        tape.gradient(loss, [W])
    (structure,) = cache._structures.values()
    assert len(structure.queries) == 5


def test_which_sources_a_query_names_is_part_of_the_key():
    other = tf.Variable([3.0, 4.0, 5.0])

    def step(names):
        with rt.Tape() as tape:
            loss = tf.reduce_sum(W * other)
        sources = [{"w": W, "o": other}[name] for name in names]
        return tape, tape.gradient(loss, sources)

    for names in ("w", "o", "wo", "ow", "ww"):
        assert reasons(step, *[names] * 4)[3] is None, names
    assert reasons(step, "w", "o", "wo", "ow", "ww") == [None] * 5
