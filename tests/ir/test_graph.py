"""What a target depends on, and what a source reaches."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from retrotape.ir import Builder, Program, TensorType, reached_from, slice_to

SCALAR = TensorType(1, ())


def diamond() -> Program:
    """%2 = f(%0); %3 = g(%0, %1); %4 = h(%2, %3); %5 = k(%1); %6, %7 = s(%4)."""
    builder = Builder()
    x, w = builder.leaf(SCALAR), builder.leaf(SCALAR)
    made = []
    for inputs, count in [((x,), 1), ((x, w), 1), ((2, 3), 1), ((w,), 1), ((4,), 2)]:
        outs = builder.define([SCALAR] * count)
        builder.append("Op", inputs, outs, ())
        made.append(outs)
    return builder.snapshot()


def test_slice_holds_what_the_target_depends_on():
    assert slice_to(diamond(), [4]) == [0, 1, 2]
    assert slice_to(diamond(), [5]) == [3]
    assert slice_to(diamond(), [7]) == [0, 1, 2, 4]


def test_slice_of_several_targets_is_the_union_in_order():
    assert slice_to(diamond(), [5, 2]) == [0, 3]


def test_slice_of_a_leaf_or_of_nothing_is_empty():
    assert slice_to(diamond(), [0, 1]) == []
    assert slice_to(diamond(), []) == []


def test_slice_follows_nothing_past_a_stop():
    assert slice_to(diamond(), [4], stops={2}) == [1, 2]
    assert slice_to(diamond(), [4], stops={2, 3}) == [2]
    assert slice_to(diamond(), [4], stops={4}) == []


def test_slice_of_a_long_chain_needs_no_deep_stack():
    builder = Builder()
    var = builder.leaf(SCALAR)
    for _ in range(5000):
        (out,) = builder.define([SCALAR])
        builder.append("Neg", (var,), (out,), ())
        var = out
    assert slice_to(builder, [var]) == list(range(5000))


def test_reached_holds_equations_and_vars_that_see_a_source():
    kept, reached = reached_from(diamond(), [1], range(5))
    assert kept == [1, 2, 3, 4]
    assert reached == {1, 3, 4, 5, 6, 7}


def test_reached_is_limited_to_the_equations_given():
    kept, reached = reached_from(diamond(), [1], [0, 1, 2])
    assert kept == [1, 2]
    assert reached == {1, 3, 4}


def test_reached_does_not_pass_what_is_blocked():
    kept, reached = reached_from(diamond(), [0], range(5), blocked=[{4}])
    assert kept == [0, 1]
    assert reached == {0, 2, 3}


def test_what_is_blocked_may_stand_in_several_sets():
    kept, reached = reached_from(diamond(), [0, 1], range(5), blocked=[{3}, {5, 6}, set()])
    assert kept == [0, 2, 4]
    assert reached == {0, 1, 2, 4, 7}


def test_what_is_blocked_is_reached_where_it_is_a_source():
    kept, reached = reached_from(diamond(), [4], range(5), blocked=[{4}])
    assert kept == [4]
    assert reached == {4, 6, 7}


def test_no_source_reaches_nothing():
    assert reached_from(diamond(), [], range(5)) == ([], set())


@st.composite
def programs(draw) -> Program:
    builder = Builder()
    for _ in range(draw(st.integers(1, 3))):
        builder.leaf(SCALAR)
    for _ in range(draw(st.integers(0, 12))):
        ins = draw(st.lists(st.integers(0, len(builder.types) - 1), max_size=3))
        outs = builder.define([SCALAR] * draw(st.integers(0, 2)))
        builder.append("Op", tuple(ins), outs, ())
    return builder.snapshot()


def naive_ancestors(program: Program, target: int) -> set[int]:
    producer = program.producers[target]
    if producer < 0:
        return {target}
    return {target}.union(*(naive_ancestors(program, var) for var in program.eqns[producer].inputs), set())


@settings(max_examples=60, deadline=None)
@given(programs(), st.data())
def test_the_slice_and_what_is_reached_agree_with_the_definition(program: Program, data):
    target = data.draw(st.integers(0, len(program.types) - 1))
    source = data.draw(st.integers(0, len(program.types) - 1))
    ancestors = naive_ancestors(program, target)
    indices = slice_to(program, [target])
    assert set(indices) == {program.producers[var] for var in ancestors} - {-1}
    _, reached = reached_from(program, [source], indices)
    assert (target in reached) == (source in ancestors)
