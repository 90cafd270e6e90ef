from __future__ import annotations

import re

import numpy as np
import pytest

from cli.making import FIELDS, PROGRAM, flip, spawn, write
from retrotape.cli import _listing
from retrotape.cli._tape import open_saved
from retrotape.files import store

NO_TENSORFLOW = "assert not {'tensorflow', 'keras'} & set(sys.modules), 'loaded'"


def test_what_a_tape_holds(run, saved):
    shown = run("show", saved["plain"], "--json").json()
    assert shown["format"] == "tape/1"
    assert shown["form"] == "file"
    assert shown["bytes"] == saved["plain"].stat().st_size
    assert shown["written_by"]["tensorflow"].startswith("2.")
    assert shown["equations"] == sum(shown["ops"].values()) == sum(row["equations"] for row in shown["lines"])
    assert shown["ops"]["MatMul"] == 1
    assert shown["lines"][0]["file"].endswith("conftest.py")
    assert shown["lines"][0]["function"] == "layer"
    names = {row["name"]: row for row in shown["names"]}
    assert {name: row["kind"] for name, row in names.items()} == {
        "x": "input",
        "hidden": "target",
        "loss": "target",
        "w": "variable",
        "b": "variable",
    }
    assert names["w"]["trainable"] is True
    assert names["x"]["dtype"] == "float32"
    assert names["x"]["shape"] == [2, 2]
    assert names["x"]["bytes"] == 16
    with store.open_tape(saved["plain"]) as tape:
        kept = {"tensors": len(tape.tensors), "bytes": sum(info.nbytes for info in tape.tensors.values())}
    assert shown["kept"] == kept


def test_the_text_says_the_same(run, saved):
    done = run("show", saved["plain"])
    assert done.code == 0
    assert "tape/1" in done.out
    assert "TensorFlow 2." in done.out
    assert re.search(r"^ w +variable, trainable +float32\[2,2\] +16 B", done.out, re.M)
    assert re.search(r"^ x +input +float32\[2,2\] +16 B", done.out, re.M)
    assert re.search(r"^ MatMul +1 *$", done.out, re.M)
    assert re.search(r"conftest.py:\d+ +layer +\d+", done.out)


def test_a_folder_is_shown_like_a_file(run, saved):
    file, folder = (run("show", saved[name], "--json").json() for name in ("plain", "folder"))
    assert folder["form"] == "folder"
    assert folder["features"] == ["blobs"]
    for name in ("names", "ops", "kept", "equations"):
        assert folder[name] == file[name]
    assert "a folder and its store" in run("show", saved["folder"]).out


def test_values_of_a_variable_and_what_is_redacted(run, saved, loop):
    (v,) = [row for row in run("show", loop, "--json").json()["names"] if row["name"] == "v"]
    assert v["values"] == 21
    assert "variable, trainable, 21 values" in run("show", loop).out
    assert "input, redacted" in run("show", saved["redacted"]).out


def test_inputs_come_first_and_what_is_trained_before_what_is_not(run, tmp_path):
    variables = [
        {"name": name, "trainable": name == "b", "versions": [n], "made_by": [-1]} for n, name in enumerate(("a", "b"))
    ]
    names = {"a": {"variable": 0}, "b": {"variable": 1}, "y": {"var": 1}, "z": {"var": 0}}
    path = write(tmp_path / "order.tape", names=names, variables=variables)
    assert [row["name"] for row in run("show", path, "--json").json()["names"]] == ["z", "y", "b", "a"]


def test_the_program_is_folded(run, loop):
    done = run("show", loop, "--ops")
    assert "the last 4 equations 19 more times" in done.out
    assert done.out.count("AssignSubVariableOp") == 1 + 1  # the table of ops, and the first step
    assert "# rate" in done.out
    whole = run("show", loop, "--ops", "--json").json()["program"]
    assert sum("AssignSubVariableOp" in line for line in whole) == 20


def test_every_equation_is_shown_or_told_of(loop, saved):
    for path in (loop, saved["plain"]):
        with open_saved(path) as tape:
            lines = list(_listing.lines(tape))
            eqns = len(tape.program.eqns)
        told = [re.search(r"equations (\d+) to (\d+)$", line) for line in lines if line.startswith("# ...")]
        folded = sum(int(found[2]) - int(found[1]) + 1 for found in told)
        assert sum(" = " in line and not line.startswith("#") for line in lines) + folded == eqns


def test_kept_values_in_numbers(run, saved):
    rows = {row["name"]: row for row in run("show", saved["plain"], "--values", "--json").json()["values"]}
    x = rows["x"]
    assert (x["least"], x["mean"], x["largest"], x["nonfinite"], x["made_by"]) == (1.0, 2.5, 4.0, 0, None)
    assert re.search(
        r"^ %\d+ +x +leaf +float32\[2,2\] +16 B +1 +2.5 +4", run("show", saved["plain"], "--values").out, re.M
    )


def test_numbers_of_every_kind(run, tmp_path):
    kinds = {
        "bfloat16": (np.array([0x3F80, 0x4000], "<u2"), 1.0, 2.0, 0),
        "float32": (np.array([np.nan, np.inf, -3.0], "<f4"), -3.0, -3.0, 2),
        "int64": (np.array([-5, 7], "<i8"), -5, 7, 0),
        "bool": (np.array([0, 1], "u1"), 0, 1, 0),
        "complex64": (np.array([1j], "<c8"), None, None, 0),
        "float16": (np.zeros(0, "<f2"), None, None, 0),
    }
    sizes = [len(array) for array, *_ in kinds.values()]
    program = "\n".join(f"%{n} : {kind}[{size}]" for n, (kind, size) in enumerate(zip(kinds, sizes, strict=True)))
    tensors = [
        store.Stored(f"v/{n}", kind, (len(array),), array.tobytes())
        for n, (kind, (array, *_)) in enumerate(kinds.items())
    ]
    entries = {"program.txt": program.encode(), "functions.json": b"{}"}
    store.write(tmp_path / "kinds.tape", entries, tensors, {**FIELDS, "names": {}})
    found = run("show", tmp_path / "kinds.tape", "--values", "--json").json()["values"]
    assert [(row["least"], row["largest"], row["nonfinite"]) for row in found] == [row[1:] for row in kinds.values()]


def test_showing_needs_no_tensorflow(saved):
    for options in ((), ("--json",), ("--ops", "--values")):
        done = spawn("show", saved["plain"], *options, after=NO_TENSORFLOW)
        assert (done.code, done.err) == (0, "")
    assert spawn("show", saved["plain"], after="sys.modules['tensorflow'] = sys; " + NO_TENSORFLOW).code != 0


def test_tensors_are_not_read(run, saved, tmp_path):
    damaged = flip(saved["plain"], tmp_path / "damaged.tape", "tensors")
    assert run("show", damaged).code == 0
    assert "is wrong, so it was changed" in run("show", damaged, "--values").failure()


@pytest.mark.slow
def test_a_gigabyte_is_shown_without_tensorflow(tmp_path):
    path = tmp_path / "large.tape"
    program = PROGRAM.replace("[2]", "[16384,16384]")
    entries = {"program.txt": program.encode(), "functions.json": b"{}"}
    ones = store.Stored("v/0", "float32", (16384, 16384), lambda: np.ones(2**28, np.float32))
    store.write(path, entries, [ones], FIELDS)
    assert path.stat().st_size > 2**30
    done = spawn("show", path, after=NO_TENSORFLOW)
    path.unlink()
    assert (done.code, done.err) == (0, "")
    assert "1.1 GB" in done.out


# ------------------------------------------------------------------ terminals


def test_in_a_pipe_no_line_is_cut(run, tmp_path):
    name = "block/" * 25 + "kernel"
    shown = run("show", write(tmp_path / "long.tape", names={name: {"var": 0}}), "--ops")
    assert re.search(rf"^ {name} +input +float32\[2\] +8 B", shown.out, re.M)
    assert "…" not in shown.out


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_numbers_stay_whole_on_a_narrow_terminal(run, saved, columns):
    done = run("show", saved["plain"], FORCE_COLOR="1", COLUMNS=str(columns), TERM="xterm")
    plain = re.sub(r"\x1b\[[\d;]*m", "", done.out)
    tables = plain.split("kind", 1)[1]
    assert max(map(len, tables.splitlines())) <= columns
    assert len(re.findall(r"\b16 B", tables)) == 3
    assert "MatMul" in tables


def test_colours_only_on_a_terminal(run, saved):
    assert "\x1b[" not in run("show", saved["plain"], "--ops").out
    assert "\x1b[" in run("show", saved["plain"], "--ops", FORCE_COLOR="1", TERM="xterm").out


def test_nothing_in_a_file_can_steer_the_terminal(run, tmp_path):
    evil = "\x1b]0;owned\x07\x1b[2J\r\u202eabc"
    program = PROGRAM.replace("steps.py", "\\u001b[2Jsteps.py")
    fields = {"names": {evil: {"var": 0}, "y": {"var": 1}}, "tensorflow": evil}
    path = write(tmp_path / "evil.tape", program, **fields)
    for options in ((), ("--ops",), ("--values",)):
        done = run("show", path, *options)
        assert done.code == 0
        assert all(line.isprintable() for line in done.out.split("\n"))
        assert "\\x1b[2J" in done.out
    path = write(tmp_path / "evil.tape", program.replace("Neg", "Ne\x1bg"))
    assert "the name of an op has characters that cannot be printed" in run("show", path).failure()


def test_an_op_has_a_name_that_can_be_printed(run, tmp_path):
    done = run("show", write(tmp_path / "evil.tape", PROGRAM.replace("Neg", "Ne\x1bg")))
    assert done.code == 1
    assert "the name of an op has characters that cannot be printed" in done.err
    assert done.err.strip().isprintable()
