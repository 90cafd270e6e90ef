"""The time to read a text grows with its length and no faster, whatever the text is; nesting does not overflow."""

from __future__ import annotations

import contextlib
import time

import pytest

from ir.long_texts import TEXTS
from retrotape.errors import MalformedProgramError
from retrotape.ir import Builder, Program, TensorType, parse

SMALL = 20_000
TIMES = 8  # four times as slow, were it quadratic, again and again: 64
FLOOR = 0.004  # seconds: below it the clock says little


def seconds(text: str) -> float:
    """Return the processor time to read or refuse a text, the best of three."""
    best = float("inf")
    for _ in range(3):
        begin = time.process_time()
        with contextlib.suppress(MalformedProgramError):
            parse(text)
        best = min(best, time.process_time() - begin)
    return best


@pytest.mark.parametrize("name", TEXTS)
def test_eight_times_the_text_takes_no_more_than_some_eight_times_the_time(name: str):
    make = TEXTS[name]
    short, long = seconds(make(SMALL)), seconds(make(TIMES * SMALL))
    assert long < 3 * TIMES * max(short, FLOOR)
    assert long < 2


@pytest.mark.parametrize("opening", ["(", "Shape(", "Func(", "Proto(", "(Shape("])
def test_deep_nesting_is_refused_as_such(opening: str):
    with pytest.raises(MalformedProgramError, match="nested more than 32 deep"):
        parse("%0 : float32[] = A{a=" + opening * 100_000)


def test_lists_as_deep_as_allowed_are_read():
    text = "%0 : float32[] = A{a=" + "(" * 32 + "1" + ")" * 32 + "}() @0"
    assert str(parse(text)) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%" + "1" * 5000 + " : float32[]", "a number has 5000 digits, more than 40"),
        ("%0 : float32[" + "1" * 5000 + "]", "a number has 5000 digits"),
        ("%0 : dtype" + "1" * 5000 + "[]", "a number has 5000 digits"),
        ("%0 : float32[] = A{a=" + "1" * 5000 + "}() @0", "a number has 5000 digits"),
        ("= A(%" + "1" * 5000 + ") @0", "a number has 5000 digits"),
        ("= A() @" + "1" * 5000, "a number has 5000 digits"),
        ('@0 = "a":' + "1" * 5000 + ' in "f"', "a number has 5000 digits"),
        (r"%0 : float32[] = A{a=b'\d'}() @0", "is no part of bytes"),
        ("%0 : float32[] = A{a=b'é'}() @0", "is no part of bytes"),
        ("%0 : float32[] = A{a=b'\0'}() @0", "is no part of bytes"),
        ("%0 : float32[] = A{a=1", "an attribute has no end"),
        ('%0 : float32[] = A{a="text"}() @0', "expected a value, got 'text'"),
        ("%0 : float32[] = A{a=None}() @0", "None is no dtype"),
        ("%0 : float32[] = A{a=(1, None)}() @0", "None is no dtype"),
        ("%0 : float32[] = A{a=Shape(5)}() @0", "Shape takes a list of whole numbers, or None"),
        ("%0 : float32[] = A{a=Shape((True))}() @0", "Shape takes a list of whole numbers, or None"),
        ("%0 : float32[] = A{a=Func(1)}() @0", "Func takes a name"),
        ("%0 : float32[] = A{a=Proto(1)}() @0", "Proto takes bytes"),
        ("= A\x1b[2J() @0", "the name of an op has characters that cannot be printed"),
        ("%٣ : float32[]", "it is neither a leaf, nor an equation, nor a frame"),
        ("%0 : float32[], ", "it is neither"),
        ("%0 : float32[]%1 : float32[] = A() @0", "it is neither"),
        ('@0 = "a":1 in "f" ', "it is neither"),
        ("@0 = 1:1 in 2", "it is neither"),
    ],
)
def test_what_python_would_fail_at_in_its_own_words_is_refused(text: str, message: str):
    with pytest.raises(MalformedProgramError, match=message):
        parse(text)


def test_a_message_cannot_steer_a_terminal():
    with pytest.raises(MalformedProgramError) as caught:
        parse("\x1b[2J\x9b31m\u202e")
    assert str(caught.value).isprintable()


def test_a_message_does_not_repeat_the_file():
    with pytest.raises(MalformedProgramError) as caught:
        parse("x" * 10**6)
    assert len(str(caught.value)) < 400


def test_an_equation_of_many_outputs_is_checked_in_time():
    def spent(count: int) -> float:
        builder = Builder()
        outs = builder.define([TensorType(1, ())] * count)
        builder.append("Op", (), outs, ())
        begin = time.process_time()
        built: Program = builder.snapshot()
        assert len(built.eqns[0].outputs) == count
        return time.process_time() - begin

    assert spent(80_000) < 3 * 8 * max(spent(10_000), FLOOR)
