"""Files that must be refused: one function for each attack, with the error and a piece of its text."""

from __future__ import annotations

import gzip
import os
import pickle
import socket
import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from files.store import forge
from files.store.forge import Entry, archive, as_rest, changed, entries, fields, file, folder, seal, tensor_table
from retrotape.errors import CorruptTapeError, TapeVersionError, UnsafeTapeError
from retrotape.files.store import Limits


class Attack(NamedTuple):
    """How to build a file, and how it must be refused."""

    build: Callable[[Path], Path]
    error: type[Exception]
    text: str
    limits: Limits


ATTACKS: dict[str, Attack] = {}


def attack(error: type[Exception], text: str, limits: Limits | None = None) -> Callable[[Any], Any]:
    """Register a function that returns the bytes of a file, or that builds one in a folder and returns its path."""

    def register(make: Any) -> Any:
        def build(directory: Path) -> Path:
            made = make(directory) if make.__code__.co_argcount else make()
            if isinstance(made, Path):
                return made
            path = directory / "hostile.tape"
            path.write_bytes(made)
            return path

        assert make.__name__ not in ATTACKS
        ATTACKS[make.__name__] = Attack(build, error, text, limits or Limits())
        return make

    return register


def with_entry(name: bytes, data: bytes = b"x", **what: Any) -> bytes:
    """Return a good tape with one more entry."""
    return archive([Entry(name, data, **what), *entries()])


# ------------------------------------------------------------------ not a tape


@attack(CorruptTapeError, "it is empty")
def empty_file():
    return b""


@attack(CorruptTapeError, "begins with .*PNG.* so it is no tape. Give the path of a saved tape")
def a_picture():
    return b"\x89PNG\r\n\x1a\n" + bytes(100)


@attack(CorruptTapeError, "it is no tape")
def a_pickle():
    return pickle.dumps(os.getcwd)


@attack(CorruptTapeError, "it is no tape")
def a_weights_file_of_hdf5():
    return b"\x89HDF\r\n\x1a\n" + bytes(2000)


@attack(CorruptTapeError, "it is no tape")
def a_tape_inside_gzip():
    return gzip.compress(file())


@attack(CorruptTapeError, "it is no tape")
def an_archive_without_entries():
    return archive([])


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


# ------------------------------------------------------------------ names of entries


@attack(UnsafeTapeError, r"b'../evil.txt' is no name for an entry")
def name_that_leaves_the_folder():
    return with_entry(b"../evil.txt")


@attack(UnsafeTapeError, r"b'/etc/passwd' is no name")
def name_that_is_absolute():
    return with_entry(b"/etc/passwd")


@attack(UnsafeTapeError, r"is no name")
def name_with_backslashes():
    return with_entry(b"..\\evil.txt")


@attack(UnsafeTapeError, r"b'C:evil.txt' is no name")
def name_on_another_drive():
    return with_entry(b"C:evil.txt")


@attack(UnsafeTapeError, r"\\x00")
def name_that_ends_early():
    return with_entry(b"program.txt\0.sh")


@attack(UnsafeTapeError, r"\\x1b\[2J\\n")
def name_that_clears_the_screen():
    return with_entry(b"\x1b[2J\nAll is well.")


@attack(UnsafeTapeError, r"b'Program.txt' is no name")
def name_that_differs_in_case():
    return with_entry(b"Program.txt")


@attack(UnsafeTapeError, r"b'blobs/' is no name")
def name_of_a_folder():
    return with_entry(b"blobs/", b"")


@attack(UnsafeTapeError, r"b'' is no name")
def name_that_is_empty():
    return with_entry(b"")


@attack(UnsafeTapeError, r"b'\.hidden' is no name")
def name_that_is_hidden():
    return with_entry(b".hidden")


@attack(UnsafeTapeError, "the directory of the archive has 65813 bytes, too many for 5 entries")
def name_that_is_very_long():
    return with_entry(b"a" * 65535)


@attack(UnsafeTapeError, r"is no name")
def name_that_is_not_text():
    return with_entry(b"\xff\xfe.txt")


@attack(UnsafeTapeError, "the entry program.txt is there twice")
def entry_twice():
    return with_entry(b"program.txt")


@attack(UnsafeTapeError, "the entry tape.json is there twice")
def tape_json_twice():
    return with_entry(b"tape.json", seal(as_rest(fields(note="another"))))


@attack(UnsafeTapeError, "tape.json does not know the entry run.sh")
def entry_that_nobody_knows():
    return with_entry(b"run.sh")


@attack(CorruptTapeError, "the entry functions.json is missing")
def entry_that_is_missing():
    return file(seal(as_rest(fields(sha256={**fields()["sha256"], "functions.json": "0" * 64}))))


@attack(CorruptTapeError, "it has no entry tape.json")
def no_tape_json():
    return archive(entries()[:-1])


@attack(CorruptTapeError, "it has no entry tensors.safetensors")
def no_tensors():
    return archive([entry for entry in entries() if entry.name != b"tensors.safetensors"])


# ------------------------------------------------------------------ compression and encryption


@attack(UnsafeTapeError, r"the entry program.txt is compressed \(method 8\)")
def entry_that_is_compressed():
    deflated = zlib.compress(forge.ENTRIES["program.txt"])[2:-4]
    size = len(forge.ENTRIES["program.txt"])
    both = {"method": 8, "size": size}
    return changed("program.txt", data=deflated, local=both, central=both)


@attack(UnsafeTapeError, "the entry bomb.txt is compressed|the entry bomb.txt is too large")
def bomb():
    deflated = zlib.compress(bytes(1 << 24), 9)[2:-4]
    both = {"method": 8, "size": (1 << 32) - 2, "crc": 0}
    return with_entry(b"bomb.txt", deflated, local=both, central=both)


@attack(UnsafeTapeError, r"compressed \(method 12\)")
def entry_with_another_method():
    return changed("program.txt", local={"method": 12}, central={"method": 12})


@attack(UnsafeTapeError, r"the entry opdefs.pb has 5 bytes that become 500, so it is compressed")
def entry_that_grows_without_saying_so():
    return changed("opdefs.pb", local={"size": 500}, central={"size": 500})


@attack(UnsafeTapeError, "the entry program.txt is encrypted")
def entry_that_is_encrypted():
    return changed("program.txt", local={"flags": 1}, central={"flags": 1})


@attack(UnsafeTapeError, "the entry program.txt is encrypted")
def entry_that_is_encrypted_in_one_place():
    return changed("program.txt", local={"flags": 1})


@attack(UnsafeTapeError, "has the flags 0x0008, and none are allowed")
def entry_whose_size_comes_later():
    return changed("program.txt", local={"flags": 8}, central={"flags": 8})


@attack(UnsafeTapeError, "has the flags 0x2000")
def entry_with_masked_header():
    return changed("program.txt", local={"flags": 0x2000}, central={"flags": 0x2000})


# ------------------------------------------------------------------ two places that do not agree


@attack(UnsafeTapeError, "the entry program.txt is called b'functions.json' in another place")
def two_names():
    return changed("program.txt", local={"name": b"functions.json"})


@attack(CorruptTapeError, "the size or check sum of the entry program.txt is not the same in two places")
def two_sizes():
    return changed("program.txt", local={"size": 3, "packed": 3})


@attack(CorruptTapeError, "the size or check sum of the entry program.txt")
def two_check_sums():
    return changed("program.txt", local={"crc": 1})


@attack(UnsafeTapeError, "the entry program.txt is compressed")
def two_methods():
    return changed("program.txt", local={"method": 8})


@attack(CorruptTapeError, "the check sum of the entry program.txt is wrong")
def wrong_check_sum():
    return changed("program.txt", local={"crc": 1}, central={"crc": 1})


@attack(CorruptTapeError, "the check sum of the entry tensors.safetensors is wrong")
def wrong_check_sum_of_the_tensors():
    return changed("tensors.safetensors", local={"crc": 1}, central={"crc": 1})


@attack(CorruptTapeError, "the sha256 of the entry program.txt is wrong")
def entry_that_was_exchanged():
    return changed("program.txt", data=b"%0 : float32[9,9]")


@attack(UnsafeTapeError, "the extra field 0x7075, which may change what it is")
def another_name_in_unicode():
    name = b"evil.sh"
    extra = struct.pack("<HHBI", 0x7075, 5 + len(name), 1, zlib.crc32(b"program.txt")) + name
    return changed("program.txt", central={"extra": extra})


@attack(UnsafeTapeError, "the extra field 0x7075")
def another_name_in_unicode_in_front():
    return changed("program.txt", extra=struct.pack("<HH", 0x7075, 0))


@attack(CorruptTapeError, "the extra field of the entry program.txt is cut short")
def extra_field_that_goes_on():
    return changed("program.txt", extra=struct.pack("<HH", 0xD935, 200) + bytes(10))


@attack(CorruptTapeError, "the extra field of the entry program.txt is cut short")
def extra_field_of_one_byte():
    return changed("program.txt", extra=b"\1")


@attack(CorruptTapeError, "the extra field of the entry program.txt is cut short or too long")
def extra_field_that_is_huge():
    return changed("program.txt", extra=struct.pack("<HH", 0xD935, 60000) + bytes(60000))


@attack(UnsafeTapeError, "the extra field 0xd935")
def padding_twice():
    return changed("program.txt", extra=struct.pack("<HHHHHH", 0xD935, 2, 64, 0xD935, 2, 64))


@attack(UnsafeTapeError, "the padding before the entry program.txt is not empty")
def something_hidden_in_the_padding():
    return changed("program.txt", extra=struct.pack("<HHH", 0xD935, 10, 64) + b"#!/bin/s")


# ------------------------------------------------------------------ ranges


@attack(UnsafeTapeError, "the entry opdefs.pb overlaps the one before it")
def two_entries_in_one_place():
    return changed("opdefs.pb", central={"start": 0})


@attack(UnsafeTapeError, "the entry functions.json overlaps the one before it")
def entry_inside_of_another():
    inner = archive([Entry(b"functions.json", b"inner")])
    return archive([Entry(b"outer.pb", inner), Entry(b"functions.json", b"inner", central={"start": 64}), *entries()])


@attack(UnsafeTapeError, "7 bytes before the entry opdefs.pb belong to none")
def something_hidden_between_entries():
    return changed("opdefs.pb", before=b"hidden!")


@attack(UnsafeTapeError, "7 bytes before the directory of the archive belong to no entry")
def something_hidden_before_the_directory():
    return archive(entries(), before_directory=b"hidden!")


@attack(CorruptTapeError, "begins with b'#!/bin/s', so it is no tape")
def script_in_front():
    return archive([replace(entries()[0], before=b"#!/bin/sh\nrm -rf /\n"), *entries()[1:]])


@attack(UnsafeTapeError, "bytes come before the first entry")
def archive_in_front():
    return archive([replace(entries()[0], before=archive([Entry(b"a.txt", b"a")])), *entries()[1:]])


@attack(CorruptTapeError, "does not end as a tape does: it was cut short or something follows")
def something_follows():
    return file() + b"\n"


@attack(CorruptTapeError, "the directory is said to lie at|begin")
def two_tapes_in_one_file():
    return file() + file()


@attack(CorruptTapeError, "does not end as a tape does")
def comment_of_the_archive():
    return archive(entries(), comment=b"hello")


@attack(UnsafeTapeError, "several parts or a comment")
def comment_that_looks_like_an_end():
    good = file()
    return good[:-2] + struct.pack("<H", 22) + good[-22:-2] + struct.pack("<H", 22)


@attack(UnsafeTapeError, "the entry program.txt has a comment or lies on another disk")
def comment_of_an_entry():
    return changed("program.txt", central={"comment": b"hello"})


@attack(UnsafeTapeError, "the entry program.txt has a comment or lies on another disk")
def entry_on_another_disk():
    return changed("program.txt", central={"disk": 1})


@attack(UnsafeTapeError, "several parts")
def archive_in_several_parts():
    return archive(entries(), disk=1)


@attack(UnsafeTapeError, r"the number of entries is too high: 1,004, the limit is 32. .*`Limits\(entries=1004\)`")
def thousand_entries():
    return archive([*(Entry(b"e%d.txt" % number, b"") for number in range(1000)), *entries()])


@attack(CorruptTapeError, "the directory of the archive has .* bytes, and its 3 entries take")
def fewer_entries_than_there_are():
    return archive(entries(), count=3)


@attack(CorruptTapeError, "the directory of the archive cannot be read")
def more_entries_than_there_are():
    return archive(entries(), count=6)


@attack(CorruptTapeError, "the directory is said to lie at")
def directory_beyond_the_end():
    return archive(entries(), start=1 << 30)


@attack(CorruptTapeError, "the directory is said to lie at")
def directory_of_gigabytes():
    return archive(entries(), length=(1 << 32) - 1)


@attack(CorruptTapeError, "the entry program.txt is said to begin at byte 1073741824, after all entries")
def entry_beyond_the_end():
    return changed("program.txt", central={"start": 1 << 30})


@attack(CorruptTapeError, "the entry tensors.safetensors reaches beyond the directory")
def entry_longer_than_the_file():
    both = {"size": 1 << 30, "packed": 1 << 30}
    return changed("tensors.safetensors", local=both, central=both)


@attack(UnsafeTapeError, r"the entry program.txt is too large: 300,000,000, .*`Limits\(program_bytes=300000000\)`")
def program_that_is_too_large():
    both = {"size": 300_000_000, "packed": 300_000_000}
    return changed("program.txt", local=both, central=both)


@attack(UnsafeTapeError, r"the entry functions.json is too large")
def functions_that_are_too_large():
    both = {"size": 300_000_000, "packed": 300_000_000}
    return with_entry(b"functions.json", local=both, central=both)


@attack(UnsafeTapeError, r"tape.json takes too many bytes of memory: 650,000,000, .*`Limits\(json_memory=2080000000\)`")
def tape_json_that_is_too_large():
    both = {"size": 130_000_000, "packed": 130_000_000}
    return changed("tape.json", local=both, central=both)


# ------------------------------------------------------------------ zip64


@attack(UnsafeTapeError, "the entry program.txt is too large")
def size_of_sixteen_exabytes():
    wide = {"size": forge.FULL, "packed": forge.FULL, "extra": forge.zip64(2**64 - 1, 2**64 - 1)}
    return changed("program.txt", local=wide, central=wide)


@attack(CorruptTapeError, "the entry tensors.safetensors reaches beyond the directory")
def tensors_of_sixteen_exabytes():
    wide = {"size": forge.FULL, "packed": forge.FULL, "extra": forge.zip64(2**64 - 1, 2**64 - 1)}
    return changed("tensors.safetensors", local=wide, central=wide)


@attack(CorruptTapeError, "is said to begin at byte 18446744073709551615")
def place_of_sixteen_exabytes():
    return changed("program.txt", central={"start": forge.FULL, "extra": forge.zip64(2**64 - 1)})


@attack(UnsafeTapeError, "the zip64 field of the entry program.txt does not fit what it is for")
def zip64_field_without_need():
    size = len(forge.ENTRIES["program.txt"])
    return changed("program.txt", central={"extra": forge.zip64(size, size)})


@attack(UnsafeTapeError, "the zip64 field of the entry program.txt")
def zip64_field_that_is_empty():
    return changed("program.txt", central={"extra": forge.zip64()})


@attack(UnsafeTapeError, "the zip64 field of the entry program.txt")
def zip64_field_that_is_missing():
    return changed("program.txt", central={"size": forge.FULL})


@attack(UnsafeTapeError, "the zip64 field of the entry program.txt")
def zip64_field_that_is_short():
    wide = {"size": forge.FULL, "packed": forge.FULL, "extra": struct.pack("<HHI", 1, 4, 0)}
    return changed("program.txt", local=wide, central=wide)


@attack(CorruptTapeError, "the zip64 record that the archive speaks of is not there")
def zip64_record_that_is_missing():
    return archive(entries(), start=forge.FULL)


def record64(start: int, length: int, count: int, /, **what: int) -> bytes:
    said = {"place": start + length, "size": 44, "disks": 1, "start": start, "length": length, "count": count, **what}
    record = struct.pack("<4sQHHII", b"PK\6\6", said["size"], 45, 45, 0, 0)
    record += struct.pack("<QQQQ", said["count"], said["count"], said["length"], said["start"])
    return record + struct.pack("<4sIQI", b"PK\6\7", 0, said["place"], said["disks"])


def with_record64(**what: int) -> bytes:
    good = file()
    count, length, start = struct.unpack("<HII", good[-12:-2])
    return archive(entries(), start=forge.FULL, record64=record64(start, length, count, **what))


@attack(UnsafeTapeError, "the two end records of the archive do not agree")
def zip64_record_without_need():
    return with_record64()


@attack(UnsafeTapeError, "the zip64 record of the archive is not where and what it should be")
def zip64_record_elsewhere():
    return with_record64(place=0)


@attack(UnsafeTapeError, "the zip64 record of the archive is not where and what it should be")
def zip64_record_of_another_size():
    return with_record64(size=1 << 40)


@attack(UnsafeTapeError, "the two end records of the archive do not agree")
def zip64_record_with_another_count():
    return with_record64(count=2**64 - 1)


@attack(CorruptTapeError, "the directory is said to lie at")
def zip64_record_that_points_far_away():
    return with_record64(start=2**63)


@attack(CorruptTapeError, "the directory is said to lie at")
def zip64_record_that_nobody_asked_for():
    good = file()
    count, length, start = struct.unpack("<HII", good[-12:-2])
    return archive(entries(), record64=record64(start, length, count))


# ------------------------------------------------------------------ tape.json


@attack(TapeVersionError, "needs the format tape/2; this version of retrotape reads tape/1 .*Install a newer one")
def later_format():
    return file(seal(as_rest(fields()), b'{"format":"tape/2","check":"'))


@attack(TapeVersionError, "needs the features lazy, quantum; this version of retrotape reads tape/1 with the features")
def later_features():
    return file(seal(as_rest(fields(features=["quantum", "blobs", "lazy"]))))


@attack(CorruptTapeError, "not with its format and check sum")
def no_format():
    return file(b'{"features":[]}')


@attack(CorruptTapeError, "not with its format and check sum")
def format_that_is_no_name():
    return file(seal(as_rest(fields()), b'{"format":"\x1b[2J","check":"'))


@attack(CorruptTapeError, "the check sum of tape.json is wrong, so it was changed after it was written")
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


@attack(UnsafeTapeError, "tape.json gives 'note' twice")
def field_twice():
    return file(seal(as_rest(fields())[:-3] + b',"note":"another"\n}\n'))


@attack(UnsafeTapeError, "tape.json gives 'check' twice")
def check_twice():
    return file(seal(as_rest(fields(check="0" * 64))))


@attack(UnsafeTapeError, "tape.json gives 'leaf' twice")
def tensor_twice_in_the_table():
    row = b'"leaf": ["float32", [2, 3], "' + forge.sha256(forge.LEAF).encode() + b'"]'
    return file(seal(as_rest(fields()).replace(row, row + b", " + row)))


@attack(UnsafeTapeError, "tape.json gives 'n199999' twice")
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


@attack(CorruptTapeError, "the field 'sha256' of tape.json should be an object")
def check_sums_that_are_a_list():
    return file(seal(as_rest(fields(sha256=[]))))


@attack(CorruptTapeError, "the field 'tensors' of tape.json should be an object and is 7")
def tensors_that_are_a_number():
    return file(seal(as_rest(fields(tensors=7))))


@attack(CorruptTapeError, "the field 'strings' of tape.json should be an object and is None")
def strings_that_are_missing():
    return file(seal(as_rest(fields(strings=None))))


@attack(CorruptTapeError, "the sha256 of 'program.txt' is 'ABC', not 64 digits")
def check_sum_that_is_none():
    return file(seal(as_rest(fields(sha256={**fields()["sha256"], "program.txt": "ABC"}))))


@attack(UnsafeTapeError, "'../x' is no name for an entry")
def check_sum_of_a_file_elsewhere():
    return file(seal(as_rest(fields(sha256={**fields()["sha256"], "../x": "0" * 64}))))


# ------------------------------------------------------------------ the table of tensors


def with_row(row: Any, name: str = "leaf") -> bytes:
    return file(seal(as_rest(fields(tensors=tensor_table(**{name: row})))))


DIGEST = forge.sha256(forge.LEAF)


@attack(UnsafeTapeError, r"tensor leaf has the impossible shape \[-2, -3\]")
def negative_shape():
    return with_row(["float32", [-2, -3], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape")
def shape_of_truth_values():
    return with_row(["float32", [6, True], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape")
def shape_of_fractions():
    return with_row(["float32", [2.0, 3.0], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape")
def shape_that_overflows():
    return with_row(["float32", [2**32, 2**32, 6], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape")
def shape_that_overflows_behind_a_zero():
    return with_row(["float32", [0, 2**62, 2**62], forge.sha256(b"")])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape")
def dimension_beyond_sixty_four_bits():
    return with_row(["float32", [2**70], DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape")
def rank_of_thousands():
    return with_row(["float32", [1] * 5000, DIGEST])


@attack(UnsafeTapeError, "tensor leaf has the impossible shape None")
def shape_that_is_unknown():
    return with_row(["float32", None, DIGEST])


@attack(CorruptTapeError, "the header of tensors.safetensors reads .* at byte .* and tape.json asks for")
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


@attack(CorruptTapeError, "the sha256 of 'leaf' is '../../etc/passwd', not 64 digits")
def digest_that_is_a_path():
    return with_row(["float32", [2, 3], "../../etc/passwd"])


@attack(UnsafeTapeError, "is no name for a tensor")
def tensor_name_that_breaks_out_of_the_header():
    return with_row(["float32", [2, 3], DIGEST], 'x":{"dtype":"F32"},"y')


@attack(UnsafeTapeError, r"'pad/0' is no name for a tensor")
def tensor_named_as_a_gap():
    return with_row(["uint8", [61], DIGEST], "pad/0")


@attack(UnsafeTapeError, r"'s/off/s/off/x' is no name for a tensor")
def tensor_named_as_a_part_of_a_part():
    return with_row(["int64", [1], DIGEST], "s/off/s/off/x")


@attack(UnsafeTapeError, r"'' is no name for a tensor")
def tensor_without_a_name():
    return with_row(["float32", [2, 3], DIGEST], "")


@attack(UnsafeTapeError, "is no name for a tensor")
def tensor_name_of_a_megabyte():
    return with_row(["float32", [2, 3], DIGEST], "a" * (1 << 20))


@attack(UnsafeTapeError, "the number of tensors is too high: 4, the limit is 3", Limits(tensors=3))
def more_tensors_than_agreed():
    return file()


@attack(UnsafeTapeError, "the tensors are too large: 64, the limit is 63", Limits(total_bytes=63))
def larger_tensors_than_agreed():
    return file()


@attack(UnsafeTapeError, "the header of tensors.safetensors is too large", Limits(header_bytes=100))
def larger_header_than_agreed():
    return file()


# ------------------------------------------------------------------ tensors.safetensors


def with_header(text: bytes) -> bytes:
    return file(tensors=forge.safetensors(text))


def edited_header(old: bytes, new: bytes) -> bytes:
    text = forge.header().rstrip(b" ")
    assert old in text
    text = text.replace(old, new)
    return with_header(text + b" " * (-(len(text) + 8) % 64))


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def tensors_that_overlap():
    return edited_header(b"[64,88]", b"[0,24]")


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def tensors_with_a_gap():
    return edited_header(b'"pad/0":{"dtype":"U8","shape":[61],"data_offsets":[3,64]},', b"")


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def offsets_that_go_backwards():
    return edited_header(b"[64,88]", b"[88,64]")


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def offsets_that_are_negative():
    return edited_header(b"[64,88]", b"[-64,-40]")


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def offsets_beyond_the_file():
    return edited_header(b"[64,88]", b"[18446744073709551552,18446744073709551576]")


@attack(CorruptTapeError, "reads b'\"F64\",.* and tape.json asks for b'|reads b'64.*asks for b'32")
def another_dtype_in_the_header():
    return edited_header(b'"F32"', b'"F64"')


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def another_shape_in_the_header():
    return edited_header(b"[2,3]", b"[3,2]")


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def metadata_in_the_header():
    return edited_header(b"{", b'{"__metadata__":{"a":"b"},')


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def tensor_twice_in_the_header():
    return edited_header(b'"flags"', b'"leaf"')


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def header_that_is_empty():
    return with_header(b"")


@attack(CorruptTapeError, "the header of tensors.safetensors reads")
def header_of_exabytes():
    good = forge.safetensors()
    return file(tensors=(2**63).to_bytes(8, "little") + good[8:])


@attack(CorruptTapeError, "the header of tensors.safetensors reads b'' at byte 3")
def tensors_of_three_bytes():
    return file(tensors=forge.safetensors()[:3])


@attack(CorruptTapeError, "tensors.safetensors has .* bytes, and its tensors need")
def tensors_that_are_cut_short():
    return file(tensors=forge.safetensors()[:-1])


@attack(CorruptTapeError, "tensors.safetensors has .* bytes, and its tensors need")
def something_after_the_tensors():
    return file(tensors=forge.safetensors() + b"x")


@attack(CorruptTapeError, "the gap before tensor leaf is not empty")
def something_hidden_in_the_gaps():
    return file(tensors=forge.safetensors(fill=b"x"))


@attack(CorruptTapeError, "the sha256 of tensor leaf is wrong, so it was changed")
def tensor_that_was_exchanged():
    return file(tensors=forge.safetensors(parts={**forge.PARTS, "leaf": ("float32", [2, 3], bytes(24))}))


def with_part(name: str, dtype: str, shape: list[int], data: bytes, **more: Any) -> bytes:
    parts = {**forge.PARTS, name: (dtype, shape, data)}
    table = tensor_table(**{name: [dtype, shape, forge.sha256(data)]})
    return file(seal(as_rest(fields(tensors=table, **more))), forge.safetensors(parts=parts))


@attack(UnsafeTapeError, "tensor flags of bool holds bytes other than 0 and 1")
def truth_value_that_is_two():
    return with_part("flags", "bool", [3], b"\0\1\2")


@attack(CorruptTapeError, "the strings words do not follow each other")
def strings_that_go_backwards():
    return with_part("s/off/words", "int64", [4], struct.pack("<4q", 0, 4, 2, 5))


@attack(CorruptTapeError, "the strings words do not follow each other")
def strings_beyond_their_letters():
    return with_part("s/off/words", "int64", [4], struct.pack("<4q", 0, 2, 2, 5000))


@attack(CorruptTapeError, "the strings words do not follow each other")
def strings_before_their_letters():
    return with_part("s/off/words", "int64", [4], struct.pack("<4q", -3, 2, 2, 5))


@attack(CorruptTapeError, r"the parts of the strings 'words' do not fit their shape \[1099511627776\]")
def strings_by_the_trillion():
    return file(seal(as_rest(fields(strings={"words": [2**40]}))))


@attack(CorruptTapeError, "the parts of the strings 'words' do not fit")
def strings_with_narrow_offsets():
    return with_part("s/off/words", "uint8", [4], bytes(4))


@attack(CorruptTapeError, "the strings 'other' lack a shape or a part")
def strings_without_parts():
    return file(seal(as_rest(fields(strings={"other": [3]}))))


@attack(CorruptTapeError, "tape.json names 0 tensors of strings, and the tensors have other parts")
def parts_without_strings():
    return file(seal(as_rest(fields(strings={}))))


def without_strings(shape: list[int]) -> bytes:
    parts = {**forge.PARTS, "s/off/words": ("int64", [1], bytes(8)), "s/dat/words": ("uint8", [0], b"")}
    table = {name: [dtype, dims, forge.sha256(data)] for name, (dtype, dims, data) in parts.items()}
    return file(seal(as_rest(fields(tensors=table, strings={"words": shape}))), forge.safetensors(parts=parts))


@attack(CorruptTapeError, "the strings 'words' lack a shape")
def strings_whose_shape_overflows_behind_a_zero():
    return without_strings([0, 2**62, 2**62])


@attack(CorruptTapeError, "the strings 'words' lack a shape")
def strings_with_a_dimension_beyond_sixty_four_bits():
    return without_strings([0, 2**70])


@attack(CorruptTapeError, "the strings 'words' lack a shape")
def strings_of_a_negative_shape():
    return file(seal(as_rest(fields(strings={"words": [-3]}))))


# ------------------------------------------------------------------ folders


def in_folder(directory: Path, **what: Any) -> Path:
    return folder(directory / "hostile.tape", **what)


@attack(CorruptTapeError, "it is a folder without tape.json. Give the path of a saved tape")
def folder_without_a_tape(directory: Path):
    (directory / "empty").mkdir()
    return directory / "empty"


@attack(CorruptTapeError, "it is a folder, and its tape.json belongs into a file")
def folder_with_the_tape_json_of_a_file(directory: Path):
    return in_folder(directory, features=[])


@attack(CorruptTapeError, "the field 'store' of tape.json should be text and is None")
def folder_without_a_store(directory: Path):
    return in_folder(directory, store=None)


@attack(UnsafeTapeError, "tape.json places the store at '/etc', which is no relative path")
def store_that_is_absolute(directory: Path):
    return in_folder(directory, store="/etc")


@attack(UnsafeTapeError, "which is no relative path")
def store_that_goes_up_after_going_down(directory: Path):
    return in_folder(directory, store="blobs/../../../etc")


@attack(UnsafeTapeError, "which is no relative path")
def store_that_only_goes_up(directory: Path):
    return in_folder(directory, store="..")


@attack(UnsafeTapeError, "which is no relative path")
def store_that_is_too_far_up(directory: Path):
    return in_folder(directory, store="../" * 17 + "etc")


@attack(UnsafeTapeError, r"at 'blobs\\x00', which is no relative path")
def store_with_a_zero_byte(directory: Path):
    return in_folder(directory, store="blobs\0")


@attack(UnsafeTapeError, "which is no relative path")
def store_on_a_share(directory: Path):
    return in_folder(directory, store="\\\\evil\\share")


@attack(UnsafeTapeError, "which is no relative path")
def store_without_a_name(directory: Path):
    return in_folder(directory, store="")


@attack(UnsafeTapeError, "which is no relative path")
def store_of_a_million_steps(directory: Path):
    return in_folder(directory, store="a/" * 1_000_000 + "a")


@attack(
    CorruptTapeError, "the store '../gone' beside it is not there. A tape that is a folder has to be moved together"
)
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
    forge.blob(path, forge.ENTRIES["program.txt"]).write_bytes(b"rm -rf /")
    return path


@attack(UnsafeTapeError, "the entry program.txt is too large: 1,099,511,627,776")
def program_in_a_folder_that_is_too_large(directory: Path):
    path = in_folder(directory)
    os.truncate(forge.blob(path, forge.ENTRIES["program.txt"]), 1 << 40)
    return path


@attack(CorruptTapeError, "has 24 bytes, not 48")
def one_file_with_two_sizes(directory: Path):
    table = tensor_table(twin=["float32", [12], DIGEST])
    return in_folder(directory, tensors=table)


@attack(CorruptTapeError, "the check sum of tape.json is wrong")
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


@attack(CorruptTapeError, "the store .* beside it is not there")
def store_that_is_a_file(directory: Path):
    return in_folder(directory, store="tape.json")
