"""The program as data: types, frames, equality; and that it needs no TensorFlow."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import pytest

from retrotape.ir import DTYPE_NAMES, LEAF, DType, Eqn, Frame, Func, Program, Proto, Shape, TensorType

SCALAR = TensorType(1, ())


def two_ops() -> Program:
    eqns = (Eqn("Neg", (0,), (1,), (), 0), Eqn("Mul", (0, 1), (2,), (("T", DType(1)),), 1))
    return Program((SCALAR,) * 3, (LEAF, 0, 1), eqns, (Frame("a.py", 3, "f"), Frame("b.py", 4, "g")))


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (TensorType(1, ()), "float32[]"),
        (TensorType(2, (3,)), "float64[3]"),
        (TensorType(14, (2, None, 0)), "bfloat16[2,?,0]"),
        (TensorType(20, None), "resource[...]"),
        (TensorType(101, (1,)), "dtype101[1]"),
    ],
)
def test_a_type_prints_dtype_and_shape(kind: TensorType, text: str):
    assert str(kind) == text


def test_dtype_names_are_distinct():
    assert len(set(DTYPE_NAMES.values())) == len(DTYPE_NAMES)


def test_a_frame_prints_as_an_editor_opens_it():
    assert str(Frame("dir/loop.py", 12, "step")) == "dir/loop.py:12"


def test_leaves_are_the_vars_without_equation():
    assert two_ops().leaves() == [0]
    assert Program((), (), (), ()).leaves() == []


def test_frame_of_an_equation():
    program = two_ops()
    assert [program.frame_of(eqn).line for eqn in program.eqns] == [3, 4]


def test_a_program_is_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        two_ops().eqns = ()  # type: ignore[misc]


def test_equal_programs_are_equal_and_hash_alike():
    assert two_ops() == two_ops()
    assert hash(two_ops()) == hash(two_ops())
    assert two_ops() != dataclasses.replace(two_ops(), frames=())


def test_equations_hash_with_every_kind_of_attribute():
    values = (
        True,
        1,
        1.5,
        b"x",
        DType(1),
        Shape((1,)),
        Shape(None),
        Func("f"),
        Proto(b"p"),
        (1, (2.0, b"y")),
    )
    eqn = Eqn("Op", (), (), tuple((f"a{i}", value) for i, value in enumerate(values)), 0)
    assert eqn in {eqn}


def test_printing_and_reading_back_are_methods_of_the_program():
    program = two_ops()
    assert Program.parse(str(program)) == program


def test_importing_the_library_does_not_load_tensorflow():
    code = (
        "import sys, retrotape, retrotape.ir, retrotape.errors\n"
        "retrotape.Program.parse('%0 : float32[]'), retrotape.__version__, dir(retrotape)\n"
        "loaded = {'tensorflow', 'keras', 'numpy'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_an_unknown_name_of_the_library_is_an_attribute_error():
    import retrotape

    with pytest.raises(AttributeError, match="module 'retrotape' has no attribute 'Tap'"):
        retrotape.Tap  # noqa: B018
    assert set(dir(retrotape)) == set(retrotape.__all__)
