from __future__ import annotations

import hashlib
import json
import os
import re
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from files.store.reading import read_all
from retrotape.errors import RetrotapeError, TapeWriteError
from retrotape.files.store import Limits, Stored, TensorInfo, estimate, open_tape, write
from retrotape.files.store._format import ITEM_BYTES, STORABLE
from retrotape.ir import DTYPE_NAMES

ENTRIES = {"program.txt": b"%0 : float32[]", "functions.json": b"f" * 100, "opdefs.pb": b"o"}
META = {"leaves": [{"name": "kernel", "shape": [2, None]}], "ratio": 0.1, "text": "größer\n", "none": None}
LEAF = np.arange(6, dtype=np.float32).reshape(2, 3)


def some_tensors() -> list[Stored]:
    return [
        Stored("leaf_0", "float32", (2, 3), LEAF),
        Stored("v/0:1", "int8", (), b"\x07"),
        Stored("words", "string", (2, 2), [b"", b"a\0b", "größer".encode(), b"z" * 100]),
        Stored("none", "float64", (0, 5), b""),
    ]


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


# ------------------------------------------------------------------ the bytes


def test_the_same_content_gives_the_same_bytes(tmp_path):
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    again = dict(reversed(META.items()))
    write(tmp_path / "b.tape", dict(reversed(ENTRIES.items())), reversed(some_tensors()), again)
    assert (tmp_path / "a.tape").read_bytes() == (tmp_path / "b.tape").read_bytes()


def test_the_bytes_of_a_small_tape_are_those_of_the_first_release(tmp_path):
    """Whoever has to change this line has changed the format."""
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    digest = hashlib.sha256((tmp_path / "a.tape").read_bytes()).hexdigest()
    assert digest == "9298e378ed1f723c03e18f9d14d6884f25f90b58e3f415b84169669fe10f6a9f"


def test_entries_come_in_order_and_at_multiples_of_64(tmp_path):
    write(tmp_path / "a.tape", {"zebra.txt": b"z", "extra.pb": b"e", **ENTRIES}, some_tensors(), META)
    raw = (tmp_path / "a.tape").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.tape") as archive:
        names = archive.namelist()
        assert archive.testzip() is None
        for info in archive.infolist():
            named, extra = struct.unpack("<HH", raw[info.header_offset + 26 : info.header_offset + 30])
            start = info.header_offset + 30 + named + extra
            assert start % 64 == 0
            assert raw[start : start + info.file_size] == archive.read(info)
            assert info.compress_type == zipfile.ZIP_STORED
            assert info.date_time == (1980, 1, 1, 0, 0, 0)
            assert info.external_attr >> 16 == 0o100644
    first = ["program.txt", "functions.json", "opdefs.pb", "extra.pb", "zebra.txt"]
    assert names == [*first, "tensors.safetensors", "tape.json"]


def stock_header(path: Path) -> tuple[dict, int]:
    """Return what a stock reader of safetensors sees, checked as it does, and where the data begin."""
    with zipfile.ZipFile(path) as archive:
        data = archive.read("tensors.safetensors")
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    end = 0
    sizes = {"F32": 4, "U8": 1, "I8": 1, "I64": 8, "F64": 8, "BF16": 2, "BOOL": 1, "C64": 8}
    for item in sorted(header.values(), key=lambda item: item["data_offsets"]):
        start, stop = item["data_offsets"]
        assert start == end
        assert stop - start == int(np.prod(item["shape"], dtype=object)) * sizes[item["dtype"]]
        end = stop
    assert 8 + length + end == len(data)
    return header, 8 + length


def test_tensors_are_safetensors_and_each_begins_at_a_multiple_of_64(tmp_path):
    tensors = [*some_tensors(), Stored("c", "complex128", (2,), bytes(32)), Stored("q", "int4", (3,), bytes(3))]
    write(tmp_path / "a.tape", ENTRIES, tensors, META)
    header, begin = stock_header(tmp_path / "a.tape")
    assert begin % 64 == 0
    for name, item in header.items():
        if name.startswith("pad/"):
            assert item["dtype"] == "U8"
            assert item["shape"][0] < 64
        else:
            assert item["data_offsets"][0] % 64 == 0
    assert header["leaf_0"]["dtype"] == "F32"
    assert header["leaf_0"]["shape"] == [2, 3]
    assert header["c"] | {"data_offsets": None} == {"dtype": "U8", "shape": [2, 16], "data_offsets": None}
    assert header["q"] | {"data_offsets": None} == {"dtype": "U8", "shape": [3, 1], "data_offsets": None}
    assert {"s/off/words", "s/dat/words"} < set(header)


def test_stock_safetensors_reads_the_entry(tmp_path):
    safetensors = pytest.importorskip("safetensors.numpy")
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    zipfile.ZipFile(tmp_path / "a.tape").extract("tensors.safetensors", tmp_path)
    found = safetensors.load_file(tmp_path / "tensors.safetensors")
    np.testing.assert_array_equal(found["leaf_0"], LEAF)


def test_tape_json_lists_the_check_sums_of_all_else(tmp_path):
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    raw = zipfile.ZipFile(tmp_path / "a.tape").read("tape.json")
    tape = json.loads(raw)
    assert list(tape)[:2] == ["format", "check"]
    assert tape["format"] == "tape/1"
    blank = raw.replace(tape["check"].encode(), b"0" * 64)
    assert tape["check"] == hashlib.sha256(blank).hexdigest()
    assert tape["features"] == []
    assert tape["sha256"] == {name: hashlib.sha256(data).hexdigest() for name, data in ENTRIES.items()}
    assert tape["tensors"]["leaf_0"] == ["float32", [2, 3], hashlib.sha256(LEAF.tobytes()).hexdigest()]
    assert tape["strings"] == {"words": [2, 2]}
    assert raw.count(b"\n") == len(tape)  # one field a line, but format and check


def test_it_says_how_many_bytes_it_wrote_and_how_many_it_will_write(tmp_path):
    written = write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    assert written == (tmp_path / "a.tape").stat().st_size
    with zipfile.ZipFile(tmp_path / "a.tape") as archive:
        assert estimate(some_tensors()) == archive.getinfo("tensors.safetensors").file_size
    assert estimate([]) == 64


def test_an_estimate_calls_nothing():
    assert estimate([Stored("x", "float32", (1 << 28,), lambda: 1 / 0)]) == (1 << 30) + 128


def test_zip64_is_what_other_readers_expect(tmp_path, monkeypatch):
    """With the border between short and long numbers moved down, so that no gigabytes are needed."""
    monkeypatch.setattr("retrotape.files.store._archive.LARGE", 200)
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    assert b"PK\x06\x06" in (tmp_path / "a.tape").read_bytes()
    with zipfile.ZipFile(tmp_path / "a.tape") as archive:
        assert archive.testzip() is None
        assert archive.read("program.txt") == ENTRIES["program.txt"]
    assert read_all(tmp_path / "a.tape")["values"]["leaf_0"] == LEAF.tobytes()


@pytest.mark.slow
def test_a_tape_of_five_gigabytes(tmp_path):
    part = np.arange(5 << 26, dtype=np.uint32)  # 1.25 GiB
    tensors = [Stored(f"x{n}", "uint32", part.shape, part) for n in range(4)]
    write(tmp_path / "a.tape", ENTRIES, tensors, META)
    with zipfile.ZipFile(tmp_path / "a.tape") as archive:
        assert archive.read("program.txt") == ENTRIES["program.txt"]
        assert json.loads(archive.read("tape.json"))["ratio"] == 0.1
    with open_tape(tmp_path / "a.tape") as tape:
        tape.verify()
        np.testing.assert_array_equal(tape.tensor("x3").view(np.uint32), part)
    (tmp_path / "a.tape").unlink()


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
        (Stored("", "int8", (1,), b"x"), "'' is no name for a tensor. Use letters, digits"),
        (Stored('a"b', "int8", (1,), b"x"), "is no name for a tensor"),
        (Stored("pad/0", "int8", (1,), b"x"), "'pad/0' is no name for a tensor"),
        (Stored("s/off/x", "int8", (1,), b"x"), "'s/off/x' is no name for a tensor"),
        (Stored("x" * 201, "int8", (1,), b"x"), "is no name for a tensor"),
        (Stored("x", "resource", (1,), b"x"), "tensor x has dtype 'resource', which is not data. Leave it out"),
        (Stored("x", "float31", (1,), b"x"), "tensor x has dtype 'float31'"),
        (Stored("x", "int8", (-1,), b"x"), r"tensor x has the impossible shape \[-1\]"),
        (Stored("x", "int8", (2**40, 2**40), b"x"), "tensor x has the impossible shape"),
        (Stored("x", "string", (0, 2**40, 2**40), []), "tensor x has the impossible shape"),
        (Stored("x", "int8", (1,) * 255, b"x"), "tensor x has the impossible shape"),
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
        estimate([Stored("x", "variant", (), b"")])


@pytest.mark.parametrize("second", ["int8", "string"])
@pytest.mark.parametrize("first", ["int8", "string"])
def test_two_tensors_of_one_name(first, second, form, tmp_path):
    pair = [Stored("x", dtype, (1,), [b"a"] if dtype == "string" else b"a") for dtype in (first, second)]
    refused("tensor x is given twice. Give each a name of its own", tmp_path / "a.tape", {}, pair, {}, **form)


@pytest.mark.parametrize("name", ["Program.txt", "../x", "", "tape.json", "tensors.safetensors", "a b"])
def test_entries_have_plain_names(name, form, tmp_path):
    refused(
        "is no name for an entry. Use lower case, and not tape.json", tmp_path / "a.tape", {name: b""}, [], {}, **form
    )


@pytest.mark.parametrize(
    ("meta", "text"),
    [
        ({"sha256": 1, "check": 2}, "the fields check, sha256 are made here. Give them other names"),
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
        (Limits(entries=4), "3 entries and two more are more than 4. Save fewer"),
        (Limits(total_bytes=175), "the tensors have 176 bytes, more than 175. Save fewer"),
        (Limits(program_bytes=13), r"program.txt has 14 bytes, more than 13. Raise `Limits\(program_bytes=...\)`"),
    ],
)
def test_what_exceeds_the_limits_of_readers_is_not_written(limits, text, form, tmp_path):
    refused(text, tmp_path / "a.tape", ENTRIES, some_tensors(), META, limits=limits, **form)


def test_a_header_that_exceeds_the_limits_of_readers_is_not_written(tmp_path):
    text = "the header of 5 tensors has .* bytes, more than readers take. Save fewer tensors"
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
