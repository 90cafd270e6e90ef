from __future__ import annotations

import gc
import hashlib
import json
import os
import shutil
import threading
from types import SimpleNamespace

import numpy as np
import pytest

from files.store import forge
from files.store.reading import read_all
from retrotape.errors import CorruptTapeError, TapeUseError
from retrotape.files.store import Stored, open_tape, write
from retrotape.files.store import _container as container
from retrotape.files.store import _files as files
from retrotape.files.store import _source as source

LARGE = np.arange(50_000, dtype=np.float32)  # large enough to be mapped in a store
SMALL = np.arange(5, dtype=np.int16)
ENTRIES = {"program.txt": b"%0 : float32[]"}


@pytest.fixture(params=["file", "folder"])
def path(request, tmp_path):
    form = {} if request.param == "file" else {"store": tmp_path / "store"}
    tensors = [
        Stored("large", "float32", LARGE.shape, LARGE),
        Stored("small", "int16", SMALL.shape, SMALL),
        Stored("twin", "float32", LARGE.shape, LARGE),
        Stored("words", "string", (3,), [b"a", b"", b"bc"]),
        Stored("none", "int8", (0,), b""),
    ]
    write(tmp_path / "a.tape", ENTRIES, tensors, {"x": 1}, **form)
    return tmp_path / "a.tape"


# ------------------------------------------------------------------ memory


@pytest.mark.parametrize("mmap", [True, False])
def test_tensors_are_aligned_and_may_be_written_to(path, mmap):
    with open_tape(path, mmap=mmap) as tape:
        for name, value in (("large", LARGE), ("small", SMALL), ("none", np.empty(0, np.int8))):
            found = tape.tensor(name)
            assert found.dtype == np.uint8
            assert found.ndim == 1
            assert found.flags.writeable
            if found.size:
                assert found.ctypes.data % 64 == 0
            np.testing.assert_array_equal(found.view(value.dtype), value)
            found[:] = 7


def mapped_lines(path) -> int:
    with open("/proc/self/maps") as maps:
        return sum(str(path.parent) in line for line in maps)


def test_large_tensors_are_mapped_and_small_ones_of_a_store_are_not(path):
    with open_tape(path, mmap=True) as tape:
        assert mapped_lines(path) == 0
        small = tape.tensor("small")
        assert mapped_lines(path) == (0 if path.is_dir() else 1)
        large = tape.tensor("large")
        assert mapped_lines(path) == 1
        del small, large


def test_nothing_is_mapped_if_not_asked_for(path):
    with open_tape(path) as tape:
        large = tape.tensor("large")
        assert mapped_lines(path) == 0
        assert large.view(np.float32)[-1] == LARGE[-1]


def test_writing_changes_neither_the_file_nor_its_twin(path):
    with open_tape(path, mmap=True) as tape:
        tape.tensor("large")[:] = 1
        assert (tape.tensor("large") == 1).all()  # the same memory
        np.testing.assert_array_equal(tape.tensor("twin").view(np.float32), LARGE)
        tape.verify()
    assert read_all(path)["values"]["large"] == LARGE.tobytes()


def test_what_was_read_belongs_to_whoever_asked(path):
    with open_tape(path) as tape:
        tape.tensor("large")[:] = 1
        np.testing.assert_array_equal(tape.tensor("large").view(np.float32), LARGE)


@pytest.mark.parametrize("mmap", [True, False])
def test_arrays_outlive_the_container_and_the_file(path, mmap):
    with open_tape(path, mmap=mmap) as tape:
        large = tape.tensor("large")
    del tape
    shutil.rmtree(path.parent / "store", ignore_errors=True)
    path.unlink() if path.is_file() else shutil.rmtree(path)
    gc.collect()
    np.testing.assert_array_equal(large.view(np.float32), LARGE)
    del large
    gc.collect()
    assert mapped_lines(path) == 0


def test_a_tape_that_is_replaced_while_it_is_open_stays_what_it_was(path, tmp_path):
    form = {"store": tmp_path / "store"} if path.is_dir() else {}
    with open_tape(path) as tape:
        write(path, {"program.txt": b"new"}, [], {"x": 2}, **form)
        assert tape.entry("program.txt") == ENTRIES["program.txt"]
        np.testing.assert_array_equal(tape.tensor("large").view(np.float32), LARGE)
        tape.verify()
    assert read_all(path)["meta"] == {"x": 2}


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_no_file_stays_open(path):
    read_all(path)
    before = open_files()
    with open_tape(path) as tape:
        tape.tensor("large")
        tape.verify()
    assert open_files() <= before + 1  # a mapping has its own, until it is collected
    del tape
    forgotten = open_tape(path)
    del forgotten
    gc.collect()
    assert open_files() == before


def test_no_file_stays_open_after_an_error(tmp_path):
    (tmp_path / "bad.tape").write_bytes(forge.file()[:-1])
    before = open_files()
    with pytest.raises(CorruptTapeError):
        open_tape(tmp_path / "bad.tape")
    assert open_files() == before


@pytest.mark.parametrize("mmap", [True, False])
def test_large_tensors_are_read_into_pages_of_their_own(path, mmap, monkeypatch):
    monkeypatch.setattr(source, "_PAGES", 1)
    assert read_all(path, mmap=mmap)["values"]["large"] == LARGE.tobytes()


@pytest.mark.parametrize("pages", [1, 1 << 20])
def test_where_no_mapping_can_be_had_tensors_are_read(path, pages, monkeypatch):
    def refuse(*args, **kwargs):
        raise OSError("no more mappings")

    monkeypatch.setattr(source.mmap, "mmap", refuse)
    monkeypatch.setattr(source, "_PAGES", pages)
    assert read_all(path, mmap=True)["values"]["large"] == LARGE.tobytes()


# ------------------------------------------------------------------ what is read, and when


class Counter:
    """Counts the bytes that are read from files."""

    def __init__(self, monkeypatch):
        self.read = 0
        monkeypatch.setattr(files, "_pread", self._pread)
        monkeypatch.setattr(files, "_pread_into", self._pread_into)

    def _pread(self, descriptor, size, offset):
        data = os.pread(descriptor, size, offset)
        self.read += len(data)
        return data

    def _pread_into(self, descriptor, view, offset):
        got = os.preadv(descriptor, [view], offset)
        self.read += got
        return got


def sparse_tape(path, size: int) -> None:
    """Make a tape with one large tensor of zeros that takes no space, with a wrong sha256."""
    tape = forge.seal(forge.as_rest(forge.fields(entries={}, tensors={"x": ["uint8", [size], "0" * 64]}, strings={})))
    text = forge.header(tape, {}, {"x": ("uint8", [0], b"")})
    start = json.loads(text)["x"]["data_offsets"][0]
    text = text.replace(
        b'[0],"data_offsets":[%d,%d]' % (start, start), b'[%d],"data_offsets":[%d,%d]' % (size, start, start + size)
    )
    path.write_bytes(forge.file(tape, text=forge.padded(text), entries={}, parts={}))
    os.truncate(path, 8 + len(forge.padded(text)) + start + size)


def test_opening_a_gigabyte_reads_none_of_it(tmp_path, monkeypatch):
    path = tmp_path / "big.tape"
    sparse_tape(path, 1 << 30)
    assert path.stat().st_size > 1 << 30
    counter = Counter(monkeypatch)
    monkeypatch.setattr(source.mmap, "mmap", lambda *args, **kwargs: pytest.fail("mapped"))
    with open_tape(path) as tape:
        assert tape.tensors["x"].nbytes == 1 << 30
        assert tape.meta == {"note": "a good tape"}
    assert counter.read < 4096


def test_only_what_is_asked_for_is_read(path, monkeypatch):
    counter = Counter(monkeypatch)
    with open_tape(path) as tape:
        opened = counter.read
        assert opened < 8192
        tape.tensor("small")
        assert counter.read - opened == SMALL.nbytes
        tape.entry("program.txt")
        assert counter.read - opened == SMALL.nbytes + len(ENTRIES["program.txt"])
        tape.tensor("large")
        assert counter.read - opened == SMALL.nbytes + len(ENTRIES["program.txt"]) + LARGE.nbytes


def test_a_mapped_tensor_is_verified_once(path, monkeypatch):
    hashed = []

    def sha256(data):
        hashed.append(len(data))
        return hashlib.sha256(data)

    monkeypatch.setattr(container, "hashlib", SimpleNamespace(sha256=sha256))
    with open_tape(path, mmap=True) as tape:
        assert hashed == []
        for _ in range(3):
            tape.tensor("large")
    assert hashed == [LARGE.nbytes]


def damage(path, value: bytes) -> None:
    """Change one byte of a tensor on the disk, wherever it lies."""
    candidates = [path] if path.is_file() else [p for p in (path.parent / "store").rglob("*") if p.is_file()]
    for candidate in candidates:
        data = candidate.read_bytes()
        if value in data:
            at = data.index(value) + len(value) // 2
            candidate.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
            return
    raise AssertionError("not found")


@pytest.mark.parametrize("mmap", [True, False])
def test_damage_is_found_when_the_tensor_is_touched_and_not_before(path, mmap):
    damage(path, SMALL.tobytes())
    with open_tape(path, mmap=mmap) as tape:
        np.testing.assert_array_equal(tape.tensor("large").view(np.float32), LARGE)
        for _ in range(2):
            with pytest.raises(CorruptTapeError, match="the sha256 of tensor small is wrong, so it was changed"):
                tape.tensor("small")
        with pytest.raises(CorruptTapeError, match="is wrong, so it was changed"):
            tape.verify()


def test_what_is_read_anew_is_verified_anew(path):
    with open_tape(path) as tape:
        tape.tensor("small")
        damage(path, SMALL.tobytes())
        with pytest.raises(CorruptTapeError, match="the sha256 of tensor small is wrong"):
            tape.tensor("small")


def cut(path, value: bytes) -> None:
    """Cut the file in which a tensor lies in the middle of it, in place."""
    candidates = [path] if path.is_file() else [p for p in (path.parent / "store").rglob("*") if p.is_file()]
    (found,) = [candidate for candidate in candidates if value in candidate.read_bytes()]
    os.truncate(found, found.read_bytes().index(value) + len(value) // 2)


def test_a_file_that_is_cut_while_it_is_open_is_damaged_and_what_was_read_stays(path):
    with open_tape(path) as tape:
        held = tape.tensor("large")
        cut(path, LARGE.tobytes())
        with pytest.raises(CorruptTapeError, match=r"the file became shorter while it was read|bytes, not"):
            tape.tensor("large")
    np.testing.assert_array_equal(held.view(np.float32), LARGE)


@pytest.mark.parametrize("name", ["preadv", ""])
def test_reading_where_the_system_gives_less_than_asked_for(path, monkeypatch, name):
    """A signal may end a read early; not every system can read into memory that is given."""
    real = os.pread
    if name:
        monkeypatch.setattr(files.os, "preadv", lambda fd, views, at: _fill(views[0], real(fd, 1000, at)))
    else:
        monkeypatch.delattr(files.os, "preadv")
        monkeypatch.setattr(files, "_pread", lambda fd, size, at: real(fd, min(size, 1000), at))
    with open_tape(path) as tape:
        np.testing.assert_array_equal(tape.tensor("large").view(np.float32), LARGE)


def _fill(view: memoryview, data: bytes) -> int:
    data = data[: len(view)]
    view[: len(data)] = data
    return len(data)


def test_verifying_tells_how_far_it_is(path):
    seen = []
    with open_tape(path) as tape:
        tape.verify(lambda done, total: seen.append((done, total)))
    done = [pair[0] for pair in seen]
    assert done == sorted(done)
    assert seen[-1][0] == seen[-1][1] >= LARGE.nbytes + SMALL.nbytes
    assert len({pair[1] for pair in seen}) == 1


def test_threads_may_share_a_container(path):
    answers = []

    def ask(tape):
        for _ in range(20):
            right = tape.tensor("large").tobytes() == LARGE.tobytes()
            answers.append(right and tape.entry("program.txt") == ENTRIES["program.txt"])

    for mmap in (True, False):
        with open_tape(path, mmap=mmap) as tape:
            threads = [threading.Thread(target=ask, args=(tape,)) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    assert answers == [True] * 160


# ------------------------------------------------------------------ asking for what is not there


def test_asking_for_what_is_not_there(path):
    with open_tape(path) as tape:
        with pytest.raises(CorruptTapeError, match=r"it has no entry 'x.txt', only tape.json, program.txt\."):
            tape.entry("x.txt")
        with pytest.raises(CorruptTapeError, match="it has no tensor 'x'"):
            tape.tensor("x")
        with pytest.raises(CorruptTapeError, match="it has no tensor 's/off/words'"):
            tape.tensor("s/off/words")
        with pytest.raises(CorruptTapeError, match=r"tensor words holds strings. Call `strings\('words'\)`"):
            tape.tensor("words")
        with pytest.raises(CorruptTapeError, match=r"tensor small holds int16, not strings. Call `tensor\('small'\)`"):
            tape.strings("small")


def test_asking_a_closed_tape(path):
    tape = open_tape(path)
    assert repr(tape) == f"<open tape {str(path)!r}: 5 tensors>"
    tape.close()
    tape.close()
    assert repr(tape) == f"<closed tape {str(path)!r}: 5 tensors>"
    for ask in (lambda: tape.entry("program.txt"), lambda: tape.tensor("small"), tape.verify):
        with pytest.raises(TapeUseError, match=r"The tape .*a.tape was closed. Open it again: `open_tape\('.*'\)`"):
            ask()


def test_a_path_where_nothing_is(tmp_path):
    with pytest.raises(FileNotFoundError):
        open_tape(tmp_path / "no.tape")


def test_what_is_said_of_a_tape_cannot_be_changed(path):
    with open_tape(path) as tape, pytest.raises(TypeError):
        tape.tensors["small"] = None
