"""A file that is whole, and says what no tape says: it is refused, and nothing runs or grows on its behalf.

The files of `tests/files/store/hostile.py` are broken as files. These here are in order as files: it is the program
that is hostile.
"""

from __future__ import annotations

import numpy as np
import pytest

import retrotape as rt
from files.checks.forging import FIELDS, forge
from files.checks.hostile_programs import FORBIDDEN
from retrotape.errors import CorruptTapeError, RetrotapeError, TapeVersionError, UnsafeTapeError
from retrotape.files import store
from retrotape.ir import OWN_OPS


def test_what_is_forged_here_could_be_honest(tmp_path):
    path = forge(tmp_path / "a.tape", "%0 : float32[3]\n%1 : float32[3] = Neg{T=float32}(%0) @0", {0: np.ones(3, "f4")})
    np.testing.assert_array_equal(rt.load(path)["y"], -np.ones(3))


# ------------------------------------------------------------------ ops that do something


@pytest.mark.parametrize("op", FORBIDDEN)
def test_ops_that_a_tape_may_not_have(op, tmp_path):
    program, values = FORBIDDEN[op]
    target = tmp_path / "written"
    program = program.replace("{path}", str(target))
    values = {
        var: value.replace("{path}", str(target)) if isinstance(value, str) else value for var, value in values.items()
    }
    path = forge(tmp_path / "a.tape", program, values)
    with pytest.raises(
        UnsafeTapeError, match=rf"it names the op {op}, which is not on the list .*allow_ops=\{{'{op}'\}}"
    ):
        rt.load(path)
    assert not target.exists()


def test_ops_inside_of_functions_are_looked_at_too(honest, tmp_path):
    functions = honest.functions()
    for key in functions:
        functions[key]["program"] = functions[key]["program"].replace("= Mul{T=float32}", "= ReadFile{T=float32}")
    with pytest.raises(UnsafeTapeError, match="it names the op ReadFile"):
        rt.load(honest.with_functions(functions).write(tmp_path / "a.tape"))


def test_what_the_user_allows(tmp_path):
    (tmp_path / "note").write_text("2.5")
    program = "%0 : string[]\n%1 : string[] = ReadFile(%0) @0\n%2 : float32[] = StringToNumber(%1) @0"
    path = forge(tmp_path / "a.tape", program, {0: str(tmp_path / "note")}, {"y": 2})
    with pytest.raises(UnsafeTapeError, match="ReadFile"):
        rt.load(path, allow_ops={"Abort"})
    assert float(rt.load(path, allow_ops={"ReadFile"})["y"]) == 2.5


def test_no_op_of_the_list_touches_the_world():
    """The list is reviewed by hand; this catches what slips in."""
    from retrotape.rules import allowed
    from retrotape.tf import core

    kinds = ("func", "list(func)", "tensor", "list(tensor)")
    words = (
        "File",
        "Save",
        "Restore",
        "Print",
        "PyFunc",
        "Debug",
        "Abort",
        "Const",
        "Call",
        "Collective",
        "Send",
        "Recv",
    )
    for op in allowed() - OWN_OPS:
        definition = core.op_def(op)
        assert definition is not None, op
        assert not any(attr.type in kinds for attr in definition.attr), op
        assert not any(word in op for word in words), op


# ------------------------------------------------------------------ attributes

NEG = "%0 : float32[3]\n%1 : float32[3] = Neg{attrs}(%0) @0"


@pytest.mark.parametrize(
    ("attrs", "error", "text"),
    [
        ("{T=True}", UnsafeTapeError, "attribute 'T' of op Neg is not of type type"),
        ("{T=3}", UnsafeTapeError, "attribute 'T' of op Neg is not of type type"),
        ("{T=b'x'}", UnsafeTapeError, "is not of type type"),
        ("{T=(float32)}", UnsafeTapeError, "is not of type type"),
        ('{T=Func("f")}', UnsafeTapeError, "is not of type type"),
        ("{T=Proto(b'')}", UnsafeTapeError, "is not of type type"),
        ("{T=dtype99}", UnsafeTapeError, "is not a valid value"),
        ("{T=float32, T=float32}", UnsafeTapeError, "has an attribute twice"),
        ("{T=float32, _device=b'/gpu:0'}", TapeVersionError, "attribute '_device', which TensorFlow .* does not know"),
        ("{T=float32, foo=1}", TapeVersionError, "attribute 'foo'"),
        ("", CorruptTapeError, "op Neg has no attribute T"),
        ("{T=int32}", CorruptTapeError, "equation 0 does not match the signature of Neg"),
        ("{T=}", CorruptTapeError, "Cannot read the line"),
    ],
)
def test_attributes(attrs, error, text, tmp_path):
    path = forge(tmp_path / "a.tape", NEG.replace("{attrs}", attrs), {0: np.ones(3, "f4")})
    with pytest.raises(error, match=text):
        rt.load(path)


@pytest.mark.parametrize(
    "line",
    [
        "%1 : float32[3] = AddN{N=2, T=float32}(%0) @0",
        "%1 : float32[3] = AddN{N=-1, T=float32}(%0) @0",
        "%1 : float32[3] = AddN{N=4611686018427387904, T=float32}(%0) @0",
        "%1 : float32[3] = Neg{T=float32}(%0, %0) @0",
        "%1 : float32[3] = Neg{T=float32}() @0",
        "%1 : float32[3], %2 : float32[3] = Neg{T=float32}(%0) @0",
        "= Neg{T=float32}(%0) @0",
        "%1 : int32[3] = Neg{T=float32}(%0) @0",
        "%1 : float32[3] = MatMul{T=float32}(%0) @0",
        "%1 : float32[3] = ReadVariableOp{dtype=float32}(%0, %0) @0",
        "%1 : float32[3] = ResourceApplyAdam{T=float32}(%0) @0",
        "%1 : float32[3] = AssignVariableOp{dtype=float32}(%0, %0) @0",
        "%1 : float32[2] = custom_gradient{name=b'g'}(%0, %0) @0",
        "= custom_gradient{name=b'g'}(%0) @0",
        "%1 : float32[3] = custom_gradient{nom=b'g'}(%0, %0) @0",
        "%1 : float32[3] = IdentityN{T=(float32, float32)}(%0) @0",
        "%1 : variant[] = TensorListFromTensor{element_dtype=float32, shape_type=int32}(%0, %0) @0",
    ],
)
def test_equations_that_are_not_how_an_op_is_called(line, tmp_path):
    """TensorFlow ends the process for some of these."""
    path = forge(tmp_path / "a.tape", f"%0 : float32[3]\n{line}", {0: np.ones(3, "f4")}, {"y": 0})
    with pytest.raises(
        RetrotapeError,
        match=r"not match the signature|other attributes than its name|without a backward function|no attribute",
    ):
        rt.load(path)


# ------------------------------------------------------------------ programs and tables that do not fit


@pytest.mark.parametrize(
    "program",
    [
        "%0 : float32[3]\n%1 : float32[3] = Neg{T=float32}(%7) @0",
        "%0 : float32[3]\n%1 : float32[3] = Neg{T=float32}(%1) @0",
        "%0 : float32[3]\n%0 : float32[3] = Neg{T=float32}(%0) @0",
        "%0 : float32[3]\n%2 : float32[3] = Neg{T=float32}(%0) @0",
        "%0 : float32[3]\n%1 : float32[3] = Neg{T=float32}(%0) @7",
        "%0 : float32[3]\n%1 : float33[3] = Neg{T=float32}(%0) @0",
        "%0 : float32[3]\n%1 : dtype99[3] = Neg{T=float32}(%0) @0",
        "%0 : float32[" + "1," * 300 + "1]\n%1 : float32[3] = Neg{T=float32}(%0) @0",
        "%0 : float32[3]\n%1 : float32[3] = Neg{T=" + "(" * 3000 + ")" * 3000 + "}(%0) @0",
        "%0 : float32[3]\n%1 : float32[" + "9" * 5000 + "] = Neg{T=float32}(%0) @0",
        "Neg",
        "\0",
        "import os",
    ],
)
def test_programs_that_make_no_sense(program, tmp_path):
    path = forge(tmp_path / "a.tape", program, {}, {"y": 0})
    with pytest.raises(RetrotapeError):
        rt.load(path)


@pytest.mark.parametrize("value", [np.ones(4, "f4"), np.ones((3, 1), "f4"), np.ones(3, "f8"), np.ones(3, "i4"), "abc"])
def test_tensors_that_are_not_what_the_program_says(value, tmp_path):
    path = forge(tmp_path / "a.tape", NEG.replace("{attrs}", "{T=float32}"), {0: value})
    with pytest.raises(CorruptTapeError, match=r"where the program says float32\[3\]"):
        rt.load(path)


def test_program_that_is_no_text(tmp_path):
    entries = {"program.txt": b"\xff\xfe", "functions.json": b"{}", "opdefs.pb": b""}
    store.write(tmp_path / "a.tape", entries, [], FIELDS)
    with pytest.raises(CorruptTapeError):
        rt.load(tmp_path / "a.tape")
