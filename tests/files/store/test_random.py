"""The targets of `make fuzz` with inputs changed at random: what needs no fuzzer is tried every day."""

from __future__ import annotations

import random

import pytest

from files.store.fuzz_atheris import TARGETS

RUNS = {"container": 600, "text": 4000, "fields": 4000, "functions": 3000}
PIECES = (
    *(b"", b"\0", b"\x1b[2J", b"\xff", b"\n", b'"', b"'", b"\\", b"\\u0000", b"\\ud800", b"{", b"}", b"[", b"]", b"("),
    *(b")", b",", b":", b"=", b"%", b"@", b"-1", b"0", b"99", b"1e999", b"NaN", b"9" * 500, b"9" * 5000, b"null"),
    *(b"true", b'"x"', b"{}", b"[[[[", b"(" * 3000, b"[" * 3000, b'{"a":1,"a":2}', b"Shape(", b"b'", b'Func("'),
)


def changed(seed: bytes, chance: random.Random) -> bytes:
    """Return an input with a few pieces cut out, doubled, moved, or replaced."""
    data = bytearray(seed)
    for _ in range(chance.choice([1, 1, 1, 2, 3, 8])):
        start = chance.randrange(len(data) + 1)
        end = min(len(data), start + chance.choice([0, 1, 1, 2, 5, 20]))
        match chance.randrange(4):
            case 0:
                data[start:end] = chance.choice(PIECES)
            case 1:
                data[start:end] = data[start:end] * 2
            case 2:
                place = chance.randrange(len(data) + 1)
                data[place:place] = data[start:end]
            case 3:
                data[start:end] = chance.randbytes(end - start)
    return bytes(data)


@pytest.mark.parametrize("name", TARGETS)
def test_only_refusals_come_out(name, tmp_path):
    read, seeds = TARGETS[name](tmp_path)
    assert read(seeds[0])  # or all that is made of it would be refused for the same reason
    chance = random.Random(name)
    for number in range(RUNS[name]):
        data = changed(chance.choice(seeds), chance)
        try:
            read(data)
        except Exception as error:
            pytest.fail(f"input {number} of {name}, {data!r}: {type(error).__name__}: {error}")
