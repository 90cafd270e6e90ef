"""Programs grow in a builder, and are checked and frozen when they are built."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from retrotape.errors import MalformedProgramError
from retrotape.ir import LEAF, Builder, DType, Eqn, Frame, TensorType

SCALAR = TensorType(1, ())
VECTOR = TensorType(2, (3,))


def chain(builder: Builder, length: int) -> int:
    var = builder.leaf(SCALAR)
    for _ in range(length):
        (out,) = builder.define([SCALAR])
        builder.append("Neg", (var,), (out,), ())
        var = out
    return var


def test_vars_are_numbered_as_they_come():
    builder = Builder()
    assert builder.leaf(SCALAR) == 0
    assert builder.define([VECTOR, SCALAR]) == (1, 2)
    builder.append("Split", (0,), (1, 2), ())
    assert builder.leaf(VECTOR) == 3
    assert builder.types == [SCALAR, VECTOR, SCALAR, VECTOR]
    assert builder.producers == [LEAF, 0, 0, LEAF]


def test_build_freezes_everything():
    frames = (Frame("a.py", 1, "f"),)
    builder = Builder(frames=frames)
    (out,) = builder.define([SCALAR])
    builder.append("Const", (), (out,), (("dtype", DType(1)),), frame=0)
    program = builder.snapshot()
    assert program.types == (SCALAR,)
    assert program.producers == (0,)
    assert program.eqns == (Eqn("Const", (), (0,), (("dtype", DType(1)),), 0),)
    assert program.frames == frames


def test_an_empty_builder_builds_an_empty_program():
    program = Builder().snapshot()
    assert (program.types, program.producers, program.eqns, program.frames) == ((), (), (), ())


def test_a_program_that_was_built_does_not_change_afterwards():
    builder = Builder()
    chain(builder, 2)
    before = builder.snapshot()
    chain(builder, 1)
    assert len(before.eqns) == 2
    assert len(builder.snapshot().eqns) == 3


def test_nothing_new_gives_the_same_object():
    builder = Builder()
    chain(builder, 2)
    assert builder.snapshot() is builder.snapshot()


def test_a_new_leaf_alone_gives_a_new_program():
    builder = Builder()
    chain(builder, 1)
    first = builder.snapshot()
    builder.leaf(VECTOR)
    assert builder.snapshot().types == (*first.types, VECTOR)


def test_frames_are_resolved_only_when_they_are_read():
    read: list[int] = []

    class Lazy(Sequence[Frame]):
        def __len__(self) -> int:
            return 1

        def __getitem__(self, index: int) -> Frame:
            read.append(index)
            return Frame("a.py", 1, "f")

    builder = Builder(frames=Lazy())
    chain(builder, 3)
    program = builder.snapshot()
    assert not read
    assert program.frames[0] == Frame("a.py", 1, "f")
    assert read == [0]


def test_build_checks():
    builder = Builder()
    (out,) = builder.define([SCALAR])
    builder.append("Neg", (5,), (out,), ())
    with pytest.raises(MalformedProgramError, match=r"Equation 0 \(Neg\) reads %5, which does not exist"):
        builder.snapshot()


def test_build_checks_what_came_after_the_last_build():
    builder = Builder()
    chain(builder, 2)
    builder.snapshot()
    builder.append("Neg", (0,), (1,), ())
    with pytest.raises(MalformedProgramError, match=r"Equation 2 \(Neg\) defines %1, which is not its own"):
        builder.snapshot()


def test_a_program_that_failed_the_check_fails_again():
    builder = Builder()
    builder.append("Neg", (0,), (), ())
    for _ in range(2):
        with pytest.raises(MalformedProgramError, match=r"Equation 0 \(Neg\) reads %0, which does not exist"):
            builder.snapshot()


def test_build_refuses_a_var_whose_equation_never_came():
    builder = Builder()
    builder.define([SCALAR])
    with pytest.raises(MalformedProgramError, match="%0 claims equation 0 as its producer, which it is not"):
        builder.snapshot()


def test_build_refuses_a_var_whose_equation_never_came_also_later():
    builder = Builder()
    chain(builder, 1)
    builder.snapshot()
    builder.define([SCALAR])
    with pytest.raises(MalformedProgramError, match="%2 claims equation 1 as its producer, which it is not"):
        builder.snapshot()
