from __future__ import annotations

import hashlib
import os
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from files.store.contents import ENTRIES, LEAF, META, some_tensors
from files.store.reading import read_all
from retrotape.errors import RetrotapeError, TapeWriteError
from retrotape.files.store import Limits, Stored, TensorInfo, estimate, open_tape, write
from retrotape.files.store._format import ITEM_BYTES, STORABLE
from retrotape.ir import DTYPE_NAMES


@pytest.fixture(params=["file", "folder"])
def form(request, tmp_path) -> dict:
    return {} if request.param == "file" else {"store": tmp_path / "store"}


# ------------------------------------------------------------------ what comes back


def test_all_that_was_saved_comes_back(form, tmp_path):
    path = tmp_path / "a.tape"
    write(path, ENTRIES, some_tensors(), META, **form)
    found = read_all(path)
    assert found["meta"] == META
    assert found["entries"] == ENTRIES
    assert list(found["entries"]) == ["program.txt", "functions.json", "opdefs.pb"]
    assert found["values"]["leaf_0"] == LEAF.tobytes()
    assert found["values"]["words"] == [b"", b"a\0b", "größer".encode(), b"z" * 100]
    assert found["tensors"]["leaf_0"] == TensorInfo("float32", (2, 3), 24, hashlib.sha256(LEAF.tobytes()).hexdigest())
    assert found["tensors"]["v/0:1"][:3] == ("int8", (), 1)
    assert found["tensors"]["none"][:3] == ("float64", (0, 5), 0)
    assert found["tensors"]["words"][:3] == ("string", (2, 2), 5 * 8 + 111)
    assert set(found["tensors"]) == {"leaf_0", "v/0:1", "words", "none"}


def test_a_tape_with_nothing_in_it(form, tmp_path):
    write(tmp_path / "a.tape", {}, [], {}, **form)
    assert read_all(tmp_path / "a.tape") == {"meta": {}, "entries": {}, "tensors": {}, "values": {}}


@pytest.mark.parametrize("dtype", sorted(STORABLE - {"string"}))
def test_every_dtype_comes_back_by_name(dtype, form, tmp_path):
    data = bytes(range(2)) * (ITEM_BYTES[dtype] * 3)
    write(tmp_path / "a.tape", {}, [Stored("x", dtype, (2, 3), data)], {}, **form)
    with open_tape(tmp_path / "a.tape") as tape:
        assert tape.tensors["x"][:3] == (dtype, (2, 3), len(data))
        assert tape.tensor("x").tobytes() == data


def test_every_dtype_that_is_data_can_be_stored():
    assert set(DTYPE_NAMES.values()) - STORABLE == {"resource", "variant"}


@pytest.mark.parametrize(
    "data",
    [
        LEAF,
        LEAF.tobytes(),
        bytearray(LEAF.tobytes()),
        memoryview(LEAF),
        lambda: LEAF,
        lambda: LEAF.tobytes(),
        np.ascontiguousarray(LEAF).view(np.uint8),
    ],
    ids=["array", "bytes", "bytearray", "memoryview", "function", "function of bytes", "bytes of an array"],
)
def test_data_are_whatever_has_bytes(data, form, tmp_path):
    write(tmp_path / "a.tape", {}, [Stored("x", "float32", (2, 3), data)], {}, **form)
    assert read_all(tmp_path / "a.tape")["values"]["x"] == LEAF.tobytes()


def test_a_function_is_called_once_and_only_one_tensor_is_held(tmp_path, form):
    alive, most, calls = 0, 0, []

    class Held(bytearray):
        def __del__(self):
            nonlocal alive
            alive -= 1

    def make(number):
        def data():
            nonlocal alive, most
            calls.append(number)
            alive += 1
            most = max(most, alive)
            return Held(struct.pack("<q", number) * 1000)

        return data

    write(tmp_path / "a.tape", {}, (Stored(f"x{n}", "int64", (1000,), make(n)) for n in range(9)), {}, **form)
    assert calls == list(range(9))
    assert most <= 2  # the next is made before the last is let go
    assert read_all(tmp_path / "a.tape")["values"]["x8"] == struct.pack("<q", 8) * 1000


def test_functions_that_fail_leave_nothing(tmp_path, form):
    def data():
        raise FileNotFoundError("a file of the user")

    with pytest.raises(FileNotFoundError, match="a file of the user"):
        write(tmp_path / "a.tape", {}, [Stored("x", "int8", (1,), data)], {}, **form)
    assert not (tmp_path / "a.tape").exists()
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_the_sha256_of_strings_depends_on_where_they_end(tmp_path):
    for name, strings in (("a", [b"ab", b"c"]), ("b", [b"a", b"bc"]), ("c", [b"ab", b"c"])):
        write(tmp_path / name, {}, [Stored("x", "string", (2,), strings)], {})
    digests = [open_tape(tmp_path / name).tensors["x"].sha256 for name in "abc"]
    assert digests[0] == digests[2] != digests[1]


# ------------------------------------------------------------------ what cannot be saved


def refused(text: str, path: Path, *args, **more) -> None:
    with pytest.raises(TapeWriteError, match=text) as caught:
        write(path, *args, **more)
    assert isinstance(caught.value, RetrotapeError)
    assert isinstance(caught.value, OSError)
    assert str(caught.value).startswith(f"Could not save the tape {path}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.path == str(path)


@pytest.mark.parametrize(
    ("tensor", "text"),
    [
        (Stored("", "int8", (1,), b"x"), "'' is not a valid name for a tensor. Use letters, digits"),
        (Stored('a"b', "int8", (1,), b"x"), "is not a valid name for a tensor"),
        (Stored("pad/0", "int8", (1,), b"x"), "'pad/0' is not a valid name for a tensor"),
        (Stored("s/off/x", "int8", (1,), b"x"), "'s/off/x' is not a valid name for a tensor"),
        (Stored("x" * 201, "int8", (1,), b"x"), "is not a valid name for a tensor"),
        (Stored("x", "resource", (1,), b"x"), "tensor x has dtype 'resource', which is not data. Leave it out"),
        (Stored("x", "float31", (1,), b"x"), "tensor x has dtype 'float31'"),
        (Stored("x", "int8", (-1,), b"x"), r"tensor x has the invalid shape \[-1\]"),
        (Stored("x", "int8", (2**40, 2**40), b"x"), "tensor x has the invalid shape"),
        (Stored("x", "string", (0, 2**40, 2**40), []), "tensor x has the invalid shape"),
        (Stored("x", "int8", (1,) * 255, b"x"), "tensor x has the invalid shape"),
        (Stored("x", "int32", (2,), b"1234567"), r"tensor x has 7 bytes, and int32 \[2\] has 8. Give all elements"),
        (Stored("x", "int32", (2,), lambda: b"123456789"), "tensor x has 9 bytes"),
        (Stored("x", "int8", (1,), 7), "the data of tensor x is int, not plain bytes. Give `data.tobytes"),
        (Stored("x", "int8", (2,), np.zeros((4,), np.int8)[::2]), "the data of tensor x is ndarray, not plain bytes"),
        (Stored("x", "bool", (2,), b"\1\2"), "tensor x of bool holds bytes other than 0 and 1. Save it as uint8"),
        (Stored("x", "string", (2,), [b"a"]), r"tensor x has 1 strings, and its shape is \[2\]. Give one for each"),
        (Stored("x", "string", (1,), ["a"]), "not all are bytes. Encode them first"),
    ],
)
def test_a_tensor_that_no_reader_would_take_is_not_written(tensor, text, form, tmp_path):
    path = tmp_path / "a.tape"
    refused(text, path, {}, [Stored("first", "int8", (1,), b"x"), tensor], {}, **form)
    assert not path.exists()


def test_estimates_refuse_the_same():
    with pytest.raises(TapeWriteError, match="tensor x has dtype 'variant', which is not data"):
        estimate({}, [Stored("x", "variant", (), b"")], {})


@pytest.mark.parametrize("second", ["int8", "string"])
@pytest.mark.parametrize("first", ["int8", "string"])
def test_two_tensors_of_one_name(first, second, form, tmp_path):
    pair = [Stored("x", dtype, (1,), [b"a"] if dtype == "string" else b"a") for dtype in (first, second)]
    refused("tensor x is given twice. Give each a name of its own", tmp_path / "a.tape", {}, pair, {}, **form)


@pytest.mark.parametrize(("entries", "name"), [({}, "tape.json"), ({"notes": b""}, "notes")])
@pytest.mark.parametrize("dtype", ["int8", "string"])
def test_a_tensor_with_the_name_of_an_entry(dtype, entries, name, form, tmp_path):
    tensor = Stored(name, dtype, (1,), [b"a"] if dtype == "string" else b"a")
    text = f"tensor {name} has the name of an entry. Give it another name"
    refused(text, tmp_path / "a.tape", entries, [tensor], {}, **form)


@pytest.mark.parametrize("name", ["Program.txt", "../x", "", "tape.json", "pad/0", "a b"])
def test_entries_have_plain_names(name, form, tmp_path):
    refused(
        "is not a valid name for an entry. Use lower case, and not tape.json",
        tmp_path / "a.tape",
        {name: b""},
        [],
        {},
        **form,
    )


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"entries": 1, "check": 2}, "the fields check, entries are reserved. Give them other names"),
        ({"features": ["quantum"]}, r"the features \['quantum'\] are unknown. Add them to `store._format.FEATURES`"),
        ({"x": float("nan")}, "`meta` cannot be written as JSON: .* Use only numbers, text, lists"),
        ({"x": b"bytes"}, "`meta` cannot be written as JSON: Object of type bytes is not JSON serializable"),
        ({"x": "\ud800"}, "`meta` cannot be written as JSON: .*surrogates not allowed"),
        ({"x": 10**500}, "readers would refuse `meta`: tape.json holds a number of 400 digits or more"),
    ],
)
def test_fields_that_no_reader_would_take(meta, text, form, tmp_path):
    refused(text, tmp_path / "a.tape", {}, [], meta, **form)


def test_fields_that_are_too_deep(form, tmp_path):
    deep: list = []
    for _ in range(70):
        deep = [deep]
    refused("too deep: 72, the limit is 64. Make `meta` simpler", tmp_path / "a.tape", {}, [], {"x": deep}, **form)
    write(tmp_path / "a.tape", {}, [], {"x": deep}, limits=Limits(json_depth=72), **form)
    assert read_all(tmp_path / "a.tape", limits=Limits(json_depth=72))["meta"] == {"x": deep}


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        (
            Limits(json_memory=600),
            r"readers would refuse `meta`: tape.json takes too many bytes of memory: [\d,]+, the",
        ),
        (Limits(tensors=4), "5 tensors are more than 4. Save fewer"),
        (Limits(entries=3), "3 entries and tape.json are more than 3. Save fewer"),
        (Limits(total_bytes=175), "the tensors have 176 bytes, more than 175. Save fewer"),
        (Limits(program_bytes=13), r"program.txt has 14 bytes, more than 13. Raise `Limits\(program_bytes=...\)`"),
    ],
)
def test_what_exceeds_the_limits_of_readers_is_not_written(limits, text, form, tmp_path):
    refused(text, tmp_path / "a.tape", ENTRIES, some_tensors(), META, limits=limits, **form)


def test_a_header_that_exceeds_the_limits_of_readers_is_not_written(tmp_path):
    text = "the header of 5 tensors has 1,088 bytes, more than 300. Save fewer tensors"
    refused(text, tmp_path / "a.tape", ENTRIES, some_tensors(), META, limits=Limits(header_bytes=300))


def test_what_is_too_much_is_said_before_any_data_are_made(form, tmp_path):
    tensors = [Stored("x", "int8", (1,), lambda: 1 / 0)]
    text = "tape.json takes too many bytes of memory"
    refused(text, tmp_path / "a.tape", {}, tensors, {}, limits=Limits(json_memory=10), **form)


# ------------------------------------------------------------------ paths


def test_no_parent(form, tmp_path):
    parent = tmp_path / "no" / "such"
    text = re.escape(f"there is no directory '{parent}'. Create it first: `os.makedirs('{parent}')`.")
    refused(text, parent / "a.tape", {}, [], {}, **form)
    assert not (tmp_path / "no").exists()


def test_a_parent_that_is_a_file(form, tmp_path):
    (tmp_path / "file").write_text("x")
    refused("there is no directory", tmp_path / "file" / "a.tape", {}, [], {}, **form)


def test_a_path_that_is_a_directory(tmp_path):
    refused(r"it is a directory. Give the name of a file, such as '.*name.tape', or `store=`", tmp_path, {}, [], {})


def test_a_path_that_is_a_file_while_a_folder_is_asked_for(tmp_path):
    (tmp_path / "a.tape").write_text("precious")
    text = "it is a file, and with `store` a tape is a folder. Choose another name"
    refused(text, tmp_path / "a.tape", {}, [], {}, store=tmp_path / "store")
    assert (tmp_path / "a.tape").read_text() == "precious"


def test_a_store_that_is_a_file(tmp_path):
    (tmp_path / "store").write_text("precious")
    refused("a file is in the way of the folder", tmp_path / "a.tape", {}, [], {}, store=tmp_path / "store")
    assert not (tmp_path / "a.tape").exists()


def test_a_link_is_not_written_through(form, tmp_path):
    (tmp_path / "a.tape").symlink_to("elsewhere.tape")
    refused(
        "it is a symbolic link. Save to the file itself: '.*elsewhere.tape'", tmp_path / "a.tape", {}, [], {}, **form
    )
    assert (tmp_path / "a.tape").is_symlink()


def test_a_pipe_or_device_is_not_replaced(form, tmp_path):
    os.mkfifo(tmp_path / "a.tape")
    text = "it is a device or a pipe, and would be gone. Give the name of a file"
    refused(text, tmp_path / "a.tape", {}, [], {}, **form)
    assert (tmp_path / "a.tape").is_fifo()


def test_nothing_is_replaced_that_must_not_be(form, tmp_path):
    path = tmp_path / "a.tape"
    write(path, {}, [], {"version": 1}, overwrite=False, **form)
    text = "it exists already. Choose another name, or `overwrite=True`."
    refused(text, path, {}, [Stored("x", "int8", (1,), lambda: 1 / 0)], {"version": 2}, overwrite=False, **form)
    assert read_all(path)["meta"] == {"version": 1}
    write(path, {}, [], {"version": 3}, **form)
    assert read_all(path)["meta"] == {"version": 3}


def test_nothing_is_replaced_that_came_in_the_meantime(form, tmp_path):
    path = tmp_path / "a.tape"

    def meanwhile():
        if not form:
            path.write_text("precious")
        else:
            (path / "tape.json").write_text("precious")
        return b"x"

    tensors = [Stored("x", "int8", (1,), meanwhile)]
    refused("it exists already", path, {}, tensors, {}, overwrite=False, **form)
    assert (path / "tape.json" if form else path).read_text() == "precious"
    assert [name for name in os.listdir(tmp_path) if name.endswith(".tmp")] == []


def test_a_tape_that_only_its_owner_can_read_stays_so(tmp_path):
    path = tmp_path / "a.tape"
    write(path, {}, [], {})
    path.chmod(0o600)
    write(path, {}, [], {"new": True})
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_path_in_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write("a.tape", {}, [], {"x": 1})
    write("b.tape", {}, [], {"x": 2}, store="store")
    assert read_all("a.tape")["meta"] == {"x": 1}
    assert read_all("b.tape")["meta"] == {"x": 2}


# ------------------------------------------------------------------ the cost of importing it


def test_importing_it_loads_neither_numpy_nor_tensorflow():
    code = "import sys, retrotape.files.store; print(sorted({'numpy', 'tensorflow', 'keras'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"
