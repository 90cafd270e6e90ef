"""The bytes of a file: the same for the same content, aligned, and what a stock reader of safetensors expects."""

from __future__ import annotations

import hashlib
import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import safetensors
import safetensors.numpy

from files.store.contents import ENTRIES, LEAF, META, some_tensors
from files.store.reading import read_all
from retrotape.errors import CorruptTapeError
from retrotape.files.store import Stored, estimate, open_tape, write
from retrotape.files.store._format import ITEM_BYTES, STORABLE, stored_as

# `safetensors` is imported at the top on purpose: without it this file fails, and no test in it is skipped.


def header_of(path: Path) -> tuple[dict, int]:
    """Return the header as JSON, and where the data begin."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + length]), 8 + length


# ------------------------------------------------------------------ the same content, the same bytes


def test_the_same_content_gives_the_same_bytes(tmp_path):
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    again = dict(reversed(META.items()))
    write(tmp_path / "b.tape", dict(reversed(ENTRIES.items())), reversed(some_tensors()), again)
    assert (tmp_path / "a.tape").read_bytes() == (tmp_path / "b.tape").read_bytes()


def test_the_bytes_of_a_small_tape_are_those_of_the_first_release(tmp_path):
    """Whoever has to change this line has changed the format."""
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    digest = hashlib.sha256((tmp_path / "a.tape").read_bytes()).hexdigest()
    assert digest == "a0484b7b7885702f17733cb39e9909eb291e9d9780f40e66a0015a0383c554e8"


def test_it_returns_how_many_bytes_it_wrote_and_the_estimate_is_exact(tmp_path):
    written = write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    assert written == (tmp_path / "a.tape").stat().st_size == estimate(ENTRIES, some_tensors(), META)
    assert write(tmp_path / "b.tape", {}, [], {}) == estimate({}, [], {})


def test_an_estimate_calls_nothing():
    large = [Stored("x", "float32", (1 << 28,), lambda: 1 / 0)]
    assert 1 << 30 < estimate({}, large, {}) < (1 << 30) + 1000


# ------------------------------------------------------------------ the layout


def test_everything_comes_in_order_and_begins_at_a_multiple_of_64(tmp_path):
    entries = {"zebra.txt": b"z", "extra.pb": b"", **ENTRIES}
    write(tmp_path / "a.tape", entries, some_tensors(), META)
    header, begin = header_of(tmp_path / "a.tape")
    raw = (tmp_path / "a.tape").read_bytes()
    assert begin % 64 == 0
    named = [name for name in header if not name.startswith("pad/")]
    first = ["tape.json", "program.txt", "functions.json", "opdefs.pb", "extra.pb", "zebra.txt"]
    assert named == [*first, "leaf_0", "none", "s/dat/words", "s/off/words", "v/0:1"]
    assert [name for name in header if name.startswith("pad/")] == [f"pad/{n}" for n in range(len(header) - len(named))]
    end = 0
    for name, item in header.items():
        start, stop = item["data_offsets"]
        assert start == end
        end = stop
        if name.startswith("pad/"):
            assert item["dtype"] == "U8"
            assert item["shape"] == [stop - start]
            assert 0 < stop - start < 64
            assert raw[begin + start : begin + stop] == bytes(stop - start)
        else:
            assert start % 64 == 0
        if name in entries:
            assert item == {"dtype": "U8", "shape": [len(entries[name])], "data_offsets": [start, stop]}
            assert raw[begin + start : begin + stop] == entries[name]
    assert begin + end == len(raw)


def test_dtypes_that_safetensors_lacks_are_bytes_with_one_more_dimension(tmp_path):
    tensors = [*some_tensors(), Stored("c", "complex128", (2,), bytes(32)), Stored("q", "int4", (3,), bytes(3))]
    write(tmp_path / "a.tape", ENTRIES, tensors, META)
    header, _ = header_of(tmp_path / "a.tape")
    kinds = {name: (item["dtype"], item["shape"]) for name, item in header.items()}
    assert kinds["leaf_0"] == ("F32", [2, 3])
    assert kinds["c"] == ("U8", [2, 16])
    assert kinds["q"] == ("U8", [3, 1])
    assert kinds["s/off/words"] == ("I64", [5])
    assert kinds["s/dat/words"] == ("U8", [111])


def test_tape_json_lists_the_checksums_of_all_else(tmp_path):
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    header, begin = header_of(tmp_path / "a.tape")
    raw = (tmp_path / "a.tape").read_bytes()[begin : begin + header["tape.json"]["data_offsets"][1]]
    tape = json.loads(raw)
    assert list(tape)[:2] == ["format", "check"]
    assert tape["format"] == "tape/1"
    blank = raw.replace(tape["check"].encode(), b"0" * 64)
    assert tape["check"] == hashlib.sha256(blank).hexdigest()
    assert tape["features"] == []
    assert tape["entries"] == {name: [len(data), hashlib.sha256(data).hexdigest()] for name, data in ENTRIES.items()}
    assert tape["tensors"]["leaf_0"] == ["float32", [2, 3], hashlib.sha256(LEAF.tobytes()).hexdigest()]
    assert tape["strings"] == {"words": [2, 2]}
    assert raw.count(b"\n") == len(tape)  # one field a line, but format and check


# ------------------------------------------------------------------ the stock library


def test_the_stock_library_reads_a_tape(tmp_path):
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    found = safetensors.numpy.load_file(tmp_path / "a.tape")
    np.testing.assert_array_equal(found["leaf_0"], LEAF)
    assert found["v/0:1"].shape == ()
    assert found["none"].shape == (0, 5)
    for name, data in ENTRIES.items():
        assert found[name].dtype == np.uint8
        assert found[name].tobytes() == data
    assert json.loads(found["tape.json"].tobytes())["ratio"] == 0.1
    words = found["s/dat/words"].tobytes()
    ends = found["s/off/words"].tolist()
    assert [words[start:end] for start, end in pairwise(ends)] == some_tensors()[2].data


@pytest.mark.parametrize("dtype", sorted(STORABLE - {"string"}))
def test_the_stock_library_knows_every_dtype(dtype, tmp_path):
    write(tmp_path / "a.tape", ENTRIES, [Stored("x", dtype, (2, 3), bytes(6 * ITEM_BYTES[dtype]))], {})
    with safetensors.safe_open(tmp_path / "a.tape", "numpy") as opened:
        found = opened.get_slice("x")
        assert (found.get_dtype(), tuple(found.get_shape())) == stored_as(dtype, (2, 3))
        assert opened.get_tensor("program.txt").tobytes() == ENTRIES["program.txt"]


def test_the_stock_library_maps_it_one_tensor_at_a_time(tmp_path):
    write(tmp_path / "a.tape", {}, [Stored("x", "float32", (2, 3), LEAF)], {})
    with safetensors.safe_open(tmp_path / "a.tape", "numpy") as opened:
        assert {name for name in opened.keys() if not name.startswith("pad/")} == {"tape.json", "x"}
        np.testing.assert_array_equal(opened.get_slice("x")[1:], LEAF[1:])


def test_what_the_stock_library_writes_anew_is_not_a_tape(tmp_path):
    """The header has one form only: the same tensors in another order are refused."""
    write(tmp_path / "a.tape", ENTRIES, some_tensors(), META)
    safetensors.numpy.save_file(safetensors.numpy.load_file(tmp_path / "a.tape"), tmp_path / "b.tape")
    with pytest.raises(CorruptTapeError, match="it is not a tape or was cut short"):
        read_all(tmp_path / "b.tape")


@pytest.mark.slow
def test_a_tape_of_five_gigabytes(tmp_path):
    part = np.arange(5 << 26, dtype=np.uint32)  # 1.25 GiB
    tensors = [Stored(f"x{n}", "uint32", part.shape, part) for n in range(4)]
    write(tmp_path / "a.tape", ENTRIES, tensors, META)
    with safetensors.safe_open(tmp_path / "a.tape", "numpy") as opened:
        assert opened.get_tensor("program.txt").tobytes() == ENTRIES["program.txt"]
        assert json.loads(opened.get_tensor("tape.json").tobytes())["ratio"] == 0.1
        assert opened.get_slice("x3")[len(part) - 1 :].tolist() == [part[-1]]
    with open_tape(tmp_path / "a.tape") as tape:
        tape.verify()
        np.testing.assert_array_equal(tape.tensor("x3").view(np.uint32), part)
    (tmp_path / "a.tape").unlink()
