"""A damaged tape is noticed, or nothing that is in it has changed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from files.store import forge
from files.store.reading import read_all
from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.files.store import Container, Stored, write

OURS = (CorruptTapeError, UnsafeTapeError, TapeVersionError)
FLIPS = (*(1 << bit for bit in range(8)), 0xFF)


def small_tape(path: Path, **form) -> None:
    tensors = [
        Stored("a", "float32", (2,), bytes(range(8))),
        Stored("b", "bool", (3,), b"\1\0\1"),
        Stored("c", "string", (2,), [b"x", b"yz"]),
    ]
    write(path, {"program.txt": b"%0 : float32[2]", "opdefs.pb": b"o"}, tensors, {"inputs": {"x": 0}}, **form)


def outcome(path: Path, good: dict, mmap: bool) -> str:
    """Return how reading went. Anything but an error of ours, or what was saved, fails the test."""
    found = attempt(path, mmap)
    if isinstance(found, OURS):
        return type(found).__name__
    assert found == good
    return "same"


def attempt(path: Path, mmap: bool) -> Any:
    """Return what is in a tape, or why it was refused."""
    try:
        return read_all(path, mmap=mmap)
    except OURS as error:
        return error


def test_cut_short_at_every_length(tmp_path):
    path = tmp_path / "a.tape"
    small_tape(path)
    data = path.read_bytes()
    for length in range(len(data)):
        path.write_bytes(data[:length])
        with pytest.raises(CorruptTapeError, match=r"it is empty|not a tape or was cut short|it was cut short: it has"):
            read_all(path)
    path.write_bytes(data)
    read_all(path)


def change_every_byte(path: Path) -> dict[str, int]:
    """Return how often reading went how."""
    good, data = read_all(path), path.read_bytes()
    seen: dict[str, int] = {}
    for at in range(len(data)):
        for flip in FLIPS:
            path.unlink()
            path.write_bytes(data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :])
            how = outcome(path, good, mmap=bool(at % 2))
            seen[how] = seen.get(how, 0) + 1
    return seen


def test_every_byte_changed(tmp_path):
    small_tape(tmp_path / "a.tape")
    seen = change_every_byte(tmp_path / "a.tape")
    assert seen.keys() <= {"CorruptTapeError", "TapeVersionError"}  # not "same": no byte may change without notice
    assert seen["CorruptTapeError"] > 1000


def test_a_reader_that_does_not_verify_would_be_noticed(tmp_path, monkeypatch):
    small_tape(tmp_path / "a.tape")
    monkeypatch.setattr(Container, "verify", lambda self: None)
    monkeypatch.setattr(Container, "_part", lambda self, name: self._source.array(name)[0])
    with pytest.raises(AssertionError):
        change_every_byte(tmp_path / "a.tape")


def test_every_byte_removed_or_doubled(tmp_path):
    path = tmp_path / "a.tape"
    small_tape(path)
    good, data = read_all(path), path.read_bytes()
    for at in range(len(data)):
        for changed in (data[:at] + data[at + 1 :], data[:at] + data[at : at + 1] + data[at:]):
            path.unlink()
            path.write_bytes(changed)
            assert outcome(path, good, mmap=True) != "same"


def files_of(folder: Path) -> Iterator[Path]:
    return (path for path in sorted(folder.rglob("*")) if path.is_file())


def test_every_byte_of_a_folder_changed_removed_and_cut_off(tmp_path):
    path = tmp_path / "a.tape"
    small_tape(path, store=tmp_path / "store")
    good = read_all(path)
    for file in [*files_of(path), *files_of(tmp_path / "store")]:
        data = file.read_bytes()
        for at in range(len(data)):
            flipped = [data[:at] + bytes([data[at] ^ flip]) + data[at + 1 :] for flip in FLIPS]
            for changed in (*flipped, data[:at], data[:at] + data[at + 1 :]):
                file.unlink()
                file.write_bytes(changed)
                assert outcome(path, good, mmap=bool(at % 2)) != "same"
        file.unlink()
        assert outcome(path, good, mmap=True) != "same"
        file.write_bytes(data)
    assert outcome(path, good, mmap=True) == "same"


# ------------------------------------------------------------------ at random


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return `data` with a few changes of the kinds that find mistakes in readers."""
    changed = bytearray(data)
    for _ in range(chance.choice([1, 1, 1, 2, 4])):
        at = chance.randrange(len(changed) + 1)
        size = chance.choice([1, 2, 4, 8, 30, 64])
        kind = chance.randrange(6)
        if kind == 0:
            changed[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 1:
            number = chance.choice([0, 1, 22, 0x7F, 0xFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 2**63 - 1, 2**64 - 1])
            width = chance.choice([2, 4, 8])
            changed[at : at + width] = (number & (256**width - 1)).to_bytes(width, "little")
        elif kind == 2:
            del changed[at : at + size]
        elif kind == 3:
            other = chance.randrange(len(changed) + 1)
            changed[at:at] = changed[other : other + size]
        elif kind == 4:
            other = chance.randrange(len(changed) + 1)
            changed[at : at + size] = changed[other : other + size]
        else:
            changed[at:at] = chance.choice([b'"tape.json":', b'"', b"[", b"{}", b"-", b"0", b"9" * 30, b"\\u"])
    return bytes(changed)


def forged(chance: random.Random) -> bytes:
    """Return a tape with changes in its middle and a right checksum, so that it is not what stops it."""
    rest, text = forge.as_rest(forge.fields()), None
    which = chance.randrange(3)
    if which != 1:
        rest = mutated(rest, chance)
    tape = forge.seal(rest)
    if which != 0:
        text = forge.padded(mutated(forge.header(tape), chance))
    return forge.file(tape, text=text)


def refused_or_consistent(path: Path, mmap: bool) -> bool:
    """Return whether a tape was refused. One that is taken must be what it says it is."""
    found = attempt(path, mmap)
    if isinstance(found, OURS):
        assert str(found).isprintable()
        return True
    for name, info in found["tensors"].items():
        value = found["values"][name]
        if info.dtype != "string":
            assert forge.sha256(value) == info.sha256
            assert len(value) == info.nbytes
    return False


def fuzz(folder: Path, rounds: int, seed: int) -> tuple[int, int]:
    """Return how many of as many tapes with changes, and with forged checksums, were refused."""
    chance = random.Random(seed)
    path = folder / "a.tape"
    small_tape(path)
    good, data = read_all(path), path.read_bytes()
    changed = sealed = 0
    for number in range(rounds):
        path.unlink()
        if number % 2:
            path.write_bytes(mutated(data, chance))
            changed += outcome(path, good, mmap=bool(number % 4 == 1)) != "same"
        else:
            path.write_bytes(forged(chance))
            sealed += refused_or_consistent(path, mmap=bool(number % 4))
    return changed, sealed


def test_two_thousand_changes_at_random(tmp_path):
    changed, sealed = fuzz(tmp_path, 2000, seed=0)
    assert changed > 980  # a few changes put the same bytes back
    assert 800 < sealed < 1000  # some only change the note, which is free text


@pytest.mark.slow
def test_fifty_thousand_changes_at_random(tmp_path):
    changed, sealed = fuzz(tmp_path, 50_000, seed=1)
    assert changed > 24_500
    assert sealed > 20_000
