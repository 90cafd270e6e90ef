"""Which programs are well formed, and what is said about those that are not."""

from __future__ import annotations

import pytest

from retrotape.errors import MalformedProgramError, RetrotapeError
from retrotape.ir import LEAF, Eqn, Program, TensorType, check

SCALAR = TensorType(1, ())


def program(producers: tuple[int, ...], *eqns: tuple[tuple[int, ...], tuple[int, ...]], types: int | None = None):
    count = len(producers) if types is None else types
    return Program((SCALAR,) * count, producers, tuple(Eqn("Op", ins, outs, (), 0) for ins, outs in eqns), ())


@pytest.mark.parametrize(
    "good",
    [
        program(()),
        program((LEAF, LEAF)),
        program((0,), ((), (0,))),
        program((LEAF,), ((0,), ())),
        program((LEAF, 0, 1), ((0,), (1,)), ((0, 1, 0), (2,))),
        program((LEAF, 0, 0), ((0, 0), (1, 2))),
        program((0, LEAF), ((1,), (0,))),
        program((LEAF, 1, 0), ((0,), (2,)), ((2,), (1,))),
    ],
)
def test_well_formed(good: Program):
    check(good)


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (program((LEAF,), types=2), "2 types for 1 vars"),
        (program((LEAF, LEAF), types=1), "1 types for 2 vars"),
        (program((LEAF,), ((7,), ())), r"Equation 0 \(Op\) reads %7, which does not exist"),
        (program((LEAF,), ((-1,), ())), r"Equation 0 \(Op\) reads %-1, which does not exist"),
        (program((0,), ((0,), (0,))), r"Equation 0 \(Op\) reads %0 before it is defined"),
        (program((1, 0), ((0,), (1,)), ((), (0,))), r"Equation 0 \(Op\) reads %0 before it is defined"),
        (program((LEAF,), ((), (3,))), r"Equation 0 \(Op\) defines %3, which is not its own"),
        (program((LEAF,), ((), (-1,))), r"Equation 0 \(Op\) defines %-1, which is not its own"),
        (program((LEAF,), ((), (0,))), r"Equation 0 \(Op\) defines %0, which is not its own"),
        (program((0,), ((), (0,)), ((), (0,))), r"Equation 1 \(Op\) defines %0, which is not its own"),
        (program((LEAF, 0), ((0,), ())), "%1 claims equation 0 as its producer, which it is not"),
        (program((4,)), "%0 claims equation 4 as its producer, which it is not"),
        (program((-2,)), "%0 claims equation -2 as its producer, which it is not"),
    ],
)
def test_malformed(bad: Program, text: str):
    with pytest.raises(MalformedProgramError, match=text):
        check(bad)


def test_one_equation_may_not_define_a_var_twice():
    with pytest.raises(MalformedProgramError, match="%0"):
        check(program((0,), ((), (0, 0))))


def test_equations_that_were_checked_before_are_skipped():
    bad = program((LEAF, 1), ((9,), ()), ((0,), (1,)))
    check(bad, since=1)
    with pytest.raises(MalformedProgramError, match=r"Equation 0 \(Op\) reads %9"):
        check(bad)


def test_equations_that_were_not_checked_before_are_checked():
    bad = program((LEAF, 0), ((0,), (1,)), ((9,), ()))
    with pytest.raises(MalformedProgramError, match=r"Equation 1 \(Op\) reads %9"):
        check(bad, since=1)


def test_a_malformed_program_is_an_error_of_ours_and_a_value_error():
    assert issubclass(MalformedProgramError, RetrotapeError)
    assert issubclass(MalformedProgramError, ValueError)
