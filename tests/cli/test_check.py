from __future__ import annotations

import io
import json
import struct

import pytest
from rich.console import Console

import retrotape as rt
from cli.making import FIELDS, PROGRAM, flip, spawn, tamper, write
from files.store.hostile import ATTACKS
from retrotape.cli import check as verb
from retrotape.cli._wellformed import allowed_ops
from retrotape.errors import RetrotapeError
from retrotape.files import store
from retrotape.files.checks import _ops

BACK = {"equation": 0, "function": "f", "inputs": [0], "outputs": [1], "captures": []}
FUNCTION = {"program": "%0 : float32[2]", "cotangents": [0], "captures": [], "results": [[0]], "backward_functions": []}


def test_a_good_tape(run, saved, loop):
    for path in (saved["plain"], saved["folder"], loop):
        done = run("check", path)
        assert done.code == 0
        assert done.err == ""
        assert done.out.startswith(f"ok: {path} has ")
        assert done.out.count("\n") == 1
    found = run("check", loop, "--json").json()
    assert found["ok"] is True
    assert found["functions"] == 1
    assert found["names"] == 3


def test_checking_needs_no_tensorflow(saved):
    done = spawn("check", saved["plain"], after="assert not {'tensorflow', 'keras'} & set(sys.modules)")
    assert (done.code, done.err) == (0, "")


def test_the_list_of_ops_is_the_one_that_loading_has():
    assert allowed_ops() == _ops.allowed()


@pytest.mark.parametrize("entry", ["program.txt", "functions.json", "opdefs.pb", "tensors", "tape.json", "header"])
def test_one_bit_is_noticed(run, loop, tmp_path, entry):
    damaged = flip(loop, tmp_path / "damaged.tape", entry)
    done = run("check", damaged)
    assert done.code == 1
    assert "Cannot read the tape" in done.failure()
    found = run("check", damaged, "--json")
    assert found.code == 1
    assert found.json()["ok"] is False
    assert found.json()["kind"] == "CorruptTapeError"
    assert found.json()["problem"] in done.err


def test_a_missing_file_is_wrong_usage(run, tmp_path):
    done = run("check", tmp_path / "none.tape", "--json")
    assert done.code == 2
    assert "Give what `tape.save` wrote" in done.failure()


def test_a_folder_whose_store_is_damaged(run, folder, saved, tmp_path):
    blob = max((folder / "store").glob("*/*"), key=lambda file: file.stat().st_size)
    old = blob.read_bytes()
    try:
        blob.chmod(0o644)
        blob.write_bytes(old[:-1] + bytes([old[-1] ^ 1]))
        assert "is wrong, so it was changed" in run("check", saved["folder"]).failure()
    finally:
        blob.write_bytes(old)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_hostile_file_is_one_line(run, tmp_path, name):
    attack = ATTACKS[name]
    path = attack.build(tmp_path)
    done = run("check", path)
    assert done.code == 1
    done.failure()
    shown = run("show", path)
    if shown.code != 0:  # it reads less, so it may see nothing
        assert shown.code == 1
        shown.failure()


# ------------------------------------------------------------------ check sums hold, and it makes no sense

SENSELESS = {
    "names is no object": {"names": []},
    "a name stands for no var": {"names": {"x": {"var": 2}}},
    "a name stands for two things": {"names": {"x": {"var": 0, "variable": 0}}},
    "a name stands for true": {"names": {"x": {"var": True}}},
    "a variable does not exist": {"names": {"x": {"variable": 0}}},
    "a variable has no values": {"variables": [{"name": "v", "trainable": True, "versions": [], "made_by": []}]},
    "a variable has no name": {"variables": [{"trainable": True, "versions": [0], "made_by": [-1]}]},
    "since does not fit": {"variables": [{"name": "v", "trainable": True, "versions": [0], "made_by": []}]},
    "two variables, one value": {
        "variables": [{"name": n, "trainable": True, "versions": [0], "made_by": [-1]} for n in "vw"]
    },
    "assigned is missing": {"assigned": None},
    "assigned is no var": {"assigned": [7]},
    "a look at nothing": {"host_reads": [{"var": 9, "before": 0, "frame": 0, "method": "bool"}]},
    "a look after the end": {"host_reads": [{"var": 0, "before": 3, "frame": 0, "method": "bool"}]},
    "a look from nowhere": {"host_reads": [{"var": 0, "before": 0, "frame": 1, "method": "bool"}]},
    "a backward function without function": {"backward_functions": [BACK]},
    "a backward function of no equation": {"backward_functions": [{**BACK, "equation": 1}]},
    "redacted is a number": {"redacted": [1]},
    "redacted is nobody": {"redacted": ["nobody"]},
    "born is no pair": {"python_constants": [[0]]},
    "born is no var": {"python_constants": [[9, 0]]},
    "layers is no list of rows": {"layers": [["dense", 0, 1]]},
    "a layer without a name": {"layers": [[1, 0, 1, -1]]},
    "a layer beyond the program": {"layers": [["dense", 0, 99, -1]]},
    "a layer that ends before it begins": {"layers": [["dense", 1, 0, -1]]},
    "called is no pair": {"called": [[0]]},
    "called at no place": {"called": [[99, "ops.argmin"]]},
    "called without a name": {"called": [[0, 1]]},
    "layers out of order": {"layers": [["b", 1, 1, -1], ["a", 0, 1, -1]]},
    "a layer that returned no var": {"layers": [["dense", 0, 1, 99]]},
    "born after more looks than there are": {"python_constants": [[0, 1]]},
    "a name for something else": {"names": {"x": {"tensor": 0}}},
}
PROGRAMS = {
    "not a program": "hello",
    "reads before it is defined": PROGRAM.replace("(%0)", "(%1)"),
    "two places for one var": PROGRAM + "\n%0 : float32[]",
    "a custom gradient without backward function": PROGRAM.replace("Neg{T=float32}", "custom_gradient{name=b'f'}"),
    "a tuple of tuples": PROGRAM.replace("T=float32", "T=" + "(" * 5000 + ")" * 5000),
    "another type than its tensor": PROGRAM.replace("%0 : float32[2]", "%0 : float32[3]"),
}
FUNCTIONS = {
    "no object": "[]",
    "not JSON": "{",
    "without program": '{"f": {}}',
    "leaves left over": json.dumps({"f": {**FUNCTION, "cotangents": []}}),
    "a result of two": json.dumps({"f": {**FUNCTION, "results": [[0, 0]]}}),
}


def refused(run, path) -> str:
    """Return what is said of a tape that both `check` and `rt.load` refuse."""
    with pytest.raises(RetrotapeError):
        rt.load(path)
    done = run("check", path)
    assert done.code == 1
    return done.failure()


@pytest.mark.parametrize("name", SENSELESS)
def test_fields_that_make_no_sense(run, tmp_path, name):
    assert "makes no sense" in refused(run, write(tmp_path / "bad.tape", **SENSELESS[name]))


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_that_make_no_sense(run, tmp_path, name):
    path = write(tmp_path / "good.tape")

    def change(parts):
        parts["program"] = PROGRAMS[name]

    assert "makes no sense" in refused(run, tamper(path, tmp_path / "bad.tape", change))


def test_a_program_that_is_not_text(run, tmp_path):
    store.write(tmp_path / "bad.tape", {"program.txt": b"\xff", "functions.json": b"{}"}, [], FIELDS)
    assert "makes no sense" in refused(run, tmp_path / "bad.tape")


def test_an_equation_without_place(run, tmp_path):
    path = write(tmp_path / "bad.tape", PROGRAM.replace("(%0) @0", "(%0) @1"))
    assert "has frame 1, and there are 1 frames" in run("check", path).failure()
    assert "has frame 1, and there are 1 frames" in run("show", path).failure()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_that_make_no_sense(run, tmp_path, name):
    path = write(tmp_path / "bad.tape", functions=FUNCTIONS[name])
    done = run("check", path)
    assert done.code == 1
    assert ("functions.json is not JSON" if name == "not JSON" else "makes no sense") in done.failure()


@pytest.mark.parametrize("name", ["WriteFile", "EagerPyFunc", "NoSuchOp"])
def test_ops_that_are_not_allowed(run, tmp_path, name):
    told = refused(run, write(tmp_path / "bad.tape", PROGRAM.replace("Neg", name)))
    assert f"it names the op {name}, which is not on the list" in told


def test_an_op_that_calls_a_function(run, tmp_path):
    told = run("check", write(tmp_path / "bad.tape", PROGRAM.replace("T=float32", 'f=Func("g")'))).failure()
    assert "op Neg calls a function, 'g', and a tape has none" in told


def test_an_op_in_a_function_that_is_not_allowed(run, loop, tmp_path):
    def change(parts):
        (function,) = parts["functions"].values()
        function["program"] = function["program"].replace("= Mul{", "= ReadFile{")

    assert "names the op ReadFile" in refused(run, tamper(loop, tmp_path / "bad.tape", change))


def test_a_function_that_contains_itself(run, loop, tmp_path):
    def change(parts):
        (function,) = parts["functions"].values()
        row = dict(parts["fields"]["backward_functions"][0], equation=0, inputs=[], outputs=[], captures=[])
        function["backward_functions"] = [row]

    assert "contains itself" in run("check", tamper(loop, tmp_path / "bad.tape", change)).failure()


def test_a_tensor_that_belongs_to_nothing(run, tmp_path):
    tensors = [store.Stored("w/0", "float32", (2,), bytes(8))]
    store.write(tmp_path / "bad.tape", {"program.txt": PROGRAM.encode(), "functions.json": b"{}"}, tensors, FIELDS)
    assert "tensor 'w/0' belongs to no var" in refused(run, tmp_path / "bad.tape")


def test_bytes_that_are_no_bools_and_strings_that_overlap(run, tmp_path, monkeypatch):
    """Checksums hold, since whoever forges a tape makes them too."""
    forged = {"v/0": b"\2", "s/off/v/0": struct.pack("<3q", 0, 9, 2), "s/dat/v/0": b"ab"}
    monkeypatch.setattr(
        "retrotape.files.store._write.content", lambda path, name, part: memoryview(forged.get(name, part.data))
    )
    for kind, data, told in (
        ("bool", b"\1", "other than 0 and 1"),
        ("string", [b"a", b"b"], "are not in order"),
    ):
        program = f"%0 : {kind}[{len(data)}]"
        entries = {"program.txt": program.encode(), "functions.json": b"{}"}
        tensors = [store.Stored("v/0", kind, (len(data),), data)]
        store.write(tmp_path / f"{kind}.tape", entries, tensors, {**FIELDS, "names": {}})
        assert told in run("check", tmp_path / f"{kind}.tape").failure()


# ------------------------------------------------------------------ the bar


def test_a_long_file_has_a_bar_on_the_terminal_only(run, saved, monkeypatch):
    screen = Console(file=io.StringIO(), force_terminal=True, width=80)
    monkeypatch.setattr(verb, "console", lambda stderr: screen)
    done = run("check", saved["plain"])
    assert screen.file.getvalue() == ""
    monkeypatch.setattr(verb, "_LONG", 0)
    done = run("check", saved["plain"])
    assert "verifying" in screen.file.getvalue()
    assert done.err == ""
    screen._force_terminal = False
    screen.file.truncate(0)
    run("check", saved["plain"])
    assert "verifying" not in screen.file.getvalue()
