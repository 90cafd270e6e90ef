"""Files that must be refused: a function or a row of a table for each, with the error and a piece of its text."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import socket
import struct
import zipfile
from collections.abc import Callable
from inspect import signature
from pathlib import Path
from typing import Any, NamedTuple

from files.store import forge
from files.store.forge import as_rest, entry_table, fields, file, folder, padded, seal, tensor_table
from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.files.store import Limits


class Attack(NamedTuple):
    """How to build a file, and how it must be refused."""

    build: Callable[[Path], Path]
    error: type[Exception]
    text: str
    limits: Limits


ATTACKS: dict[str, Attack] = {}


def add(name: str, error: type[Exception], text: str, make: Any, limits: Limits | None = None) -> None:
    """Register a function that returns the bytes of a file, or that builds one in a directory and returns its path."""

    def build(directory: Path) -> Path:
        made = make(directory) if "directory" in signature(make).parameters else make()
        if isinstance(made, Path):
            return made
        path = directory / "hostile.tape"
        path.write_bytes(made)
        return path

    assert name not in ATTACKS, name
    ATTACKS[name] = Attack(build, error, text, limits or Limits())


def attack(error: type[Exception], text: str, limits: Limits | None = None) -> Callable[[Any], Any]:
    """Register the function below under its name."""

    def register(make: Any) -> Any:
        add(make.__name__, error, text, make, limits)
        return make

    return register


# ------------------------------------------------------------------ not a tape


@attack(CorruptTapeError, "it is empty. Give the path of a saved tape")
def empty_file():
    return b""


@attack(CorruptTapeError, "begins with .*PNG.*, so it is not a tape or was cut short. Give the path of a saved tape")
def a_picture():
    return b"\x89PNG\r\n\x1a\n" + bytes(100)


@attack(CorruptTapeError, "it is not a tape")
def a_pickle():
    return pickle.dumps(os.getcwd)


@attack(CorruptTapeError, "it is not a tape")
def a_weights_file_of_hdf5():
    return b"\x89HDF\r\n\x1a\n" + bytes(2000)


@attack(CorruptTapeError, "it is not a tape")
def a_tape_inside_gzip():
    return gzip.compress(file())


@attack(CorruptTapeError, r"begins with b['\"]PK\\x03\\x04.*, so it is not a tape")
def a_tape_inside_a_zip():
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        for name, data in {**forge.ENTRIES, "tape.json": forge.good_tape()}.items():
            archive.writestr(name, data)
    return packed.getvalue()


@attack(CorruptTapeError, "it is not a tape")
def other_tensors():
    text = padded(b'{"weight":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]}}')
    return len(text).to_bytes(8, "little") + text + forge.LEAF


@attack(CorruptTapeError, "it is not a tape")
def no_tensors_at_all():
    return (2).to_bytes(8, "little") + b"{}"


@attack(CorruptTapeError, "it is not a tape")
def script_in_front():
    return b"#!/bin/sh\nrm -rf /\n" + file()


@attack(UnsafeTapeError, r"symbolic link, which may change while it is read. Open the file itself: '.*good.tape'")
def a_link_to_a_tape(directory: Path):
    (directory / "good.tape").write_bytes(file())
    (directory / "link.tape").symlink_to("good.tape")
    return directory / "link.tape"


@attack(UnsafeTapeError, "it is a FIFO, not a file. Copy the tape to a file")
def a_pipe_that_never_ends(directory: Path):
    os.mkfifo(directory / "pipe.tape")
    return directory / "pipe.tape"


@attack(UnsafeTapeError, "it is a device")
def a_device(directory: Path):
    return Path("/dev/zero")


# ------------------------------------------------------------------ the length of the header


TEXT = forge.header()
LENGTH = len(padded(TEXT))


@attack(CorruptTapeError, r"tape.json begins with b'\{\"tape.json.*, not with its format and checksum")
def header_of_no_bytes():
    return file(length=0)


@attack(CorruptTapeError, r"tape.json begins with b' \{\"format.*, not with its format and checksum")
def header_one_byte_short():
    return file(length=LENGTH - 1)


@attack(CorruptTapeError, r"tape.json begins with b'\"format.*, not with its format and checksum")
def header_one_byte_long():
    return file(length=LENGTH + 1)


@attack(CorruptTapeError, "it was cut short: it has .* bytes, and tape.json ends at byte")
def header_that_ends_with_the_file():
    return file(length=len(file()) - 8)


@attack(CorruptTapeError, "it was cut short: it has .* bytes, and tape.json ends at byte 92233720368547")
def header_of_exabytes():
    return file(length=2**63)


@attack(CorruptTapeError, "it was cut short: it has .* bytes, and tape.json ends at byte 184467440737095")
def header_of_the_greatest_length():
    return file(length=2**64 - 1)


@attack(UnsafeTapeError, r"the header is too large: 200,000,008, .*`Limits\(header_bytes=200000008\)`")
def header_that_is_too_large(directory: Path):
    return sparse(directory, file(length=200_000_000), 1 << 30)


@attack(UnsafeTapeError, "the header is too large", Limits(header_bytes=100))
def larger_header_than_agreed():
    return file()


@attack(CorruptTapeError, "the header has .* at byte 0, and according to tape.json it should be")
def another_tape_json_behind_the_header():
    return file(length=len(file()) - 8) + forge.good_tape()


@attack(CorruptTapeError, "the header has .* at byte 0, and according to tape.json it should be")
def header_that_hides_something():
    return file(text=padded(TEXT) + b" " * 64)


@attack(CorruptTapeError, "the header has .* at byte 0")
def header_without_padding():
    return file(text=TEXT)


@attack(CorruptTapeError, "the header has .* at byte")
def header_of_megabytes_that_differs_at_its_end():
    names = [f"t{number:05}" for number in range(20_000)]
    parts = {name: ("uint8", [0], b"") for name in names}
    table = {name: ["uint8", [0], forge.sha256(b"")] for name in names}
    tape = seal(as_rest(fields(entries={}, tensors=table, strings={})))
    text = padded(forge.header(tape, {}, parts)[:-1] + b" }")
    return file(tape, text=text, entries={}, parts=parts)


def sparse(directory: Path, data: bytes, size: int) -> Path:
    """Make a file that goes on after `data` with zeros that take no space."""
    path = directory / "hostile.tape"
    path.write_bytes(data)
    os.truncate(path, size)
    return path


# ------------------------------------------------------------------ the first item of the header


SIZE = len(forge.good_tape())
ITEM = b'{"tape.json":{"dtype":"U8","shape":[%d],"data_offsets":[0,%d]}'
FIRST = ITEM % (SIZE, SIZE)
assert TEXT.startswith(FIRST)
NO_TAPE = "begins with .*, so it is not a tape or was cut short"


def with_first(item: bytes) -> bytes:
    """Return a good tape whose header begins with `item`."""
    return file(text=padded(TEXT.replace(FIRST, item)))


FIRST_ITEMS = {
    "metadata_in_front": b'{"__metadata__":{"format":"tape/1"},' + FIRST[1:],
    "space_in_front": b" " + FIRST,
    "byte_order_mark_in_front": b"\xef\xbb\xbf" + FIRST,
    "name_with_escapes": FIRST.replace(b"tape.json", b"t\\u0061pe.json"),
    "space_within_the_first_item": FIRST.replace(b"[0,", b"[0, "),
    "fields_of_the_first_item_in_another_order": b'{"tape.json":{"shape":[%d],"dtype":"U8","data_offsets":[0,%d]}'
    % (SIZE, SIZE),
    "tape_json_with_two_sizes": ITEM % (SIZE, SIZE - 1),
    "tape_json_of_no_bytes": ITEM % (0, 0),
    "tape_json_of_negative_size": ITEM % (-SIZE, -SIZE),
    "tape_json_with_a_leading_zero": FIRST.replace(b"%d" % SIZE, b"0%d" % SIZE),
    "tape_json_of_a_real_size": FIRST.replace(b"%d" % SIZE, b"%d.0" % SIZE),
    "tape_json_of_many_digits": ITEM % (10**80, 10**80),
    "tape_json_not_at_the_beginning": ITEM.replace(b"[0,", b"[64,") % (SIZE, SIZE),
    "tape_json_of_another_dtype": FIRST.replace(b"U8", b"I8"),
    "tape_json_of_two_dimensions": FIRST.replace(b"[%d]" % SIZE, b"[1,%d]" % SIZE),
    "tape_json_with_more_to_say": FIRST[:-1] + b',"dtype":"U8"}',
}
for _name, _item in FIRST_ITEMS.items():
    add(_name, CorruptTapeError, NO_TAPE, lambda item=_item: with_first(item))


@attack(CorruptTapeError, "it was cut short: it has .* bytes, and tape.json ends at byte 10000")
def tape_json_of_a_petabyte():
    return with_first(ITEM % (10**15 - 1, 10**15 - 1))


@attack(CorruptTapeError, "the checksum of tape.json is wrong")
def tape_json_one_byte_short():
    return with_first(ITEM % (SIZE - 1, SIZE - 1))


@attack(CorruptTapeError, "the checksum of tape.json is wrong")
def tape_json_one_byte_long():
    return with_first(ITEM % (SIZE + 1, SIZE + 1))


@attack(UnsafeTapeError, r"tape.json takes too many bytes of memory: 650,000,000, .*`Limits\(json_memory=2080000000\)`")
def tape_json_that_is_too_large(directory: Path):
    return sparse(directory, with_first(ITEM % (130_000_000, 130_000_000)), 1 << 30)


# ------------------------------------------------------------------ the rest of the header


ITEMS = json.loads(TEXT)


def span(name: str, start: int = 0, end: int = 0) -> bytes:
    """Return the offsets of a tensor in the header, moved by `start` and `end`."""
    first, last = ITEMS[name]["data_offsets"]
    return b'"data_offsets":[%d,%d]' % (first + start, last + end)


def item(name: str) -> bytes:
    """Return the item of a tensor in the header, with the comma before it."""
    return f',"{name}":{json.dumps(ITEMS[name], separators=(",", ":"))}'.encode()


PADDING = next(name for name, value in ITEMS.items() if value["data_offsets"][1] == ITEMS["leaf"]["data_offsets"][0])
LEAF_NAME = b'"leaf":'
# What stands in the header of a good tape, and what stands there instead.
HEADERS: dict[str, tuple[bytes, bytes]] = {
    "tensors_that_overlap": (span("leaf"), span("flags", end=21)),
    "tensor_in_the_place_of_tape_json": (span("leaf"), b'"data_offsets":[0,24]'),
    "tensor_in_the_padding": (span("leaf"), span("leaf", -24, -24)),
    "tensors_with_a_gap": (item(PADDING), b""),
    "padding_of_another_name": (f'"{PADDING}"'.encode(), b'"pad/99"'),
    "padding_of_another_dtype": (item(PADDING), item(PADDING).replace(b"U8", b"I8")),
    "padding_in_two_dimensions": (b'"shape":[61]', b'"shape":[1,61]'),
    "padding_at_the_end": (
        item("s/off/words"),
        item("s/off/words") + b',"pad/9":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}',
    ),
    "offsets_that_go_backwards": (span("leaf"), b'"data_offsets":[%d,%d]' % tuple(ITEMS["leaf"]["data_offsets"][::-1])),
    "offsets_that_are_negative": (span("leaf"), b'"data_offsets":[-64,-40]'),
    "offsets_beyond_the_file": (span("leaf"), b'"data_offsets":[18446744073709551552,18446744073709551576]'),
    "offsets_one_byte_late": (span("leaf"), span("leaf", 1, 1)),
    "offsets_as_reals": (span("leaf"), span("leaf").replace(b"]", b".0]")),
    "offsets_as_text": (span("leaf"), b'"data_offsets":["%d","%d"]' % tuple(ITEMS["leaf"]["data_offsets"])),
    "offsets_with_an_exponent": (b'"shape":[61]', b'"shape":[61e0]'),
    "offsets_with_a_leading_zero": (b'"shape":[61]', b'"shape":[061]'),
    "three_offsets": (span("leaf"), span("leaf").replace(b"]", b",0]")),
    "dtype_of_another_size": (b'"F32"', b'"F64"'),
    "dtype_of_the_same_size": (b'"F32"', b'"I32"'),
    "dtype_that_is_none": (b'"F32"', b'"O8"'),
    "another_shape_in_the_header": (b"[2,3]", b"[3,2]"),
    "shape_of_exabytes_in_the_header": (b"[2,3]", b"[4294967296,4294967296,4294967296]"),
    "metadata_in_the_header": (item("leaf"), b',"__metadata__":{"a":"b"}' + item("leaf")),
    "tensor_twice_in_the_header": (item("leaf"), item("leaf") * 2),
    "tensor_with_the_name_of_another": (b'"flags"', b'"leaf"'),
    "tape_json_twice_in_the_header": (LEAF_NAME, b'"tape.json":'),
    "dtype_twice_in_the_header": (b'"dtype":"F32"', b'"dtype":"F32","dtype":"F64"'),
    "two_tensors_exchanged": (
        item("flags") + item(PADDING) + item("leaf"),
        item("leaf") + item(PADDING) + item("flags"),
    ),
    "tensor_that_the_header_lacks": (item("s/off/words"), b""),
    "tensor_that_tape_json_lacks": (item("s/off/words"), item("s/off/words") + item("leaf").replace(b"leaf", b"more")),
    "entry_that_the_header_lacks": (item("opdefs.pb"), b""),
    "entry_that_is_a_tensor": (b'"opdefs.pb"', b'"opdefs"'),
    "space_in_the_header": (LEAF_NAME, LEAF_NAME + b" "),
    "line_break_in_the_header": (LEAF_NAME, b"\n" + LEAF_NAME),
    "escape_in_the_header": (b'"leaf"', b'"l\\u0065af"'),
    "comment_in_the_header": (LEAF_NAME, b"/* a good tape */" + LEAF_NAME),
    "header_that_is_not_utf8": (b'"leaf"', b'"le\xff\xfe"'),
    "header_that_clears_the_screen": (b'"leaf"', b'"\x1b[2J"'),
    "header_with_nothing_in_it": (item("leaf"), b",null"),
    "header_that_is_not_json": (item("leaf"), b",}{" + item("leaf")),
    "header_as_deep_as_the_stack": (item("leaf"), b',"leaf":' + b"[" * 100_000),
    "header_with_a_long_number": (b"[2,3]", b"[" + b"9" * 100_000 + b"]"),
    "header_with_an_infinity": (b"[2,3]", b"[Infinity]"),
    "header_that_ends_early": (item("leaf"), b"}" + item("leaf")),
    "header_that_never_ends": (item("s/off/words") + b"}", item("s/off/words")),
}


def with_header(old: bytes, new: bytes) -> bytes:
    """Return a good tape with something else in its header."""
    assert TEXT.count(old) >= 1, old
    return file(text=padded(TEXT.replace(old, new, 1)))


for _name, _edit in HEADERS.items():
    add(_name, CorruptTapeError, "the header has .* at byte .* should be", lambda edit=_edit: with_header(*edit))


@attack(CorruptTapeError, "the header has .* at byte")
def something_hidden_after_the_header():
    return file(text=TEXT + b" " * (len(padded(TEXT)) - len(TEXT) - 1) + b"!")


@attack(CorruptTapeError, "the header has .* at byte")
def header_padded_with_zeros():
    return file(text=padded(TEXT).replace(b" ", b"\0"))


# ------------------------------------------------------------------ the data


@attack(CorruptTapeError, "something was appended: it has .* bytes and should have")
def something_follows():
    return file() + b"\n"


@attack(CorruptTapeError, "something was appended: it has .* bytes and should have")
def two_tapes_in_one_file():
    return file() + file()


@attack(CorruptTapeError, "something was appended: it has .* bytes and should have")
def zip_behind_the_tape():
    return file() + a_tape_inside_a_zip()


@attack(CorruptTapeError, "it was cut short: it has .* bytes and should have")
def last_byte_missing():
    return file()[:-1]


@attack(CorruptTapeError, "it was cut short: it has .* bytes and should have")
def only_tape_json():
    return file()[: 8 + LENGTH + SIZE]


@attack(CorruptTapeError, "it was cut short: it has .* bytes, and tape.json ends at byte")
def only_the_header():
    return file()[: 8 + LENGTH]


@attack(CorruptTapeError, "the padding before (the entry program.txt|tensor leaf) is not zeros")
def something_hidden_in_the_padding():
    return file(fill=b"x")


@attack(CorruptTapeError, "the padding before tensor leaf is not zeros")
def one_byte_hidden_before_a_tensor():
    good, at = file(), 8 + LENGTH + ITEMS["leaf"]["data_offsets"][0] - 1
    return good[:at] + b"!" + good[at + 1 :]


@attack(CorruptTapeError, "the sha256 of the entry program.txt is wrong, so it was changed")
def entry_that_was_exchanged():
    return file(entries={**forge.ENTRIES, "program.txt": b"%0 : float32[9,9]"})


@attack(CorruptTapeError, "the sha256 of tensor leaf is wrong, so it was changed")
def tensor_that_was_exchanged():
    return file(parts={**forge.PARTS, "leaf": ("float32", [2, 3], bytes(24))})


# ------------------------------------------------------------------ the table of entries


def with_entry(name: str, data: bytes = b"x", row: Any = None) -> bytes:
    """Return a good tape with one more entry, in the header and in the table."""
    table = entry_table(**{name: row or [len(data), forge.sha256(data)]})
    return file(seal(as_rest(fields(entries=table))), entries={**forge.ENTRIES, name: data})


def with_entries(table: Any) -> bytes:
    """Return a good tape with another table of entries."""
    return file(seal(as_rest(fields(entries=table))))


ENTRY_NAMES = {
    "name_that_leaves_the_folder": ("../evil.txt", r"'\.\./evil\.txt' is not a valid name for an entry"),
    "name_that_is_absolute": ("/etc/passwd", "'/etc/passwd' is not a valid name"),
    "name_with_backslashes": ("..\\evil.txt", "is not a valid name"),
    "name_on_another_drive": ("C:evil.txt", "'C:evil.txt' is not a valid name"),
    "name_that_ends_early": ("program.txt\0.sh", r"\\x00"),
    "name_that_clears_the_screen": ("\x1b[2J\nAll is well.", r"\\x1b\[2J\\n"),
    "name_that_differs_in_case": ("Program.txt", "'Program.txt' is not a valid name"),
    "name_of_a_folder": ("blobs/", "'blobs/' is not a valid name"),
    "name_that_is_empty": ("", "'' is not a valid name"),
    "name_that_is_hidden": (".hidden", r"'\.hidden' is not a valid name"),
    "name_that_is_very_long": ("a" * 65535, "is not a valid name"),
    "name_that_is_not_ascii": ("größer.txt", "is not a valid name"),
    "name_that_breaks_out_of_the_header": ('x":{"dtype":"U8"},"y', "is not a valid name"),
    "entry_named_as_padding": ("pad/0", "'pad/0' is not a valid name for an entry"),
    "entry_named_as_metadata": ("__metadata__", "'__metadata__' is not a valid name for an entry"),
}
for _name, (_entry, _text) in ENTRY_NAMES.items():
    add(_name, UnsafeTapeError, _text, lambda entry=_entry: with_entry(entry))


@attack(UnsafeTapeError, "'tape.json' is not a valid name for an entry")
def tape_json_in_its_own_table():
    return with_entries(entry_table(**{"tape.json": [SIZE, "0" * 64]}))


@attack(UnsafeTapeError, "the name leaf is that of an entry and of a tensor")
def entry_with_the_name_of_a_tensor():
    return with_entry("leaf")


@attack(UnsafeTapeError, "the name tape.json is that of an entry and of a tensor")
def tensor_with_the_name_of_tape_json():
    return with_row(["float32", [2, 3], DIGEST], "tape.json")


@attack(CorruptTapeError, "the header has .* at byte")
def entry_that_is_missing():
    return with_entries(entry_table(**{"functions.json": [1, forge.sha256(b"x")]}))


@attack(CorruptTapeError, "the header has .* at byte")
def entry_of_no_bytes_that_is_missing():
    return with_entries(entry_table(**{"functions.json": [0, forge.sha256(b"")]}))


@attack(CorruptTapeError, "the header has .* at byte")
def entry_that_nobody_knows():
    return file(entries={**forge.ENTRIES, "run.sh": b"rm -rf /"})


@attack(CorruptTapeError, "the header has .* at byte")
def entries_in_another_order():
    return file(entries=dict(reversed(forge.ENTRIES.items())))


ENTRY_ROWS = {
    "entry_without_a_size": (["0" * 64], "the entry program.txt should have a size and a sha256, and has"),
    "entry_with_more_to_say": ([17, "0" * 64, 0], "the entry program.txt should have a size and a sha256"),
    "entry_that_is_a_number": (7, "the entry program.txt should have a size and a sha256, and has 7"),
    "entry_of_negative_size": ([-1, "0" * 64], "the entry program.txt has the size -1, not a number of bytes"),
    "entry_of_a_true_size": ([True, "0" * 64], "the entry program.txt has the size True"),
    "entry_of_a_real_size": ([17.0, "0" * 64], "the entry program.txt has the size 17.0"),
    "checksum_that_is_none": ([17, "ABC"], "the sha256 of 'program.txt' is 'ABC', not 64 hexadecimal digits"),
    "checksum_that_is_a_number": ([17, 0], "the sha256 of 'program.txt' is 0, not 64 hexadecimal digits"),
    "entry_of_another_size": ([18, "0" * 64], "the header has .* at byte"),
}
for _name, (_row, _text) in ENTRY_ROWS.items():
    add(_name, CorruptTapeError, _text, lambda row=_row: with_entries(entry_table(**{"program.txt": row})))


@attack(UnsafeTapeError, r"the number of entries is too high: 1,003, the limit is 32. .*`Limits\(entries=1003\)`")
def thousand_entries():
    return with_entries(entry_table(**{f"e{number}.txt": [0, forge.sha256(b"")] for number in range(1000)}))


@attack(UnsafeTapeError, r"the entry program.txt is too large: 300,000,000, .*`Limits\(program_bytes=300000000\)`")
def program_that_is_too_large():
    return with_entries(entry_table(**{"program.txt": [300_000_000, "0" * 64]}))


@attack(UnsafeTapeError, r"the entry functions.json is too large")
def functions_that_are_too_large():
    return with_entries(entry_table(**{"functions.json": [300_000_000, "0" * 64]}))


@attack(UnsafeTapeError, "the entry opdefs.pb is too large: 18,446,744,073,709,551,615")
def entry_of_sixteen_exabytes():
    return with_entries(entry_table(**{"opdefs.pb": [2**64 - 1, "0" * 64]}))


# ------------------------------------------------------------------ tape.json


@attack(TapeVersionError, "needs the format tape/2; this version of retrotape reads tape/1 .*Install a newer one")
def later_format():
    return file(seal(as_rest(fields()), b'{"format":"tape/2","check":"'))


@attack(TapeVersionError, "needs the features lazy, quantum; this version of retrotape reads tape/1 with the features")
def later_features():
    return file(seal(as_rest(fields(features=["quantum", "blobs", "lazy"]))))


@attack(CorruptTapeError, "not with its format and checksum")
def no_format():
    return file(b'{"features":[]}')


@attack(CorruptTapeError, "not with its format and checksum")
def format_that_is_no_name():
    return file(seal(as_rest(fields()), b'{"format":"\x1b[2J","check":"'))


@attack(CorruptTapeError, "the checksum of tape.json is wrong, so it was changed after it was written")
def tape_json_that_was_edited():
    return file(seal(as_rest(fields())).replace(b"a good tape", b"a bad  tape"))


@attack(CorruptTapeError, "tape.json is not JSON: .* at character")
def not_json():
    return file(seal(b'",\n"features":[}'))


@attack(CorruptTapeError, "tape.json is not JSON")
def json_that_stops():
    return file(seal(b'",\n"features":['))


@attack(CorruptTapeError, "tape.json is not JSON: Extra data")
def json_twice():
    return file(seal(as_rest(fields()) + as_rest(fields())[1:]))


@attack(CorruptTapeError, "tape.json is not UTF-8")
def json_in_another_encoding():
    return file(seal(as_rest(fields(note="?")).replace(b"?", b"\xe9")))


@attack(CorruptTapeError, "tape.json is not UTF-8")
def half_of_a_surrogate_pair():
    return file(seal(as_rest(fields(note="?")).replace(b"?", b"\\ud800")))


@attack(UnsafeTapeError, "lists and objects in tape.json are too deep: 66, the limit is 64")
def deep_lists():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" * 65 + b"]" * 65)))


@attack(UnsafeTapeError, "lists and objects in tape.json are too deep")
def lists_as_deep_as_the_stack():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" * 1_000_000)))


DEEP = b"[" * 100 + b"]" * 100


@attack(UnsafeTapeError, "are too deep")
def deep_lists_between_marks_in_strings():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b'["\\"",' + DEEP + b',"\\""]')))


@attack(UnsafeTapeError, "are too deep")
def deep_lists_between_backslashes_in_strings():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b'["\\\\",' + DEEP + b',"\\\\"]')))


@attack(UnsafeTapeError, "are too deep")
def deep_lists_among_strings_that_close_them():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b'["]"' + b',["]"' * 100 + b"]" * 101)))


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory: .* the limit is 603,979,776")
def millions_of_lists():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" + b"[]," * 5_000_000 + b"[]]")))


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory")
def millions_of_strings():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" + b'"",' * 5_000_000 + b'""]')))


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory")
def millions_of_objects():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" + b'{"a":1},' * 2_000_000 + b"1]")))


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory")
def millions_of_reals():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" + b"1.5," * 2_000_000 + b"1]")))


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory")
def long_text_with_one_wide_letter():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b'"' + b"a" * 55_000_000 + '😀"'.encode())))


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory")
def long_text_with_one_wide_letter_escaped():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b'"' + b"a" * 55_000_000 + b'\\ud83d\\ude00"')))


@attack(CorruptTapeError, "tape.json is not JSON")
def marks_that_never_end():
    return file(seal(as_rest(fields(note="?")).replace(b'?"', b'\\"' * 4_000_000)))


@attack(CorruptTapeError, "tape.json is not JSON")
def backslashes_without_a_string():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"\\" * 16_000_001)))


@attack(UnsafeTapeError, "tape.json holds a number of 400 digits or more")
def number_of_a_million_digits():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"9" * 1_000_000)))


@attack(UnsafeTapeError, "400 digits or more")
def many_long_numbers():
    numbers = b",".join([b"9" * 399] * 40_000) + b"," + b"9" * 400
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"[" + numbers + b"]")))


@attack(UnsafeTapeError, "tape.json holds NaN, which is not JSON")
def not_a_number():
    return file(seal(as_rest(fields(note=float("nan")))))


@attack(UnsafeTapeError, "tape.json holds -Infinity")
def minus_infinity():
    return file(seal(as_rest(fields(note=float("-inf")))))


@attack(UnsafeTapeError, "tape.json holds '1e999'")
def number_that_becomes_infinite():
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"1e999")))


@attack(UnsafeTapeError, "tape.json has 'note' twice")
def field_twice():
    return file(seal(as_rest(fields())[:-3] + b',"note":"another"\n}\n'))


@attack(UnsafeTapeError, "tape.json has 'check' twice")
def check_twice():
    return file(seal(as_rest(fields(check="0" * 64))))


@attack(UnsafeTapeError, "tape.json has 'leaf' twice")
def tensor_twice_in_the_table():
    row = b'"leaf": ["float32", [2, 3], "' + forge.sha256(forge.LEAF).encode() + b'"]'
    return file(seal(as_rest(fields()).replace(row, row + b", " + row)))


@attack(UnsafeTapeError, "tape.json has 'n199999' twice")
def name_twice_after_many_others():
    names = b",".join(b'"n%d":0' % number for number in range(200_000)) + b',"n199999":1'
    return file(seal(as_rest(fields(note="?")).replace(b'"?"', b"{" + names + b"}")))


@attack(CorruptTapeError, "the field 'features' of tape.json should be a list of names and is None")
def features_that_are_missing():
    return file(seal(as_rest(fields(features=None))))


@attack(CorruptTapeError, "should be a list of names")
def features_that_are_no_names():
    return file(seal(as_rest(fields(features=["\x1b[2J"]))))


@attack(CorruptTapeError, "should be a list of names")
def features_that_are_lists():
    return file(seal(as_rest(fields(features=[["blobs"]]))))


@attack(CorruptTapeError, "the field 'entries' of tape.json should be an object")
def entries_that_are_a_list():
    return file(seal(as_rest(fields(entries=[]))))


@attack(CorruptTapeError, "the field 'tensors' of tape.json should be an object and is 7")
def tensors_that_are_a_number():
    return file(seal(as_rest(fields(tensors=7))))


@attack(CorruptTapeError, "the field 'strings' of tape.json should be an object and is None")
def strings_that_are_missing():
    return file(seal(as_rest(fields(strings=None))))


# ------------------------------------------------------------------ the table of tensors


def with_row(row: Any, name: str = "leaf") -> bytes:
    return file(seal(as_rest(fields(tensors=tensor_table(**{name: row})))))


DIGEST = forge.sha256(forge.LEAF)


@attack(UnsafeTapeError, r"tensor leaf has the invalid shape \[-2, -3\]")
def negative_shape():
    return with_row(["float32", [-2, -3], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape")
def shape_of_truth_values():
    return with_row(["float32", [6, True], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape")
def shape_of_fractions():
    return with_row(["float32", [2.0, 3.0], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape")
def shape_that_overflows():
    return with_row(["float32", [2**32, 2**32, 6], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape")
def shape_that_overflows_behind_a_zero():
    return with_row(["float32", [0, 2**62, 2**62], forge.sha256(b"")])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape")
def dimension_beyond_sixty_four_bits():
    return with_row(["float32", [2**70], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape")
def rank_of_thousands():
    return with_row(["float32", [1] * 5000, DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the invalid shape None")
def shape_that_is_unknown():
    return with_row(["float32", None, DIGEST])


@attack(CorruptTapeError, "the header has .* at byte .* and according to tape.json it should be")
def shape_of_a_terabyte():
    return with_row(["float32", [2**38], DIGEST])


@attack(CorruptTapeError, "tensor leaf has the dtype 'object', which cannot be stored")
def dtype_of_python_objects():
    return with_row(["object", [2, 3], DIGEST])


@attack(CorruptTapeError, "tensor leaf has the dtype 'resource'")
def dtype_of_resources():
    return with_row(["resource", [2, 3], DIGEST])


@attack(CorruptTapeError, r"tensor leaf has the dtype \['float32'\]")
def dtype_that_is_a_list():
    return with_row([["float32"], [2, 3], DIGEST])


@attack(CorruptTapeError, "tensor leaf should have a dtype, a shape and a sha256, and has")
def row_that_is_short():
    return with_row(["float32", [2, 3]])


@attack(CorruptTapeError, "tensor leaf should have a dtype")
def row_that_is_an_object():
    return with_row({"dtype": "float32"})


@attack(CorruptTapeError, "the sha256 of 'leaf' is '../../etc/passwd', not 64 hexadecimal digits")
def digest_that_is_a_path():
    return with_row(["float32", [2, 3], "../../etc/passwd"])


@attack(UnsafeTapeError, "is not a valid name for a tensor")
def tensor_name_that_breaks_out_of_the_header():
    return with_row(["float32", [2, 3], DIGEST], 'x":{"dtype":"F32"},"y')


@attack(UnsafeTapeError, r"'pad/0' is not a valid name for a tensor")
def tensor_named_as_a_gap():
    return with_row(["uint8", [61], DIGEST], "pad/0")


@attack(UnsafeTapeError, r"'s/off/s/off/x' is not a valid name for a tensor")
def tensor_named_as_a_part_of_a_part():
    return with_row(["int64", [1], DIGEST], "s/off/s/off/x")


@attack(UnsafeTapeError, r"'' is not a valid name for a tensor")
def tensor_without_a_name():
    return with_row(["float32", [2, 3], DIGEST], "")


@attack(UnsafeTapeError, "is not a valid name for a tensor")
def tensor_name_of_a_megabyte():
    return with_row(["float32", [2, 3], DIGEST], "a" * (1 << 20))


@attack(UnsafeTapeError, "the number of tensors is too high: 4, the limit is 3", Limits(tensors=3))
def more_tensors_than_agreed():
    return file()


@attack(UnsafeTapeError, "the tensors are too large: 64, the limit is 63", Limits(total_bytes=63))
def larger_tensors_than_agreed():
    return file()


# ------------------------------------------------------------------ values


def with_part(name: str, dtype: str, shape: list[int], data: bytes, **more: Any) -> bytes:
    parts = {**forge.PARTS, name: (dtype, shape, data)}
    table = tensor_table(**{name: [dtype, shape, forge.sha256(data)]})
    return file(seal(as_rest(fields(tensors=table, **more))), parts=parts)


@attack(UnsafeTapeError, "tensor flags of bool holds bytes other than 0 and 1")
def truth_value_that_is_two():
    return with_part("flags", "bool", [3], b"\0\1\2")


@attack(CorruptTapeError, "the offsets of the string tensor words are not in order")
def strings_that_go_backwards():
    return with_part("s/off/words", "int64", [4], struct.pack("<4q", 0, 4, 2, 5))


@attack(CorruptTapeError, "the offsets of the string tensor words are not in order")
def strings_beyond_their_letters():
    return with_part("s/off/words", "int64", [4], struct.pack("<4q", 0, 2, 2, 5000))


@attack(CorruptTapeError, "the offsets of the string tensor words are not in order")
def strings_before_their_letters():
    return with_part("s/off/words", "int64", [4], struct.pack("<4q", -3, 2, 2, 5))


@attack(CorruptTapeError, r"the parts of the string tensor 'words' do not fit its shape \[1099511627776\]")
def strings_by_the_trillion():
    return file(seal(as_rest(fields(strings={"words": [2**40]}))))


@attack(CorruptTapeError, "the parts of the string tensor 'words' do not fit")
def strings_with_narrow_offsets():
    return with_part("s/off/words", "uint8", [4], bytes(4))


@attack(CorruptTapeError, "the string tensor 'other' lacks a shape or a part")
def strings_without_parts():
    return file(seal(as_rest(fields(strings={"other": [3]}))))


@attack(CorruptTapeError, "tape.json lists 0 string tensors, and the tensors have other parts")
def parts_without_strings():
    return file(seal(as_rest(fields(strings={}))))


def without_strings(shape: list[int]) -> bytes:
    parts = {**forge.PARTS, "s/off/words": ("int64", [1], bytes(8)), "s/dat/words": ("uint8", [0], b"")}
    table = {name: [dtype, dims, forge.sha256(data)] for name, (dtype, dims, data) in parts.items()}
    return file(seal(as_rest(fields(tensors=table, strings={"words": shape}))), parts=parts)


@attack(CorruptTapeError, "the string tensor 'words' lacks a shape")
def strings_whose_shape_overflows_behind_a_zero():
    return without_strings([0, 2**62, 2**62])


@attack(CorruptTapeError, "the string tensor 'words' lacks a shape")
def strings_with_a_dimension_beyond_sixty_four_bits():
    return without_strings([0, 2**70])


@attack(CorruptTapeError, "the string tensor 'words' lacks a shape")
def strings_of_a_negative_shape():
    return file(seal(as_rest(fields(strings={"words": [-3]}))))


# ------------------------------------------------------------------ folders


def in_folder(directory: Path, **what: Any) -> Path:
    return folder(directory / "hostile.tape", **what)


@attack(CorruptTapeError, "it is a folder without tape.json. Give the path of a saved tape")
def folder_without_a_tape(directory: Path):
    (directory / "empty").mkdir()
    return directory / "empty"


@attack(CorruptTapeError, "it is a folder, and its tape.json is that of a file")
def folder_with_the_tape_json_of_a_file(directory: Path):
    return in_folder(directory, features=[])


@attack(CorruptTapeError, "the field 'store' of tape.json should be text and is None")
def folder_without_a_store(directory: Path):
    return in_folder(directory, store=None)


@attack(UnsafeTapeError, "tape.json places the store at '/etc', which is not an allowed relative path")
def store_that_is_absolute(directory: Path):
    return in_folder(directory, store="/etc")


@attack(UnsafeTapeError, "which is not an allowed relative path")
def store_that_goes_up_after_going_down(directory: Path):
    return in_folder(directory, store="blobs/../../../etc")


@attack(UnsafeTapeError, "which is not an allowed relative path")
def store_that_only_goes_up(directory: Path):
    return in_folder(directory, store="..")


@attack(UnsafeTapeError, "which is not an allowed relative path")
def store_that_is_too_far_up(directory: Path):
    return in_folder(directory, store="../" * 17 + "etc")


@attack(UnsafeTapeError, r"at 'blobs\\x00', which is not an allowed relative path")
def store_with_a_zero_byte(directory: Path):
    return in_folder(directory, store="blobs\0")


@attack(UnsafeTapeError, "which is not an allowed relative path")
def store_on_a_share(directory: Path):
    return in_folder(directory, store="\\\\evil\\share")


@attack(UnsafeTapeError, "which is not an allowed relative path")
def store_without_a_name(directory: Path):
    return in_folder(directory, store="")


@attack(UnsafeTapeError, "which is not an allowed relative path")
def store_of_a_million_steps(directory: Path):
    return in_folder(directory, store="a/" * 1_000_000 + "a")


@attack(CorruptTapeError, "its store '../gone' does not exist. A tape that is a folder has to be moved together")
def store_that_is_gone(directory: Path):
    return in_folder(directory, store="../gone")


@attack(UnsafeTapeError, "tape.json is a symbolic link")
def tape_json_that_is_a_link(directory: Path):
    path = in_folder(directory)
    (path / "tape.json").rename(directory / "elsewhere.json")
    (path / "tape.json").symlink_to("../elsewhere.json")
    return path


@attack(UnsafeTapeError, "it is a FIFO")
def tape_json_that_is_a_pipe(directory: Path):
    path = in_folder(directory)
    (path / "tape.json").unlink()
    os.mkfifo(path / "tape.json")
    return path


@attack(UnsafeTapeError, "tape.json in it is a directory, not a file")
def tape_json_that_is_a_folder(directory: Path):
    path = in_folder(directory)
    (path / "tape.json").unlink()
    (path / "tape.json").mkdir()
    return path


@attack(UnsafeTapeError, "tape.json takes too many bytes of memory: 5,497,558,138,880")
def tape_json_of_a_terabyte(directory: Path):
    path = in_folder(directory)
    os.truncate(path / "tape.json", 1 << 40)
    return path


@attack(UnsafeTapeError, "is a symbolic link")
def data_that_is_a_link(directory: Path):
    path = in_folder(directory)
    blob = forge.blob(path, forge.LEAF)
    blob.rename(directory / "elsewhere")
    blob.symlink_to(directory / "elsewhere")
    return path


@attack(UnsafeTapeError, "it is a FIFO")
def data_that_are_a_pipe(directory: Path):
    path = in_folder(directory)
    forge.blob(path, forge.LEAF).unlink()
    os.mkfifo(forge.blob(path, forge.LEAF))
    return path


@attack(CorruptTapeError, "in its store is missing")
def data_that_are_missing(directory: Path):
    path = in_folder(directory)
    forge.blob(path, forge.LEAF).unlink()
    return path


@attack(CorruptTapeError, "in its store is missing")
def data_below_a_file(directory: Path):
    path = in_folder(directory)
    blob = forge.blob(path, forge.LEAF)
    blob.unlink()
    blob.parent.rmdir()
    blob.parent.write_bytes(b"")
    return path


@attack(CorruptTapeError, "has 3 bytes, not 24. Remove that file, and save the tape again")
def data_of_another_size(directory: Path):
    path = in_folder(directory)
    forge.blob(path, forge.LEAF).write_bytes(b"abc")
    return path


@attack(CorruptTapeError, "the sha256 of .* is wrong, so it was changed")
def data_that_were_exchanged(directory: Path):
    path = in_folder(directory)
    forge.blob(path, forge.LEAF).write_bytes(bytes(24))
    return path


@attack(CorruptTapeError, "the sha256 of the entry program.txt .* is wrong, so it was changed. Remove that file")
def program_in_a_folder_that_was_exchanged(directory: Path):
    path = in_folder(directory)
    forge.blob(path, forge.ENTRIES["program.txt"]).write_bytes(b"rm -rf / # a tape")
    return path


@attack(CorruptTapeError, "has 1099511627776 bytes, not 17")
def program_in_a_folder_that_is_too_large(directory: Path):
    path = in_folder(directory)
    os.truncate(forge.blob(path, forge.ENTRIES["program.txt"]), 1 << 40)
    return path


@attack(CorruptTapeError, "has 24 bytes, not 48")
def one_file_with_two_sizes(directory: Path):
    table = tensor_table(twin=["float32", [12], DIGEST])
    return in_folder(directory, tensors=table)


@attack(CorruptTapeError, "the checksum of tape.json is wrong")
def tape_json_of_a_folder_that_was_edited(directory: Path):
    path = in_folder(directory)
    tape = path / "tape.json"
    tape.write_bytes(tape.read_bytes().replace(b"a good tape", b"a bad  tape"))
    return path


@attack(UnsafeTapeError, r"[0-9a-f]{2} is a symbolic link, which may change while it is read")
def data_in_a_folder_that_is_a_link(directory: Path):
    path = in_folder(directory)
    real = forge.blob(path, forge.LEAF).parent
    real.rename(directory / "elsewhere")
    real.symlink_to(directory / "elsewhere")
    return path


@attack(UnsafeTapeError, "blobs is a symbolic link, which may change while it is read")
def store_that_is_a_link(directory: Path):
    path = in_folder(directory)
    (path / "blobs").rename(directory / "elsewhere")
    (path / "blobs").symlink_to(directory / "elsewhere")
    return path


@attack(UnsafeTapeError, "up is a symbolic link")
def store_behind_a_link(directory: Path):
    path = in_folder(directory, store="up/blobs")
    (path / "up").symlink_to(path)
    return path


@attack(UnsafeTapeError, "in it is a directory, not a file")
def data_that_are_a_folder(directory: Path):
    path = in_folder(directory)
    blob = forge.blob(path, forge.LEAF)
    blob.unlink()
    blob.mkdir()
    return path


@attack(UnsafeTapeError, "it is a socket, not a file")
def data_that_are_a_socket(directory: Path):
    path = in_folder(directory)
    blob = forge.blob(path, forge.LEAF)
    blob.unlink()
    here = os.getcwd()
    os.chdir(blob.parent)  # the path of a socket may have no more than a hundred characters
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(blob.name)
    finally:
        os.chdir(here)
    return path


@attack(CorruptTapeError, "its store 'tape.json' does not exist")
def store_that_is_a_file(directory: Path):
    return in_folder(directory, store="tape.json")
