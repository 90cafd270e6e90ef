"""JSON in a tape: read within limits, and only where it has one meaning."""

from __future__ import annotations

import re

import pytest

from retrotape.errors import CorruptTapeError, UnsafeTapeError
from retrotape.files.store import Limits, open_tape, write


def test_an_entry_that_is_json(tmp_path):
    path = tmp_path / "a.tape"
    write(path, {"functions.json": b'{"a": [1, "\\u00e9"]}'}, [], {})
    with open_tape(path) as opened:
        assert opened.document("functions.json") == {"a": [1, "é"]}


@pytest.mark.parametrize(
    ("data", "error", "text"),
    [
        (
            b"[" + b"[]," * 4_000_000 + b"1]",
            UnsafeTapeError,
            "functions.json takes too many bytes of memory: .*json_memory=",
        ),
        (
            b"[" * 100 + b"]" * 100,
            UnsafeTapeError,
            "lists and objects in functions.json are too deep: 100, the limit is 64",
        ),
        (b'{"a":1,"a":2}', UnsafeTapeError, "functions.json has 'a' twice"),
        (b'"\xff"', CorruptTapeError, "functions.json is not UTF-8"),
        (b"{", CorruptTapeError, "functions.json is not JSON: .* at character 1"),
    ],
    ids=["large", "deep", "twice", "bytes", "cut"],
)
def test_an_entry_that_is_json_and_hostile(data, error, text, tmp_path):
    path = tmp_path / "a.tape"
    write(path, {"functions.json": data}, [], {})
    with open_tape(path) as opened, pytest.raises(error, match=text):
        opened.document("functions.json")


def test_the_memory_limit_can_be_raised_as_the_error_says(tmp_path):
    path = tmp_path / "a.tape"
    write(path, {}, [], {"note": [0] * 1000})
    with pytest.raises(UnsafeTapeError) as caught:
        open_tape(path, limits=Limits(json_memory=20_000))
    enough = int(re.search(r"Limits\(json_memory=(\d+)\)", str(caught.value))[1])
    with open_tape(path, limits=Limits(json_memory=enough)) as opened:
        assert opened.meta == {"note": [0] * 1000}


def test_no_memory_limit(tmp_path):
    path = tmp_path / "a.tape"
    write(path, {}, [], {"note": 1})
    with open_tape(path, limits=Limits(json_memory=None)) as opened:
        assert opened.meta == {"note": 1}
