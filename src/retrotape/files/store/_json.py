"""JSON within limits and with one meaning only; `tape.json` as bytes and parsed.

`tape.json` begins with its format and its own sha256, taken with 64 zeros in place of the digits:

    {"format":"tape/1","check":"9f86d0...",
    "features":[],
    ...
    }
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from itertools import accumulate
from typing import Any

from retrotape.files.store._errors import TapeErrors
from retrotape.files.store._format import FORMAT, PIECE, TAPE, Limits, quoted

_BEGIN = re.compile(rb'\{"format":"([a-z0-9/._-]{1,40})","check":"([0-9a-f]{64})"')
_TO_NINES = bytes.maketrans(b"012345678", b"999999999")
_ENCODER = json.JSONEncoder(ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":"))


def seal(fields: Mapping[str, Any]) -> bytes:
    """Return `tape.json`: the same fields, the same bytes.

    Raises:
      ValueError: If a value is not valid in JSON: NaN, an infinity, half of a surrogate pair.
      TypeError: If it is not a value of JSON at all.
    """
    begin = f'{{"format":"{FORMAT}","check":"'
    lines = [f",\n{_dump(key)}:{_dump(fields[key])}" for key in sorted(fields)]
    rest = "".join(['"', *lines, "\n}\n"]).encode()
    head = begin.encode()
    check = hashlib.sha256(head + b"0" * 64 + rest).hexdigest().encode()
    return head + check + rest


def _dump(value: object) -> str:
    return _ENCODER.encode(value)


def unseal(errors: TapeErrors, data: bytes, limits: Limits) -> dict[str, Any]:
    """Return the fields of `tape.json` other than format and check, which are verified.

    Raises:
      TapeVersionError: If it is of another format.
      CorruptTapeError: If it is not what was written.
      UnsafeTapeError: If it exceeds a limit or is ambiguous.
    """
    begin = _BEGIN.match(data)
    if begin is None:
        raise errors.corrupt(f"{TAPE} begins with {quoted(data[:24])}, not with its format and checksum")
    if begin[1] != FORMAT.encode():
        raise errors.version(f"the format {begin[1].decode()}")
    whole = hashlib.sha256(data[: begin.start(2)])
    whole.update(b"0" * 64)
    whole.update(memoryview(data)[begin.end(2) :])
    if whole.hexdigest().encode() != begin[2]:
        raise errors.corrupt(f"the checksum of {TAPE} is wrong, so it was changed after it was written")
    fields = parse(errors, TAPE, data, limits)  # an object, since the text begins with one
    del fields["format"], fields["check"]
    return fields


def parse(errors: TapeErrors, name: str, data: bytes, limits: Limits) -> Any:
    """Return the value of a JSON text.

    Raises:
      CorruptTapeError: If it is not JSON.
      UnsafeTapeError: If it exceeds a limit or is ambiguous.
    """
    measure(errors, name, data, limits)

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) != len(pairs):
            seen: set[str] = set()
            twice = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
            raise errors.unsafe(f"{name} has {quoted(twice)} twice")
        return found

    def constant(text: str) -> float:
        raise errors.unsafe(f"{name} holds {text}, which is not JSON")

    def real(text: str) -> float:
        value = float(text)
        return constant(quoted(text)) if value in (float("inf"), float("-inf")) else value

    try:
        found = json.loads(
            data.decode("utf-8"), object_pairs_hook=once, parse_constant=constant, parse_float=real
        )  # the depth was measured, so this cannot overflow the stack
        if b"\\u" in data:
            _dump(found).encode()  # half of a surrogate pair would fail later, when it is printed
    except UnicodeError:
        raise errors.corrupt(f"{name} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise errors.corrupt(f"{name} is not JSON: {error.msg} at character {error.pos}") from None
    return found


# An upper bound on the memory of a value, by the characters that come with it: the object, its slot in the enclosing
# one, and the temporary data of the parser. A real number takes more time than memory.
_BYTES_OF = {b",": 44, b":": 240, b"[": 160, b"{": 300, b".": 300, b"e": 300, b"E": 300}
_BYTES_OF_STRING = 72
_NOT_SIGNS = bytes(set(range(256)) - set(b"".join(_BYTES_OF)) - set(b"]}"))
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_LATIN, _NARROW = bytes(range(0xC4)), bytes(range(0xF0))  # UTF-8 begins wider characters with greater bytes


def measure(errors: TapeErrors, name: str, data: bytes, limits: Limits) -> None:
    """Refuse a text that would become too large or too deep, before it is parsed.

    Raises:
      UnsafeTapeError: If it would.
    """
    errors.check_text(name, len(data), limits)
    # The bytes, and two copies of them here; the text, and its parts that are kept as strings.
    memory = (3 + 2 * _width(data)) * len(data) + _BYTES_OF_STRING * (data.count(b'"') // 2)
    bare = _outside_strings(data)
    signs = bare.translate(None, _NOT_SIGNS)
    memory += sum(size * signs.count(sign) for sign, size in _BYTES_OF.items())
    if limits.json_memory is not None and memory > limits.json_memory:
        raise errors.over(f"{name} takes too many bytes of memory", memory, limits.json_memory, "json_memory")
    depth = _depth(signs.translate(_ALIKE, _NOT_BRACKETS))
    if depth > limits.json_depth:
        raise errors.over(f"lists and objects in {name} are too deep", depth, limits.json_depth, "json_depth")
    if _has_long_number(bare):
        raise errors.unsafe(f"{name} holds a number of 400 digits or more")


def _width(data: bytes) -> int:
    """Return how many bytes a character of a text takes in memory: the widest one decides."""
    if b"\\u" in data or (not data.isascii() and data.translate(None, _NARROW)):
        return 4
    return 1 if data.isascii() or not data.translate(None, _LATIN) else 2


def _outside_strings(data: bytes) -> bytes:
    """Return a JSON text without its strings."""
    # Backslashes are allowed in strings only. Without the escaped ones, a string ends at the next quotation mark.
    data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    kept, inside = [], 0
    for at in range(0, len(data), PIECE):  # a list of all strings at once could be large
        parts = data[at : at + PIECE].split(b'"')
        kept.append(b"".join(parts[inside::2]))
        inside ^= (len(parts) - 1) & 1
    return b"".join(kept)


def _depth(brackets: bytes) -> int:
    """Return how deep brackets are nested, at most: unclosed ones all count."""
    levels, before = 0, 3 * len(brackets)
    while len(brackets) < before / 2:  # one level at a time, innermost first, as long as that removes most of the rest
        before, brackets = len(brackets), brackets.replace(b"[]", b"")
        levels += 1
    return levels + max(accumulate(92 - sign for sign in brackets), default=0)


def _has_long_number(bare: bytes) -> bool:
    """Return whether there is a number of 400 digits: Python is slow to parse such an int, or refuses it."""
    return bytes(4) in bare.translate(_TO_NINES).replace(b"9" * 100, b"\0")
