"""A window over a column: what it shows never changes, however much the column grows."""

from __future__ import annotations

import pickle

import pytest
import tensorflow as tf

import retrotape as rt
from retrotape.ir import Builder, TensorType
from retrotape.ir._window import Window

FLOAT = TensorType(1, (2,))


def test_it_is_the_first_items_and_no_more():
    column = list("abcd")
    window = Window(column, 3)
    column.append("e")
    assert (list(window), len(window), window[-1], window[1:], window[-9:9]) == (
        ["a", "b", "c"],
        3,
        "c",
        ("b", "c"),
        ("a", "b", "c"),
    )
    assert "d" not in window
    assert window == ("a", "b", "c")
    assert window != Window(column, 4)
    assert hash(window) == hash(("a", "b", "c"))


@pytest.mark.parametrize("index", [3, -4, 10])
def test_what_the_column_has_behind_it_is_out_of_range(index):
    with pytest.raises(IndexError, match=f"{index} is out of range: there are 3"):
        Window(list("abcdefgh"), 3)[index]


def test_a_snapshot_does_not_grow_with_its_builder():
    builder = Builder()
    x = builder.leaf(FLOAT)
    before = builder.snapshot()
    assert builder.snapshot() is before
    (y,) = builder.define([FLOAT])
    builder.append("Neg", (x,), (y,), ())
    assert (len(before.types), len(before.eqns)) == (1, 0)
    assert (len(builder.snapshot().types), len(builder.snapshot().eqns)) == (2, 1)
    assert len(builder.program.eqns) == 1


def test_what_is_appended_to_a_copy_is_not_in_the_base():
    base = Builder()
    base.leaf(FLOAT)
    base.facts.discrete.add(0)
    copy = Builder(base.program)
    copy.leaf(FLOAT)
    copy.facts.discrete.add(1)
    assert (len(base.program.types), base.facts.discrete) == (1, {0})
    assert (len(copy.program.types), copy.facts.discrete) == (2, {0, 1})


def test_a_program_can_be_pickled_without_what_only_this_process_knows():
    with rt.Tape() as tape:
        tf.sin(tf.constant(1.0)) * 2.0
    program = tape.program
    copy = pickle.loads(pickle.dumps(program))
    assert copy == program
    assert str(copy) == str(program)


def test_facts_of_a_snapshot_do_not_grow():
    v = tf.Variable(2.0)
    with rt.Tape() as tape:
        v.assign_add(1.0)
        program = tape.program
        times = len(program.facts.times)
        versions = [len(history.versions) for history in program.facts.histories.values()]
        v.assign_add(1.0)
        assert len(tape.program.facts.times) > times
    assert len(program.facts.times) == times
    assert [len(history.versions) for history in program.facts.histories.values()] == versions
