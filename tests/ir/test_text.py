"""What a program prints reads back; what was damaged is refused."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from retrotape.errors import MalformedProgramError
from retrotape.ir import (
    DTYPE_NAMES,
    LEAF,
    Builder,
    DType,
    Eqn,
    Frame,
    Func,
    Program,
    Proto,
    Shape,
    TensorType,
    parse,
    render,
)

SCALAR = TensorType(1, ())
HARD = [
    '"',
    "'",
    "\\",
    "\n",
    "\r",
    "\x85",
    "\u2028",
    "\x1c",
    " = ",
    ")(",
    "}(%0) @0",
    "@1 = ",
    '":3 in "',
    "é",
    "日本",
    ",",
]

text = st.one_of(st.text(max_size=8), st.lists(st.sampled_from(HARD), max_size=4).map("".join))
raw = st.one_of(st.binary(max_size=8), text.map(lambda s: s.encode("utf-8", "surrogatepass")))
floats = st.one_of(
    st.floats(),
    st.sampled_from([math.inf, -math.inf, math.nan, -0.0, 0.0, 1e-30, -1e-30, 1e300, 5e-324, 1.0]),
)
dims = st.lists(st.integers(-1, 5), max_size=3).map(tuple)
dtypes = st.one_of(st.sampled_from(sorted(DTYPE_NAMES)), st.integers(101, 130), st.just(0))
single = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63),
    floats,
    raw,
    dtypes.map(DType),
    st.one_of(st.none(), dims).map(Shape),
    text.map(Func),
    raw.map(Proto),
)
values = st.recursive(single, lambda inner: st.lists(inner, max_size=3).map(tuple), max_leaves=6)
names = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,6}", fullmatch=True)
kinds = st.builds(
    TensorType,
    dtypes,
    st.one_of(st.none(), st.lists(st.one_of(st.none(), st.integers(0, 9)), max_size=3).map(tuple)),
)
frames = st.builds(Frame, text, st.integers(0, 10**6), text)


@st.composite
def programs(draw) -> Program:
    table = tuple(draw(st.lists(frames, min_size=1, max_size=3)))
    builder = Builder(frames=table)
    for _ in range(draw(st.integers(0, 5))):
        if draw(st.booleans()):
            builder.leaf(draw(kinds))
        known = len(builder.types)
        ins = tuple(draw(st.lists(st.integers(0, known - 1), max_size=3))) if known else ()
        outs = builder.define(draw(st.lists(kinds, max_size=2)))
        attrs = tuple(sorted(draw(st.dictionaries(names, values, max_size=3)).items(), key=lambda item: item[0]))
        op = draw(st.sampled_from(["Neg", "__inference_f_12", "custom_gradient", "_FusedConv2D"]))
        builder.append(op, ins, outs, attrs, draw(st.integers(0, len(table) - 1)))
    return builder.snapshot()


def same(one: Program, other: Program) -> bool:
    """Compare by `repr`: it tells DType(1) from (1,), True from 1, 0.0 from -0.0, and takes nan for nan."""
    return repr(one) == repr(other)


def with_attr(value: object) -> Program:
    builder = Builder(frames=(Frame("a.py", 1, "f"),))
    (out,) = builder.define([SCALAR])
    builder.append("Op", (), (out,), (("a", value), ("b", 7)))  # type: ignore[arg-type]
    return builder.snapshot()


@settings(max_examples=100, deadline=None)
@given(programs())
@example(with_attr(math.nan))
@example(with_attr(Shape(None)))
def test_what_is_printed_reads_back(program: Program):
    again = parse(render(program))
    assert same(again, program)
    if "nan" not in str(program):
        assert again == program


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (True, "True"),
        (-3, "-3"),
        (2**70, "1180591620717411303424"),
        (0.5, "0.5"),
        (-1e-30, "-1e-30"),
        (math.inf, "inf"),
        (-math.inf, "-inf"),
        (math.nan, "nan"),
        (-0.0, "-0.0"),
        (b"", "b''"),
        (b'it\'s "so" \\ \xff\x00\n', r"""b'it\'s "so" \\ \xff\x00\n'"""),
        (b"SAME)(} @0 = ", "b'SAME)(} @0 = '"),
        (DType(1), "float32"),
        (DType(101), "dtype101"),
        (Shape(None), "Shape(None)"),
        (Shape(()), "Shape(())"),
        (Shape((-1, 3)), "Shape((-1, 3))"),
        (Func("__inference_f'\"_1"), r"""Func("__inference_f'\"_1")"""),
        (Proto(b"\x08\x01"), r"Proto(b'\x08\x01')"),
        ((), "()"),
        ((1,), "(1)"),
        ((1, (2.0, (DType(2), b",)"))), "(1, (2.0, (float64, b',)')))"),
    ],
)
def test_every_kind_of_attribute(value: object, shown: str):
    program = with_attr(value)
    assert str(program).splitlines()[0] == f"%0 : float32[] = Op{{a={shown}, b=7}}() @0"
    assert same(parse(str(program)), program)


def test_a_program_reads_like_one():
    builder = Builder(frames=(Frame("a b.py", 1, "<module>"), Frame('c"é\n.py', 2, "f")))
    x = builder.leaf(TensorType(1, (2, None)))
    outs = builder.define([TensorType(1, None), TensorType(3, ())])
    builder.append("Split", (x, x), outs, (("N", 2),), 1)
    builder.append("NoOp", (), (), ())
    program = builder.snapshot()
    assert str(program).splitlines() == [
        "%0 : float32[2,?]",
        "%1 : float32[...], %2 : int32[] = Split{N=2}(%0, %0) @1",
        "= NoOp() @0",
        '@0 = "a b.py":1 in "<module>"',
        r'@1 = "c\"\u00e9\n.py":2 in "f"',
    ]
    assert parse(str(program)) == program


def test_empty_lines_are_skipped():
    assert parse("\n%0 : float32[]\n\n   \n") == Program((SCALAR,), (LEAF,), (), ())
    assert parse("") == Program((), (), (), ())


def test_an_equation_may_stand_before_the_leaves_are_listed():
    program = parse("%1 : float32[] = Neg(%0) @0\n%0 : float32[]")
    assert program.eqns == (Eqn("Neg", (0,), (1,), (), 0),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("hello", "Cannot read the line 'hello': it is neither a leaf, nor an equation, nor a frame"),
        ("%0", "Cannot read the line '%0': it is neither"),
        ("%0 : float32[]\n%1 = Neg(%0) @0", r"Cannot read the line '%1 = Neg\(%0\) @0': it is neither"),
        ("%0 : float32[]\n%0 : float32[]", "%0 is defined twice"),
        ("%0 : float32[] = A() @0\n%0 : float32[] = A() @0", "%0 is defined twice"),
        ("%0 : float32[], %0 : float32[] = A() @0", "%0 is defined twice"),
        ("%1 : float32[]", "The vars are not numbered from 0 to 0"),
        ("%0 : float32[] = Neg(%0) @0", r"Equation 0 \(Neg\) reads %0 before it is defined"),
        ("%0 : float32[] = Neg(%4) @0", r"Equation 0 \(Neg\) reads %4, which does not exist"),
        ("%0 : float99[]", "Cannot read the line .*: float99 is no dtype"),
        ("%0 : float32[] = A{7}() @0", "expected an attribute's name, got '7'"),
        ("%0 : float32[] = A{a=,}() @0", "expected a value, got ','"),
        ("%0 : float32[] = A{a=1 b=2}() @0", "expected ',', got"),
        ("%0 : float32[] = A{a=1 $ 2}() @0", "is no part of an attribute"),
        ("%0 : float32[] = A{a=1} {b=2}() @0", "Cannot read the line"),
    ],
)
def test_text_that_is_no_program_is_refused(text: str, message: str):
    with pytest.raises(MalformedProgramError, match=message):
        parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "%0 : float99[]",
        "%0 : float32[x]",
        "%0 : float32[] = A{a=}() @0",
        "%0 : float32[] = A{a=(1,}() @0",
        "%0 : float32[] = A{a=Shape(}() @0",
        "%0 : float32[] = A{a=wrong}() @0",
        "%0 : float32[] = A{a=1x}() @0",
        "%0 : float32[] = A{a=1 $ 2}() @0",
        "%0 : float32[] = A{a=1 b=2}() @0",
        "%0 : float32[] = A(x) @0",
        "%0 : float32[] junk",
    ],
)
def test_damaged_text_is_refused_as_such(text: str):
    with pytest.raises(MalformedProgramError):
        parse(text)


@settings(max_examples=60, deadline=None)
@given(programs(), st.data())
def test_text_with_one_character_changed_is_read_or_refused(program: Program, data):
    shown = render(program)
    at = data.draw(st.integers(0, len(shown)))
    damaged = (
        shown[:at] + data.draw(st.sampled_from(["", "%", "(", ")", "{", "'", ",", "x", "9", "\\"])) + shown[at + 1 :]
    )
    try:
        again = parse(damaged)
    except MalformedProgramError:
        return
    assert same(parse(render(again)), again)  # what is read is a program like any other
